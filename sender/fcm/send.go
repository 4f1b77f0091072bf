package fcm

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"lemma"
	"lemma/sender"
	"lemma/sender/wire"
)

// Send is part of sender.Carrier.
func (c *carrier) Send(ctx context.Context, messages []sender.Message) []sender.Receipt {
	return c.Each(ctx, messages, c.send)
}

func (c *carrier) send(ctx context.Context, m *sender.Message) sender.Receipt {
	body, err := json.Marshal(request{c.message(m)})
	if err != nil {
		return sender.Receipt{Outcome: sender.Rejected, Reason: "message_invalid", Detail: sender.Detail(nil, err.Error(), m.To), At: time.Now()}
	}
	token, none := c.tokens.get(ctx)
	if none != nil {
		return *none
	}
	header := http.Header{"Authorization": {"Bearer " + token}, "Content-Type": {"application/json"}, "User-Agent": {"Lemma"}}
	a, failure := c.Post(ctx, wire.Request{URL: c.url, Header: header, Body: body, StartBy: m.StartBy})
	if failure != nil {
		return *failure
	}
	if a.Status == http.StatusUnauthorized {
		c.tokens.drop(token)
	}
	return receiptFor(a, m)
}

// request is the body of messages:send.
type request struct {
	Message message `json:"message"`
}

type message struct {
	Token        string            `json:"token"`
	Notification notification      `json:"notification"`
	Data         map[string]string `json:"data"`
	Android      android           `json:"android"`
	APNs         apns              `json:"apns"`
	Webpush      webpush           `json:"webpush"`
}

type notification struct {
	Title string `json:"title,omitempty"`
	Body  string `json:"body,omitempty"`
	Tag   string `json:"tag,omitempty"` // android and webpush: of two with one tag, the later is shown
}

type android struct {
	CollapseKey  string       `json:"collapse_key"`
	TTL          string       `json:"ttl,omitempty"`
	Notification notification `json:"notification"`
}

type apns struct {
	Headers map[string]string `json:"headers"`
}

type webpush struct {
	Headers      map[string]string `json:"headers"`
	Notification notification      `json:"notification"`
	Options      *webOptions       `json:"fcm_options,omitempty"`
}

type webOptions struct {
	Link string `json:"link"`
}

// Members of the data that Lemma adds, besides those of the template.
const (
	dataNotification = "lemma_ntf" // the notification's id
	dataLink         = "link"      // what a tap opens, unless the template has a member of this name
)

func (c *carrier) message(m *sender.Message) message {
	same := collapseID(m)
	one := message{Token: m.To, Notification: notification{Title: m.Subject, Body: m.Text}, Data: data(m),
		Android: android{CollapseKey: same, Notification: notification{Tag: same}},
		APNs:    apns{Headers: map[string]string{"apns-collapse-id": same}},
		Webpush: webpush{Headers: map[string]string{"Topic": same}, Notification: notification{Title: m.Subject, Body: m.Text, Tag: same}}}
	if strings.HasPrefix(strings.ToLower(m.Link), "https://") { // FCM refuses others
		one.Webpush.Options = &webOptions{Link: m.Link}
	}
	if c.ttl != nil {
		seconds := strconv.Itoa(int(c.ttl.Seconds()))
		one.Android.TTL, one.Webpush.Headers["TTL"] = seconds+"s", seconds
		one.APNs.Headers["apns-expiration"] = expiration(m, *c.ttl)
	}
	return one
}

// collapseID is what the attempts of a notification, and no others, have in common. It
// has 22 characters of base64url: a Topic may have 32 (RFC 8030, 5.4).
func collapseID(m *sender.Message) string {
	id := lemma.Key("collapse/1", m.Notification)
	return base64.RawURLEncoding.EncodeToString(id[:])
}

func data(m *sender.Message) map[string]string {
	all := map[string]string{}
	if m.Link != "" {
		all[dataLink] = m.Link
	}
	maps.Copy(all, m.Data)
	all[dataNotification] = m.Notification
	return all
}

// expiration is when APNs drops a message, in seconds since 1970. 0: it is not stored.
func expiration(m *sender.Message, ttl time.Duration) string {
	if ttl == 0 {
		return "0"
	}
	return strconv.FormatInt(m.Date.Add(ttl).Unix(), 10)
}
