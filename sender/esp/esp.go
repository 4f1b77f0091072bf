// Package esp reads the webhooks of services that deliver mail which they have received
// by SMTP: Postmark, Mailgun and SendGrid. It guarantees that nothing of a request is
// reported unless the request proves that it comes from the service.
//
// How a request proves that:
//
//	postmark  HTTP Basic authentication with the secret as the password, or the secret in
//	          the header X-Webhook-Token. Postmark does not sign requests.
//	mailgun   HMAC-SHA256 of timestamp and token with the webhook signing key. The rest of
//	          the body is not signed, so HTTPS must protect it.
//	sendgrid  ECDSA signature of timestamp and body (Signed Event Webhook)
//
// A signature is accepted for 72 hours. Within that time, a request that is sent again
// changes nothing, since its reports have the same ids.
//
// The services replace the Message-ID or do not always report it. So each message has
// the id of its notification in the header that the service documents (AppendHeader).
// DKIM does not cover that header. Where the service also reports our Message-ID, it is
// read too.
//
// Each event proves that the service has accepted the message, as its answer by SMTP
// does. None proves a rejection. What each event reports:
//
//	postmark                                            report
//	Delivery                                            delivered
//	Bounce: HardBounce, BadEmailAddress                 bounced
//	Bounce: SoftBounce, DnsError                        soft_bounced
//	Bounce: Transient                                   delayed
//	Bounce: Unsubscribe                                 unsubscribed
//	Bounce: SpamComplaint; SpamComplaint                complained
//	Bounce: Subscribe, AutoResponder, AddressChange,
//	  ChallengeVerification, OpenRelayTest              (none)
//	Bounce: other                                       undelivered
//	SubscriptionChange by the recipient                 unsubscribed
//	Open, Click                                         opened, clicked
//	other                                               (none)
//
//	mailgun                                             report
//	accepted                                            the same
//	delivered                                           the same
//	failed, temporary                                   delayed
//	failed, permanent: bounce type hard, suppress-bounce  bounced
//	failed, permanent: bounce type soft, old            soft_bounced
//	failed, permanent: suppress-complaint               complained
//	failed, permanent: suppress-unsubscribe             unsubscribed
//	failed, permanent: other                            by the enhanced status code (report.Failure)
//	rejected                                            undelivered
//	complained, unsubscribed, opened, clicked           the same
//	other                                               (none)
//
//	sendgrid                                            report
//	processed                                           accepted
//	delivered                                           the same
//	deferred                                            delayed
//	bounce, of the types Content, Reputation, Technical,
//	  Frequency or Volume Too High; blocked             undelivered
//	bounce or blocked, Mailbox Unavailable, blocked     soft_bounced
//	bounce, other                                       bounced
//	dropped: Bounced Address, Invalid                   bounced
//	dropped: Spam Reporting Address                     complained
//	dropped: Unsubscribed Address                       unsubscribed
//	dropped: other                                      undelivered
//	spamreport                                          complained
//	unsubscribe, group_unsubscribe                      unsubscribed
//	open, click                                         opened, clicked
//	other                                               (none)
package esp

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"lemma/sender"
)

// Format is a service.
type Format string

// The services.
const (
	Postmark Format = "postmark"
	Mailgun  Format = "mailgun"
	SendGrid Format = "sendgrid"
)

// AppendHeader writes the header with the notification's id that a service reports with
// its events.
func (f Format) AppendHeader(out []byte, notification string) []byte {
	var before, after string
	switch f {
	case Postmark:
		before = "X-PM-Metadata-lemma-ntf: "
	case Mailgun:
		before, after = `X-Mailgun-Variables: {"lemma_ntf":"`, `"}`
	case SendGrid:
		before, after = `X-SMTPAPI: {"unique_args":{"lemma_ntf":"`, `"}}`
	default:
		return out
	}
	out = append(append(append(out, before...), notification...), after...)
	return append(out, "\r\n"...)
}

// Keys are what a request is checked with.
type Keys struct {
	Secret    string // of Postmark and Mailgun
	PublicKey string // of SendGrid: the verification key, in base64
}

// Errors of keys that cannot be used.
var (
	ErrSecret    = errors.New("must have 16 to 200 characters")
	ErrPublicKey = errors.New("must be the verification key of the Event Webhook: an ECDSA key of P-256 in base64")
)

// New makes the receiver of a service. The error is ErrSecret or ErrPublicKey.
func New(f Format, k Keys) (sender.Receiver, error) {
	if f == SendGrid {
		key, err := publicKey(k.PublicKey)
		if err != nil {
			return nil, err
		}
		return sendgrid{key}, nil
	}
	if len(k.Secret) < 16 || len(k.Secret) > 200 {
		return nil, ErrSecret
	}
	if f == Mailgun {
		return mailgun{[]byte(k.Secret)}, nil
	}
	return postmark{k.Secret}, nil
}

func publicKey(text string) (*ecdsa.PublicKey, error) {
	der, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, ErrPublicKey
	}
	parsed, err := x509.ParsePKIXPublicKey(der)
	key, ok := parsed.(*ecdsa.PublicKey)
	if err != nil || !ok || key.Curve != elliptic.P256() { // with P-521 a stranger's request takes 2 ms
		return nil, ErrPublicKey
	}
	return key, nil
}

// same compares two secrets in constant time.
func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

func read(body []byte, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("not an event of the service: %w", sender.ErrUnreadable)
	}
	return nil
}

// text is a JSON string or number. The services change between them.
type text string

// UnmarshalJSON reads any value. Other than strings and numbers, it is empty.
func (t *text) UnmarshalJSON(raw []byte) error {
	*t = ""
	switch c := raw[0]; {
	case c == '"':
		return json.Unmarshal(raw, (*string)(t))
	case c == '-' || c >= '0' && c <= '9':
		*t = text(raw)
	}
	return nil
}

// seconds is the time of a number of seconds since 1970, with decimals. It is otherwise
// if the number is none.
func seconds(n text, otherwise time.Time) time.Time {
	f, err := strconv.ParseFloat(string(n), 64)
	valid := err == nil && f > 0 && f < 1e11
	if !valid {
		return otherwise.UTC()
	}
	return time.UnixMilli(int64(f * 1000)).UTC()
}

func orNow(t, now time.Time) time.Time {
	if t.IsZero() {
		return now.UTC()
	}
	return t.UTC()
}
