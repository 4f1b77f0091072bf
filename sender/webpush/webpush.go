// Package webpush sends pushes to browsers over the Web Push protocol (RFC 8030): one
// request for each subscription, on package wire, encrypted for the browser (RFC 8291,
// aes128gcm) and signed for the push service (VAPID, RFC 8292). It guarantees that a
// receipt states only what the answer proves.
//
// The token of a device is its subscription, as PushSubscription.toJSON writes it. The
// browser chose the push service, and a website can store any URL as an endpoint. So no
// answer or failure of an endpoint is one of the provider: it can neither open the
// circuit at once nor pause a campaign. Package dial refuses private addresses.
//
// A push service that needs half of the timeout for a call, or much longer than others, is slow. It
// is then not called for 10 seconds, doubled each time up to 160, and then by one call at a time until
// one is fast. So a push service that hangs holds the calls to others for one timeout, and many of one
// domain or of unknown domains do so a few times (slow.go of package wire).
//
// Two attempts send the same body. Salt and ephemeral key are derived from a secret, the
// notification's seed, the subscription and the plaintext. So an equal plaintext has an
// equal ciphertext, and another plaintext always has another key (RFC 8188, 4.7). The
// push service replaces a message that it still holds by one with the same Topic. A
// message that was delivered is replaced only if the website shows both under the tag in
// the payload.
//
// The closed table of outcomes follows, by the status of an answer. Failures without an
// answer have the outcomes and reasons of package wire, except as listed.
//
//	answer                                              outcome        provider  reason
//	200, 201, 202                                       accepted       no        (none)
//	other 2xx                                           unknown        no        protocol_error
//	404, 410                                            rejected       no        token_unregistered
//	not called: the token is no subscription            rejected       no        token_invalid
//	not called: the endpoint may not be dialled         rejected       no        forbidden_address
//	400                                                 rejected       no        message_rejected
//	413; not called: the body has more than 4,096 bytes rejected       no        message_too_large
//	401, 403                                            not accepted   no        vapid_refused
//	406, 429                                            not accepted   no        throttled
//	503                                                 not accepted   no        unavailable
//	other 4xx                                           not accepted   no        request_refused
//	3xx: not followed                                   not accepted   no        redirected
//	other 5xx                                           unknown        no        server_error
//	no connection, or none was tried                    not accepted   no        connect_failed
//	no TLS                                              not accepted   no        tls_failed
//	lost before the body, or not processed              not accepted   no        connection_lost
//	no free connection or stream in time                not accepted   no        timeout
//	not called: the push service was slow before        not called     no        server_slow
//
// A receipt shows of an answer the status and the member message or reason of its JSON,
// without the endpoint.
package webpush

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"lemma"
	"lemma/sender"
	"lemma/sender/wire"
)

// Kind is pushes to browsers. It has no capabilities: a push service does not recognise
// a repeated request, reports nothing later, and collapses only what it still holds.
func Kind(o wire.Operator) sender.Kind {
	return sender.Kind{Name: "webpush", Channels: []lemma.Channel{lemma.Push},
		Check: func(config, secrets json.RawMessage) error {
			_, err := parse(config, secrets)
			return err
		},
		Open: func(a sender.Account) (sender.Carrier, error) { return open(a, o) }}
}

// carrier sends over one account.
type carrier struct {
	settings
	*wire.Client
	entropy []byte      // from which salts and ephemeral keys are derived
	header  http.Header // of all requests
	public  string      // the VAPID key, as header fields have it
}

func open(a sender.Account, o wire.Operator) (*carrier, error) {
	s, err := parse(a.Config, a.Secrets)
	if err != nil {
		return nil, err
	}
	entropy, err := entropyOf(s.key.Bytes())
	if err != nil {
		return nil, fmt.Errorf("open a Web Push provider: %w", err)
	}
	options := o.Options(a, s.timeout, s.most)
	options.Strange = true
	return &carrier{settings: s, entropy: entropy, Client: wire.New(options),
		public: base64.RawURLEncoding.EncodeToString(s.key.Public()),
		header: http.Header{"Content-Type": {"application/octet-stream"}, "Content-Encoding": {"aes128gcm"}, "User-Agent": {"Lemma"},
			"Ttl": {strconv.Itoa(s.ttl)}, "Urgency": {s.urgency}}}, nil
}
