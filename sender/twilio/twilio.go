// Package twilio sends SMS over Twilio's Programmable Messaging, by the Messages
// resource: one request for each recipient, on package wire. It guarantees that a receipt
// states only what the answer proves.
//
// A message is sent by a Messaging Service or from one sender. It names a StatusCallback
// if this Lemma has a public URL and the account an auth token, which signs the callbacks:
// {public URL}/hooks/twilio/{prv_ id}?n={ntf_ id}&a={attempt}.
//
// Two attempts differ only in the attempt of that URL. Twilio does not recognise a
// repeated message, but has a list of the messages to a number, which the reaper reads
// before a second attempt. Another message with the same recipient, text and sender that
// something else than Lemma sends over the account in these minutes is mistaken for it.
//
// The closed table of outcomes follows, by Twilio's error code and the status. The table
// of package wire is for calls without an answer. Codes from 30003 on, such as 30005
// (unknown destination), come later: Twilio has accepted the message then.
//
//	answer                                                  outcome        provider  reason
//	2xx with the sid of a message                           accepted       no        (none)
//	2xx with a sid and the status failed                    rejected       no        message_rejected
//	2xx without a sid                                       unknown        no        protocol_error
//	21211, 21214, 21217, 21265, 21266, 21614, 21635         rejected       no        recipient_invalid
//	21610: the recipient has sent STOP                      rejected       no        recipient_unsubscribed
//	21612: no route to the recipient                        rejected       no        recipient_unreachable
//	21408: sending to this country is not enabled           rejected       no        country_disabled
//	21608: unverified recipient of a trial account          rejected       no        recipient_unverified
//	21617                                                   rejected       no        message_too_large
//	21602, 21605, 21619                                     rejected       no        message_invalid
//	21606, 21659, 21703: not for this recipient             not accepted   no        sender_refused
//	14107: too many messages to this recipient              not accepted   no        recipient_throttled
//	21212, 21603, 21660, 21661, 21701, 21704, 21705         not accepted   yes       sender_rejected; definite
//	21609: the StatusCallback is not valid                  not accepted   yes       callback_rejected; definite
//	10001, 20005, 30002                                     not accepted   yes       account_suspended; definite
//	20006, 20008, 20403, 403 without a code                 not accepted   yes       access_denied; definite
//	20003, 401                                              not accepted   yes       credentials_refused; definite
//	20404, 404 without a code: there is no such account     not accepted   yes       not_found; definite
//	20429, 21611, 30001, 429                                not accepted   yes       throttled
//	63038: the limit of a day                               not accepted   yes       limit_exceeded
//	503 with Retry-After                                    not accepted   yes       unavailable
//	other codes, and other 4xx                              not accepted   no        request_refused
//	3xx: not followed                                       not accepted   yes       redirected
//	5xx                                                     unknown        no        server_error
//
// A receipt shows the code and message of an error, without the recipient's number.
//
// Twilio signs its requests with the auth token (X-Twilio-Signature): the public URL, which
// names the notification and the attempt, and all parameters. They contain no time, so a
// request that is sent again has the same ids and changes nothing. What they report:
//
//	status or message                                         report        proves
//	accepted, scheduled, queued, sending, sent                accepted      acceptance
//	delivered                                                 the same      acceptance
//	read                                                      opened        acceptance
//	canceled                                                  undelivered   acceptance
//	failed, undelivered: 21211, 21214, 21217, 21614, 30005    bounced       acceptance
//	failed, undelivered: 30003, 30006                         soft_bounced  acceptance
//	failed, undelivered: 21610                                undelivered and unsubscribed
//	failed, undelivered: other, such as 30004, 30007, 30008   undelivered   acceptance
//	a message STOP, or one that Twilio takes for it           unsubscribed, by the number
//	a message START, HELP or other                            (none)
//
// START reports nothing: an address that is suppressed stays so until a request to the API
// removes it.
package twilio

import (
	"encoding/base64"
	"net/http"
	"net/url"

	"lemma"
	"lemma/sender"
	"lemma/sender/wire"
)

// Kind is SMS over Twilio.
func Kind(o wire.Operator) sender.Kind {
	return sender.Kind{Name: "twilio", Channels: []lemma.Channel{lemma.SMS}, Moves: Moves, Warnings: Warnings,
		Capabilities: sender.Capabilities{Lookup: true},
		Check:        wire.Check(o, parse),
		Open:         func(a sender.Account) (sender.Carrier, error) { return open(a, o) },
		Receiver:     func(a sender.Account) (sender.Receiver, error) { return receive(a, o) }}
}

// carrier sends over one account.
type carrier struct {
	settings
	*wire.Client
	url       *url.URL // of the Messages resource
	header    http.Header
	publicURL func() string // of this Lemma; nil: no callback is requested
	provider  string        // its id
}

func open(a sender.Account, o wire.Operator) (*carrier, error) {
	s, err := parse(a.Config, a.Secrets, o)
	if err != nil {
		return nil, err
	}
	basic := base64.StdEncoding.EncodeToString([]byte(s.user + ":" + s.password))
	c := &carrier{settings: s,
		Client:   wire.New(o.Options(a, s.timeout, s.most)),
		provider: lemma.FormatID(lemma.PrefixProvider, a.ProviderID),
		url:      &url.URL{Scheme: s.endpoint.Scheme, Host: s.endpoint.Host, Path: "/2010-04-01/Accounts/" + s.account + "/Messages.json"},
		header: http.Header{"Authorization": {"Basic " + basic}, "User-Agent": {"Lemma"},
			"Content-Type": {"application/x-www-form-urlencoded"}}}
	if s.authToken != "" {
		c.publicURL = o.PublicURL
	}
	return c, nil
}
