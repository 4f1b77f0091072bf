// Package gateway sends messages of all channels to a customer's own HTTP service: one
// POST of JSON for each message, on package wire, signed as Standard Webhooks
// describes. It guarantees that a receipt states only what the answer proves, by a
// mapping that the settings declare.
//
// The body of a request, by channel:
//
//	all     type ("message.send"), notification_id, attempt, channel, to, date (RFC 3339), seed (UUID)
//	email   from {email, name}, reply_to, headers [{name, value}], subject, html, text
//	sms     text
//	push    title, body, link, data
//
// Two attempts have the same date, seed and content. Their attempt and the headers
// webhook-id ({notification_id}.{attempt}), webhook-timestamp and webhook-signature
// differ. A service that drops a second request with a notification_id that it has
// accepted makes a second delivery impossible.
//
// The closed table of outcomes follows, for statuses without a mapping. The table of
// package wire is for calls without an answer.
//
//	answer                                       outcome        provider  reason
//	2xx                                          accepted       no        (none)
//	400, 404, 410, 422                           rejected       no        message_rejected
//	413                                          rejected       no        message_too_large
//	401, 403                                     not accepted   yes       access_denied; definite
//	429                                          not accepted   yes       throttled
//	503 with Retry-After                         not accepted   yes       unavailable
//	other statuses                               unknown        no        server_error
//	a status that maps to accepted               accepted       no        (none)
//	a status that maps to rejected               rejected       no        message_rejected
//	a status that maps to not accepted           not accepted   no        request_refused
//	2xx with a value that maps to rejected       rejected       no        message_rejected
//	2xx with a value that maps to not accepted   not accepted   no        request_refused
//	2xx with a value that is not mapped          unknown        no        protocol_error
//
// A receipt shows of an answer only the status, and the text at the JSON pointer of the id
// or the error, without the recipient's address. Of a server at a private address it shows
// no text (wire.Answer.Text).
package gateway

import (
	"net/http"

	"lemma"
	"lemma/sender"
	"lemma/sender/wire"
)

// Kind is a customer's own HTTP service. Whether it recognises a repeated message is not
// known. It may report events by webhook.
func Kind(o wire.Operator) sender.Kind {
	return sender.Kind{Name: "http", Channels: []lemma.Channel{lemma.Email, lemma.SMS, lemma.Push}, Moves: Moves, Warnings: Warnings,
		Check:    wire.Check(o, parse),
		Open:     func(a sender.Account) (sender.Carrier, error) { return open(a, o) },
		Receiver: func(a sender.Account) (sender.Receiver, error) { return receiverOf(a, o) }}
}

// carrier sends over one account.
type carrier struct {
	settings
	*wire.Client
	channel lemma.Channel
	header  http.Header // of all requests
}

func open(a sender.Account, o wire.Operator) (*carrier, error) {
	s, err := parse(a.Config, a.Secrets, o)
	if err != nil {
		return nil, err
	}
	c := &carrier{settings: s, channel: a.Channel, header: http.Header{}}
	if c.channel == "" {
		c.channel = lemma.Email
	}
	for _, headers := range []map[string]string{s.headers, s.secretHeaders} {
		for name, value := range headers {
			c.header.Set(name, value)
		}
	}
	c.header.Set("Content-Type", "application/json")
	c.header.Set("User-Agent", "Lemma")
	c.Client = wire.New(o.Options(a, s.timeout, s.most))
	return c, nil
}
