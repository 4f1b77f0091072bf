package gateway

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/sender"
	"lemma/sender/wire"
	"lemma/signing"
)

// Send is part of sender.Carrier.
func (c *carrier) Send(ctx context.Context, messages []sender.Message) []sender.Receipt {
	return c.Each(ctx, messages, c.send)
}

func (c *carrier) send(ctx context.Context, m *sender.Message) sender.Receipt {
	body, err := json.Marshal(request(m, c.channel))
	if err != nil {
		return sender.Receipt{Outcome: sender.Rejected, Reason: "message_invalid", Detail: sender.Detail(nil, err.Error(), m.To), At: time.Now()}
	}
	header := c.header.Clone()
	signing.Set(header, [][]byte{c.key}, m.Notification+"."+strconv.Itoa(m.Attempt), time.Now(), body)
	a, failure := c.Post(ctx, wire.Request{URL: c.url, Header: header, Body: body, StartBy: m.StartBy})
	if failure != nil {
		return *failure
	}
	return c.responses.receipt(a, m)
}

// envelope is the body of a request. Released members keep their names and meaning.
type envelope struct {
	Type           string        `json:"type"`
	NotificationID string        `json:"notification_id"`
	Attempt        int           `json:"attempt"`
	Channel        lemma.Channel `json:"channel"`
	To             string        `json:"to"`
	Date           time.Time     `json:"date"`
	Seed           uuid.UUID     `json:"seed"`
}

type email struct {
	From    mailbox  `json:"from"`
	ReplyTo string   `json:"reply_to,omitempty"`
	Headers []header `json:"headers,omitempty"`
	Subject string   `json:"subject"`
	HTML    string   `json:"html,omitempty"`
	Text    string   `json:"text,omitempty"`
}

type mailbox struct {
	Email string `json:"email"`
	Name  string `json:"name,omitempty"`
}

type header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type sms struct {
	Text string `json:"text"`
}

type push struct {
	Title string            `json:"title"`
	Body  string            `json:"body"`
	Link  string            `json:"link,omitempty"`
	Data  map[string]string `json:"data,omitempty"`
}

func request(m *sender.Message, channel lemma.Channel) any {
	e := envelope{Type: "message.send", NotificationID: m.Notification, Attempt: m.Attempt, Channel: channel, To: m.To,
		Date: m.Date.UTC(), Seed: m.Seed}
	switch channel {
	case lemma.SMS:
		return struct {
			envelope
			sms
		}{e, sms{m.Text}}
	case lemma.Push:
		return struct {
			envelope
			push
		}{e, push{m.Subject, m.Text, m.Link, m.Data}}
	}
	mail := email{From: mailbox{m.FromEmail, m.FromName}, ReplyTo: m.ReplyTo, Subject: m.Subject, HTML: m.HTML, Text: m.Text}
	for _, h := range m.Headers {
		mail.Headers = append(mail.Headers, header{h[0], h[1]})
	}
	return struct {
		envelope
		email
	}{e, mail}
}
