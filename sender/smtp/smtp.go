// Package smtp sends email. Its promise: the body of a message is handed to a
// server once at most, and every receipt says no more than what the server's
// answer, or its silence, proves.
//
// The closed table of outcomes. "Body" is the message's content: before its
// first byte has gone to the socket, a server cannot have taken the message.
//
//	what happened                               outcome        provider  reason
//	no connection, TLS, greeting, EHLO, AUTH     not accepted   yes       connect_failed, tls_failed, greeting_refused, ehlo_refused, auth_failed; definite with 5xx
//	an address that may not be dialled          not accepted   yes       forbidden_address; definite
//	one of these a moment ago, so none was tried not called     yes       the same
//	connection lost before the body             not accepted   yes       connection_lost
//	no answer in time to MAIL                   not accepted   yes       timeout
//	no answer in time to RCPT or DATA           not accepted   no        timeout
//	nonsense before the body                    not accepted   yes       protocol_error
//	421 at any command or after the final dot   not accepted   yes       service_closing
//	MAIL 4xx                                    not accepted   yes       sender_refused
//	MAIL 552                                    rejected       no        message_too_large
//	MAIL 5xx                                    not accepted   yes       sender_rejected; definite
//	RCPT 4xx                                    not accepted   no        recipient_refused
//	RCPT 5xx                                    rejected       no        recipient_rejected
//	DATA 4xx                                    not accepted   no        data_refused
//	DATA 5xx                                    rejected       no        data_rejected
//	2xx after the final dot                     accepted       no        (none)
//	4xx after the final dot                     not accepted   no        message_refused
//	5xx after the final dot                     rejected       no        message_rejected
//	connection lost since the body's first byte unknown        no        connection_lost
//	no answer in time since then                unknown        no        timeout
//	nonsense since then, or too many answers    unknown        no        protocol_error
//	ctx ended since then                        unknown        no        call_ended
//	ctx ended before, or StartBy passed         not called     no        call_ended
//	larger than the server's SIZE               rejected       no        message_too_large
//	cannot be written as a mail                 rejected       no        message_invalid
//
// A 4xx after the final dot leaves the message with the client (RFC 5321,
// 4.2.5), so it is a definite answer. A connection that was used before and
// turns out to be dead, or says 421 to an envelope, is replaced once by a fresh
// one: the message's body has not been started, so it is still one request.
//
// Where the server offers PIPELINING (RFC 2920), the body of one message and
// the envelope of the next travel in one write: one round trip per mail.
//
// What a receipt shows of a server depends on how far the conversation came.
// Before MAIL it is a sentence of ours, the reply code and the enhanced status
// code: an administrator of a workspace could otherwise read the banner of any
// service by entering its host and port. Replies to MAIL, RCPT,
// DATA and the body are shown, since support needs them. Errors of the network
// and of TLS are sentences of a closed list; the log has the full text.
//
// It leaves rate, retries and what is in the messages to the sender.
package smtp

import (
	"crypto/tls"
	"encoding/json"
	"log/slog"

	"github.com/google/uuid"

	"lemma"
	"lemma/dial"
	"lemma/sender"
)

// Options are what the operator decides, not the account.
type Options struct {
	AllowPrivate bool         // connect to loopback and private addresses too: for development, and mail servers in the operator's network
	Log          *slog.Logger // why connections fail, in full; nil: nowhere
}

// Kind is email over SMTP. An SMTP server reports nothing later, and nothing
// makes it take two transmissions for one: no capabilities.
func Kind(o Options) sender.Kind {
	return sender.Kind{Name: "smtp", Open: func(a sender.Account) (sender.Carrier, error) {
		c, err := open(a.Config, a.Secrets, o)
		if err != nil {
			return nil, err
		}
		c.provider = a.ProviderID
		if a.CallTimeout > 0 {
			c.timeout = min(c.timeout, a.CallTimeout)
		}
		return c, nil
	}}
}

// Check says what is wrong with an account's config and secrets, if anything,
// as one *lemma.Error that names every faulty field. A host that is given as an
// address is checked as it will be when it is dialled.
func Check(config, secrets json.RawMessage, o Options) error {
	s, err := parse(config, secrets)
	if err != nil {
		return err
	}
	if (dial.Dialer{AllowPrivate: o.AllowPrivate}).Plausible(s.host) {
		return nil
	}
	return lemma.Fault("/config/host", "forbidden_address", "is an address that may not be dialled; only the operator can allow private ones (LEMMA_ALLOW_PRIVATE_PROVIDERS)")
}

// carrier sends over one account.
type carrier struct {
	settings
	pool     *pool
	tls      *tls.Config
	dialer   dial.Dialer
	log      *slog.Logger
	provider uuid.UUID // for the log
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
	return &carrier{settings: s, pool: newPool(s.maxConnections), tls: &tls.Config{MinVersion: tls.VersionTLS12, ServerName: s.host},
		dialer: dial.Dialer{AllowPrivate: o.AllowPrivate}, log: log}, nil
}
