package apns

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"lemma"
	"lemma/sender"
	"lemma/sender/wire"
)

// mostPayload is the largest payload of an alert that Apple accepts, in bytes.
const mostPayload = 4096

// Apple documents tokens as hexadecimal, of a length that may change.
var deviceToken = regexp.MustCompile(`^([0-9A-Fa-f]{2}){1,200}$`)

// Send is part of sender.Carrier.
func (c *carrier) Send(ctx context.Context, messages []sender.Message) []sender.Receipt {
	return c.Each(ctx, messages, c.send)
}

func (c *carrier) send(ctx context.Context, m *sender.Message) sender.Receipt {
	if !deviceToken.MatchString(m.To) {
		return rejected("token_invalid", "the token is not hexadecimal")
	}
	body, err := payload(m)
	if err != nil {
		return rejected("message_invalid", sender.Detail(nil, err.Error(), m.To))
	}
	if len(body) > mostPayload {
		return rejected("message_too_large", "the payload has "+strconv.Itoa(len(body))+" bytes; APNs accepts at most 4096")
	}
	header, err := c.headerOf(m)
	if err != nil {
		return rejected("message_invalid", sender.Detail(nil, err.Error(), m.To))
	}
	a, failure := c.Post(ctx, wire.Request{URL: c.to(strings.ToLower(m.To)), Header: header, Body: body, StartBy: m.StartBy})
	if failure != nil {
		return *failure
	}
	return receiptFor(a, m)
}

func rejected(reason, detail string) sender.Receipt {
	return sender.Receipt{Outcome: sender.Rejected, Reason: reason, Detail: detail, At: time.Now()}
}

// aps are Apple's members of the body. The others are for the app.
type aps struct {
	Alert alert  `json:"alert"`
	Sound string `json:"sound"`
}

type alert struct {
	Title string `json:"title,omitempty"`
	Body  string `json:"body"`
}

// payload is the body of a request. An app receives the same data as over FCM.
func payload(m *sender.Message) ([]byte, error) {
	if _, taken := m.Data["aps"]; taken {
		return nil, errors.New("the data must have no member aps, which is Apple's")
	}
	all := map[string]any{}
	if m.Link != "" {
		all["link"] = m.Link
	}
	for name, value := range m.Data {
		all[name] = value
	}
	all["lemma_ntf"] = m.Notification
	all["aps"] = aps{alert{m.Subject, m.Text}, "default"}
	return json.Marshal(all) //nolint:wrapcheck // texts can always be written
}

func (c *carrier) headerOf(m *sender.Message) (http.Header, error) {
	bearer, err := c.authorization(time.Now())
	if err != nil {
		return nil, err
	}
	expires := int64(0) // APNs does not keep the message
	if c.ttl > 0 {
		expires = m.Date.Add(c.ttl).Unix()
	}
	header := c.header.Clone()
	header.Set("Authorization", bearer)
	header.Set("Apns-Id", messageID(m))
	header.Set("Apns-Collapse-Id", m.Notification)
	header.Set("Apns-Expiration", strconv.FormatInt(expires, 10))
	return header, nil
}

// messageID is the apns-id, the same for both attempts of a notification: a UUID of
// version 8 (RFC 9562).
func messageID(m *sender.Message) string {
	id := lemma.Key("apns-id/1", m.Notification)
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	return id.String()
}
