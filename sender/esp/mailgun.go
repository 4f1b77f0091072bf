package esp

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"lemma/events"
	"lemma/sender"
	"lemma/sender/report"
)

type mailgun struct{ key []byte }

type mailgunBody struct {
	Signature struct{ Timestamp, Token, Signature text }
	Event     mailgunEvent `json:"event-data"`
}

type mailgunEvent struct {
	ID        string
	Event     string
	Timestamp text
	Severity  string
	Reason    string
	Recipient string
	Status    struct {
		Code        text
		Enhanced    text   `json:"enhanced-code"`
		BounceType  string `json:"bounce-type"`
		Message     string
		Description string
	} `json:"delivery-status"`
	Message struct {
		Headers struct {
			MessageID string `json:"message-id"`
		}
	}
	Variables json.RawMessage `json:"user-variables"` // an object; without variables also a list
}

// Receive is part of sender.Receiver.
func (m mailgun) Receive(_ context.Context, r sender.WebhookRequest) ([]events.Report, error) {
	if err := sender.CheckSize(r.Body); err != nil {
		return nil, err
	}
	var b mailgunBody // the signature is in the body
	if err := read(r.Body, &b); err != nil {
		return nil, err
	}
	if err := m.check(&b, r.At); err != nil {
		return nil, err
	}
	e := &b.Event
	kind := e.report()
	if kind == "" {
		return nil, nil
	}
	at := seconds(e.Timestamp, r.At)
	detail := e.Status.Message
	if detail == "" {
		detail = e.Status.Description
	}
	notification := e.notification()
	one := events.Report{Notification: notification, CarrierID: report.Short(e.Message.Headers.MessageID), Type: kind,
		Address: report.Recipient(kind, notification, e.Recipient),
		Reason:  report.Reason(r.Redact.Text(e.Reason)), Code: report.Code(string(e.Status.Code)),
		Detail: sender.Detail(r.Redact, detail, e.Recipient), OccurredAt: at}
	if e.ID != "" { // it is unique within a day
		one.ID = e.ID + "/" + at.Format(time.DateOnly)
	}
	return []events.Report{one}, nil
}

func (m mailgun) check(b *mailgunBody, at time.Time) error {
	s := b.Signature
	mac := hmac.New(sha256.New, m.key)
	mac.Write([]byte(s.Timestamp + s.Token))
	given, err := hex.DecodeString(string(s.Signature))
	if err != nil || s.Timestamp == "" || s.Token == "" || !hmac.Equal(given, mac.Sum(nil)) {
		return sender.ErrForged
	}
	return sender.CheckTime(seconds(s.Timestamp, time.Time{}), at)
}

func (e *mailgunEvent) notification() string {
	var variables struct {
		Notification string `json:"lemma_ntf"`
	}
	if json.Unmarshal(e.Variables, &variables) == nil && variables.Notification != "" {
		return report.Notification(variables.Notification)
	}
	notification, _ := report.Key(nil).OfMessageID(e.Message.Headers.MessageID)
	return notification
}

// report is the table in the package's comment.
func (e *mailgunEvent) report() events.Type {
	switch e.Event {
	case "accepted":
		return events.TypeAccepted
	case "delivered":
		return events.TypeDelivered
	case "rejected":
		return events.TypeUndelivered
	case "complained":
		return events.TypeComplained
	case "unsubscribed":
		return events.TypeUnsubscribed
	case "opened":
		return events.TypeOpened
	case "clicked":
		return events.TypeClicked
	case "failed":
		return e.failure()
	}
	return ""
}

func (e *mailgunEvent) failure() events.Type {
	switch {
	case e.Severity == "temporary":
		return events.TypeDelayed
	case e.Reason == "suppress-complaint":
		return events.TypeComplained
	case e.Reason == "suppress-unsubscribe":
		return events.TypeUnsubscribed
	case e.Reason == "suppress-bounce", strings.EqualFold(e.Status.BounceType, "hard"):
		return events.TypeBounced
	case e.Reason == "old", strings.EqualFold(e.Status.BounceType, "soft"):
		return events.TypeSoftBounced
	}
	status := report.Status(string(e.Status.Enhanced))
	if status == "" {
		status = report.Status(e.Status.Message)
	}
	return report.Failure(status)
}
