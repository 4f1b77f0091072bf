// Package smtp sends email. It guarantees that the body of a message is sent at most
// once, and that a receipt states only what the server's answer, or its absence,
// proves.
//
// The closed table of outcomes follows. "Body" is the message's content: before its
// first byte is written, a server cannot have accepted the message.
//
//	what happened                               outcome        provider  reason
//	no connection, TLS, greeting, EHLO, AUTH    not accepted   yes       connect_failed, tls_failed, greeting_refused, ehlo_refused,
//	                                                                     auth_failed; definite with 5xx
//	an address that may not be dialled          not accepted   yes       forbidden_address; definite
//	one of these a moment ago, so none was tried not called     yes       the same
//	connection lost before the body             not accepted   yes       connection_lost
//	no answer in time to MAIL                   not accepted   yes       timeout
//	no answer in time to RCPT or DATA           not accepted   no        timeout
//	invalid reply before the body               not accepted   yes       protocol_error
//	421 at any command or after the final dot   not accepted   yes       service_closing
//	MAIL 4xx                                    not accepted   yes       sender_refused
//	MAIL 552                                    rejected       no        message_too_large
//	MAIL 5xx                                    not accepted   yes       sender_rejected; definite
//	RCPT 4xx                                    not accepted   no        recipient_refused
//	RCPT 5xx with 5.1.1, 5.1.6 or 5.1.10        rejected       no        recipient_unknown: it is suppressed
//	RCPT 5xx                                    rejected       no        recipient_rejected
//	DATA 4xx                                    not accepted   no        data_refused
//	DATA 5xx                                    rejected       no        data_rejected
//	2xx after the final dot                     accepted       no        (none)
//	4xx after the final dot                     not accepted   no        message_refused
//	5xx after the final dot                     rejected       no        message_rejected
//	connection lost since the body's first byte unknown        no        connection_lost
//	no answer in time since then                unknown        no        timeout
//	invalid or surplus reply since then         unknown        no        protocol_error
//	ctx ended since then                        unknown        no        call_ended
//	ctx ended before, or StartBy passed         not called     no        call_ended
//	larger than the server's SIZE               rejected       no        message_too_large
//	cannot be written as a mail                 rejected       no        message_invalid
//
// A 4xx after the final dot leaves the message with the client (RFC 5321, 4.2.5), so
// it is a definite answer. A connection that was used before and is closed, or answers
// an envelope with 421, is replaced once: the message's body has not begun, so it is
// still one request.
//
// Where the server offers PIPELINING (RFC 2920), the body of one message and the
// envelope of the next are one write: one round trip per message.
//
// A receipt shows of a server:
//
//   - before MAIL, a sentence of a closed list, the reply code and the enhanced
//     status code, since a user could otherwise read the banner of any service by
//     entering its host and port;
//   - the replies to MAIL, RCPT, DATA and the body, since support needs them;
//   - for errors of the network and of TLS, a sentence of a closed list. The log has
//     the full text.
//
// Rates, retries and content belong to package sender.
package smtp

import (
	"crypto/x509"
	"encoding/json"
	"log/slog"

	"github.com/google/uuid"

	"lemma"
	"lemma/dial"
	"lemma/sender"
	"lemma/sender/redact"
	"lemma/sender/trace"
)

// Options are settings of the operator, not of the account.
type Options struct {
	AllowPrivate bool         // also connect to loopback and private addresses: for development, and the operator's own network
	ShowPrivate  bool         // tests of providers show what servers at such addresses answer
	Log          *slog.Logger // for the full errors of connections; nil: none
	Idle         *dial.Idle   // bounds the idle connections of all carriers; nil: each has a bound of its own
}

// Kind is email over SMTP. It has no capabilities: an SMTP server does not recognise a
// repeated message, and only some services report what becomes of one.
func Kind(o Options) sender.Kind {
	return sender.Kind{Name: "smtp", Channels: []lemma.Channel{lemma.Email}, Moves: Moves, Warnings: Warnings,
		Check: func(config, secrets json.RawMessage) error { return Check(config, secrets, o) },
		Open: func(a sender.Account) (sender.Carrier, error) {
			c, err := open(a.Config, a.Secrets, o)
			if err != nil {
				return nil, err
			}
			c.provider, c.pool.workspace, c.trace, c.redact = a.ProviderID, a.WorkspaceID, a.Trace, a.Redact
			if c.dkim != nil {
				c.dkim.of = a.WorkspaceID
			}
			if a.CallTimeout > 0 {
				c.timeout = min(c.timeout, a.CallTimeout)
			}
			return c, nil
		},
		Receiver: func(a sender.Account) (sender.Receiver, error) { return receiver(a.Config, a.Secrets) }}
}

// Check validates an account's config and secrets, and returns one *lemma.Error with
// all faulty fields. A host that is an IP address is checked as it is when it is
// dialled.
func Check(config, secrets json.RawMessage, o Options) error {
	s, err := parse(config, secrets)
	if err != nil {
		return err
	}
	if (dial.Dialer{AllowPrivate: o.AllowPrivate}).Plausible(s.host) {
		return nil
	}
	return lemma.Fault("/config/host", "forbidden_address",
		"must not be a private or reserved address; only the operator can allow private ones (LEMMA_ALLOW_PRIVATE_PROVIDERS)")
}

// carrier sends over one account.
type carrier struct {
	settings
	pool     *pool
	roots    *x509.CertPool // nil: the machine's
	dialer   dial.Dialer
	log      *slog.Logger
	provider uuid.UUID // for the log

	trace       *trace.Trace
	redact      *redact.Secrets
	showPrivate bool
}

func open(config, secrets json.RawMessage, o Options) (*carrier, error) {
	s, err := parse(config, secrets)
	if err != nil {
		return nil, err
	}
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	idle := o.Idle
	if idle == nil {
		idle = dial.NewIdle(sender.MostIdle, sender.MostIdleOfWorkspace)
	}
	return &carrier{settings: s, pool: newPool(s.maxConnections, idle),
		dialer: dial.Dialer{AllowPrivate: o.AllowPrivate}, log: log, showPrivate: o.ShowPrivate}, nil
}
