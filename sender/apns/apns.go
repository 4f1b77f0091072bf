// Package apns sends pushes to Apple devices over the Apple Push Notification service:
// one request for each token, over HTTP/2 on package wire. It guarantees that a receipt
// states only what the answer proves.
//
// A request authenticates by a JSON Web Token (ES256). Its time is a multiple of 30
// minutes, at least 5 and less than 35 minutes ago. Apple accepts tokens of at most an
// hour, and a new one every 20 minutes. The token has the same bytes in all processes,
// so that a restart or another process makes no new one.
//
// Two attempts send the same request. They have one apns-id and one apns-collapse-id,
// which is the notification's id. APNs and the device replace a notification by one with
// the same collapse id. If the first was dismissed or opened before the second arrives,
// the second is shown again.
//
// The closed table of outcomes follows, by the reason in the answer and the status. The
// table of package wire is for calls without an answer.
//
//	answer                                                  outcome        provider  reason
//	200 with the apns-id of the request                     accepted       no        (none)
//	other 2xx                                               unknown        no        protocol_error
//	Unregistered, ExpiredToken, 410                         rejected       no        token_unregistered
//	DeviceTokenNotForTopic                                  rejected       no        token_mismatch
//	BadDeviceToken, MissingDeviceToken, BadPath             rejected       no        token_invalid
//	not called: the token is not hexadecimal                rejected       no        token_invalid
//	PayloadTooLarge, 413                                    rejected       no        message_too_large
//	not called: the payload has more than 4,096 bytes       rejected       no        message_too_large
//	PayloadEmpty, BadCollapseId, BadExpirationDate          rejected       no        message_invalid
//	BadMessageId, BadPriority, DuplicateHeaders             rejected       no        message_invalid
//	InvalidPushType                                         rejected       no        message_invalid
//	BadTopic, MissingTopic, TopicDisallowed                 not accepted   yes       topic_refused; definite
//	InvalidProviderToken, MissingProviderToken              not accepted   yes       credentials_refused; definite
//	BadEnvironmentKeyIdInToken, BadEnvironmentKeyInToken    not accepted   yes       credentials_refused; definite
//	BadCertificate, BadCertificateEnvironment               not accepted   yes       credentials_refused; definite
//	UnrelatedKeyIdInToken: on this connection               not accepted   yes       credentials_refused
//	ExpiredProviderToken: by Apple's clock                  not accepted   yes       clock_skew
//	Forbidden, 403                                          not accepted   yes       access_denied; definite
//	MethodNotAllowed, 404, 405                              not accepted   yes       not_found; definite
//	TooManyProviderTokenUpdates, 429                        not accepted   yes       throttled
//	TooManyRequests: to this token                          not accepted   no        device_throttled
//	ServiceUnavailable, Shutdown, IdleTimeout, 503          not accepted   yes       unavailable
//	other reasons, and other 4xx                            not accepted   no        request_refused
//	3xx: not followed                                       not accepted   yes       redirected
//	InternalServerError, other 5xx                          unknown        no        server_error
//
// A receipt shows the reason of an answer.
package apns

import (
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"lemma"
	"lemma/sender"
	"lemma/sender/wire"
)

// Kind is pushes over APNs. Its only capability is that two deliveries collapse: APNs
// does not recognise a repeated request, and reports nothing later.
func Kind(o wire.Operator) sender.Kind {
	return sender.Kind{Name: "apns", Channels: []lemma.Channel{lemma.Push}, Moves: Moves, Warnings: Warnings,
		Capabilities: sender.Capabilities{Collapse: true},
		Check:        wire.Check(o, parse),
		Open:         func(a sender.Account) (sender.Carrier, error) { return open(a, o) }}
}

// carrier sends over one account.
type carrier struct {
	settings
	*wire.Client
	header http.Header // of all requests

	mu     sync.Mutex
	issued int64  // when bearer was, in Unix time
	bearer string // the Authorization header
}

func open(a sender.Account, o wire.Operator) (*carrier, error) {
	s, err := parse(a.Config, a.Secrets, o)
	if err != nil {
		return nil, err
	}
	options := o.Options(a, s.timeout, s.most)
	options.OnlyH2 = true
	return &carrier{settings: s, Client: wire.New(options),
		header: http.Header{"Content-Type": {"application/json"}, "User-Agent": {"Lemma"}, "Apns-Topic": {s.topic},
			"Apns-Push-Type": {"alert"}, "Apns-Priority": {strconv.Itoa(s.priority)}}}, nil
}

// How old a token is when it is first used, and how long it is used.
const (
	tokenAge  = 5 * time.Minute // clocks may differ by that much
	tokenUsed = 30 * time.Minute
)

// authorization returns the token for a time.
func (c *carrier) authorization(now time.Time) (string, error) {
	issued := now.Add(-tokenAge).Truncate(tokenUsed).Unix()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bearer != "" && c.issued == issued {
		return c.bearer, nil
	}
	token, err := c.key.Sign(
		struct {
			Algorithm string `json:"alg"`
			Key       string `json:"kid"`
		}{"ES256", c.keyID},
		struct {
			Issuer string `json:"iss"`
			Issued int64  `json:"iat"`
		}{c.teamID, issued})
	if err != nil {
		return "", err
	}
	c.issued, c.bearer = issued, "bearer "+token
	return c.bearer, nil
}

// to is the URL of a device.
func (c *carrier) to(token string) *url.URL {
	return &url.URL{Scheme: c.endpoint.Scheme, Host: c.endpoint.Host, Path: "/3/device/" + token}
}
