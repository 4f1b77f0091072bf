// Package fcm sends pushes over Firebase Cloud Messaging, by messages:send of the HTTP
// v1 API: one request for each device, on package wire. It guarantees that a receipt
// states only what the answer proves.
//
// Requests carry an access token of OAuth 2.0. The service account gets it by a JWT that
// it signs (RFC 7523); it is kept until shortly before it expires. A token request is not
// the request of a message: at most one is under way for an account, and its failure is
// one of the provider. No message has then been sent.
//
// Two attempts send the same bytes. Both have the same collapse id, made from the
// notification's id: as android.collapse_key, android.notification.tag, apns-collapse-id
// and the Topic and tag of Web Push. So a device that gets both shows the second in place
// of the first. That is one notification on the screen if the first has not been delivered
// yet, or is still shown. If it was tapped or dismissed in between, it is shown twice; an
// app in the foreground receives both.
//
// The closed table of outcomes follows, by the error code of FCM, or without one by the
// status of the error. The table of package wire is for calls without an answer.
//
//	answer                                                  outcome        provider  reason
//	2xx with the name of a message                          accepted       no        (none)
//	2xx without one                                         unknown        no        protocol_error
//	UNREGISTERED                                            rejected       no        token_unregistered
//	SENDER_ID_MISMATCH                                      rejected       no        token_mismatch
//	INVALID_ARGUMENT: the token is not valid                rejected       no        token_invalid
//	INVALID_ARGUMENT, other                                 rejected       no        message_invalid
//	413                                                     rejected       no        message_too_large
//	QUOTA_EXCEEDED, 429                                     not accepted   yes       throttled
//	QUOTA_EXCEEDED: of this device                          not accepted   no        device_throttled
//	UNAVAILABLE, 503 with Retry-After                       not accepted   yes       unavailable
//	THIRD_PARTY_AUTH_ERROR                                  not accepted   yes       push_credentials_refused; definite
//	UNAUTHENTICATED, 401: the access token is refused       not accepted   yes       access_token_refused
//	PERMISSION_DENIED, 403                                  not accepted   yes       access_denied; definite
//	NOT_FOUND, 404: there is no such project                not accepted   yes       not_found; definite
//	other 4xx                                               not accepted   no        request_refused
//	3xx: not followed                                       not accepted   yes       redirected
//	INTERNAL, other 5xx                                     unknown        no        server_error
//
// The outcomes of a message that has no access token follow. After a failure, no token is
// requested for a second: the message is then not called, for the same cause.
//
//	answer to the token request                             outcome        provider  reason
//	invalid_grant, invalid_client, other 400, 401, 403      not accepted   yes       credentials_refused; definite
//	invalid_grant: the times of the JWT are wrong           not accepted   yes       clock_skew
//	429                                                     not accepted   yes       throttled
//	3xx: not followed                                       not accepted   yes       redirected
//	every other answer                                      not accepted   yes       token_unavailable
//	no connection, no TLS, none that may be dialled         not accepted   yes       as of package wire
//	no answer, or none in time                              not accepted   yes       as of package wire
//
// A receipt shows the code and message of an error, without the device's token.
package fcm

import (
	"net/url"

	"lemma"
	"lemma/sender"
	"lemma/sender/wire"
)

// Kind is push over Firebase Cloud Messaging. It collapses two deliveries on the screen.
// It does not recognise a repeated message, and reports nothing later.
func Kind(o wire.Operator) sender.Kind {
	return sender.Kind{Name: "fcm", Channels: []lemma.Channel{lemma.Push}, Moves: Moves,
		Capabilities: sender.Capabilities{Collapse: true},
		Check:        wire.Check(o, parse),
		Open:         func(a sender.Account) (sender.Carrier, error) { return open(a, o) }}
}

// carrier sends over one account.
type carrier struct {
	settings
	*wire.Client
	url    *url.URL
	tokens *tokens
}

func open(a sender.Account, o wire.Operator) (*carrier, error) {
	s, err := parse(a.Config, a.Secrets, o)
	if err != nil {
		return nil, err
	}
	client := wire.New(o.Options(a, s.timeout, s.most))
	to := &url.URL{Scheme: s.endpoint.Scheme, Host: s.endpoint.Host, Path: "/v1/projects/" + s.project + "/messages:send"}
	return &carrier{settings: s, Client: client, url: to, tokens: newTokens(client, s.account, a)}, nil
}
