package webpush

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strconv"
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
	s, err := readSubscription(m.To)
	if err != nil {
		return rejected("token_invalid", err.Error())
	}
	plaintext, err := payload(m)
	if err != nil {
		return rejected("message_invalid", sender.Detail(nil, err.Error(), m.To))
	}
	if len(plaintext) > mostText {
		return rejected("message_too_large",
			"the payload has "+strconv.Itoa(len(plaintext))+" bytes; push services accept "+strconv.Itoa(mostText))
	}
	body, header, err := c.request(m, s, plaintext)
	if err != nil {
		return rejected("message_invalid", sender.Detail(nil, err.Error(), m.To))
	}
	a, failure := c.Post(ctx, wire.Request{URL: s.endpoint, Header: header, Body: body, StartBy: m.StartBy})
	if failure != nil {
		return own(ofEndpoint(*failure))
	}
	return own(receiptFor(a, s))
}

// own marks a rejection by a server that the recipient chose, or of their subscription.
func own(r sender.Receipt) sender.Receipt {
	r.Own = r.Outcome == sender.Rejected
	return r
}

func rejected(reason, detail string) sender.Receipt {
	return sender.Receipt{Outcome: sender.Rejected, Own: reason == "token_invalid", Reason: reason, Detail: detail, At: time.Now()}
}

func (c *carrier) request(m *sender.Message, s subscription, plaintext []byte) ([]byte, http.Header, error) {
	salt, key, err := ephemeral(c.entropy, m.Seed, s, plaintext)
	if err != nil {
		return nil, nil, err
	}
	body, err := encrypt(s, plaintext, salt, key)
	if err != nil {
		return nil, nil, err
	}
	token, err := c.vapid(s.audience(), time.Now())
	if err != nil {
		return nil, nil, err
	}
	header := c.header.Clone()
	header.Set("Authorization", "vapid t="+token+", k="+c.public)
	header.Set("Topic", topic(m))
	return body, header, nil
}

// vapid returns the token for a push service (RFC 8292, 2). It is the same for an hour,
// so that push services can keep the result of its check, and valid for 12 to 13 hours.
func (c *carrier) vapid(audience string, now time.Time) (string, error) {
	token, err := c.key.Sign(
		struct {
			Type      string `json:"typ"`
			Algorithm string `json:"alg"`
		}{"JWT", "ES256"},
		struct {
			Audience string `json:"aud"`
			Expires  int64  `json:"exp"`
			Subject  string `json:"sub"`
		}{audience, now.Truncate(time.Hour).Add(13 * time.Hour).Unix(), c.subject})
	return token, lemma.Wrap(err, "authenticate")
}

// topic is what the attempts of a notification, and no others, have in common: 22
// characters of base64url. RFC 8030, 5.4 allows 32.
func topic(m *sender.Message) string {
	id := lemma.Key("collapse/1", m.Notification)
	return base64.RawURLEncoding.EncodeToString(id[:])
}

// declarative is a payload that some browsers show without a service worker (Declarative
// Web Push). Others hand it to the website's service worker.
type declarative struct {
	Version      int          `json:"web_push"`
	Notification notification `json:"notification"`
}

type notification struct {
	Title    string            `json:"title"`
	Body     string            `json:"body"`
	Navigate string            `json:"navigate,omitempty"` // what a tap opens
	Tag      string            `json:"tag"`                // of two with one tag, the later is shown
	Data     map[string]string `json:"data"`
}

// payload is the plaintext of a request. A website receives the same data as over FCM.
func payload(m *sender.Message) ([]byte, error) {
	data := map[string]string{}
	if m.Link != "" {
		data["link"] = m.Link
	}
	maps.Copy(data, m.Data)
	data["lemma_ntf"] = m.Notification
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	err := e.Encode(declarative{8030, notification{Title: m.Subject, Body: m.Text, Navigate: m.Link, Tag: topic(m), Data: data}})
	if err != nil {
		return nil, fmt.Errorf("write the payload: %w", err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}
