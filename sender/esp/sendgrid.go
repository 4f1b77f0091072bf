package esp

import (
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"lemma/events"
	"lemma/sender"
	"lemma/sender/report"
)

type sendgrid struct{ key *ecdsa.PublicKey }

type sendgridEvent struct {
	ID             string `json:"sg_event_id"`
	MessageID      string `json:"sg_message_id"`
	SMTPID         string `json:"smtp-id"`
	Notification   string `json:"lemma_ntf"` // our unique argument
	Event          string
	Email          string
	Timestamp      text
	Type           string
	Classification string `json:"bounce_classification"`
	Reason         string
	Response       string
}

// Receive is part of sender.Receiver.
func (s sendgrid) Receive(_ context.Context, r sender.WebhookRequest) ([]events.Report, error) {
	if err := sender.CheckSize(r.Body); err != nil {
		return nil, err
	}
	if err := s.check(r); err != nil {
		return nil, err
	}
	if n := report.LongestArray(r.Body); n > report.MostEvents {
		return nil, fmt.Errorf("%d events: %w", n, sender.ErrUnreadable)
	}
	var all []sendgridEvent
	if err := read(r.Body, &all); err != nil {
		return nil, err
	}
	var list []events.Report
	for i := range all {
		if kind := all[i].report(); kind != "" {
			list = append(list, all[i].as(kind, r))
		}
	}
	return list, nil
}

func (s sendgrid) check(r sender.WebhookRequest) error {
	stamp := r.Header.Get("X-Twilio-Email-Event-Webhook-Timestamp")
	signature, err := base64.StdEncoding.DecodeString(r.Header.Get("X-Twilio-Email-Event-Webhook-Signature"))
	if err != nil || stamp == "" {
		return sender.ErrForged
	}
	hash := sha256.New()
	hash.Write([]byte(stamp))
	hash.Write(r.Body)
	if !ecdsa.VerifyASN1(s.key, hash.Sum(nil), signature) {
		return sender.ErrForged
	}
	return sender.CheckTime(seconds(text(stamp), time.Time{}), r.At)
}

func (e *sendgridEvent) as(kind events.Type, r sender.WebhookRequest) events.Report {
	detail := e.Reason
	if detail == "" {
		detail = e.Response
	}
	notification := report.Notification(e.Notification)
	if notification == "" {
		notification, _ = report.Key(nil).OfMessageID(e.SMTPID)
	}
	reason := e.Classification
	if reason == "" && e.Event == "dropped" {
		reason = e.Reason
	}
	return events.Report{ID: report.Short(e.ID), Notification: notification, CarrierID: report.Short(e.MessageID), Type: kind,
		Address: report.Recipient(kind, notification, e.Email),
		Reason:  report.Reason(r.Redact.Text(reason)), Code: report.Code(detail), Detail: sender.Detail(r.Redact, detail, e.Email),
		OccurredAt: seconds(e.Timestamp, r.At)}
}

// report is the table in the package's comment.
func (e *sendgridEvent) report() events.Type {
	switch e.Event {
	case "processed":
		return events.TypeAccepted
	case "delivered":
		return events.TypeDelivered
	case "deferred":
		return events.TypeDelayed
	case "bounce", "blocked":
		return e.bounce()
	case "dropped":
		return e.drop()
	case "spamreport":
		return events.TypeComplained
	case "unsubscribe", "group_unsubscribe":
		return events.TypeUnsubscribed
	case "open":
		return events.TypeOpened
	case "click":
		return events.TypeClicked
	}
	return ""
}

func (e *sendgridEvent) bounce() events.Type {
	blocked := e.Event == "blocked" || e.Type == "blocked"
	switch strings.ToLower(e.Classification) {
	case "content", "reputation", "technical", "frequency or volume too high":
		return events.TypeUndelivered
	case "mailbox unavailable":
		if blocked {
			return events.TypeSoftBounced
		}
	default:
		if blocked {
			return events.TypeUndelivered
		}
	}
	return events.TypeBounced
}

func (e *sendgridEvent) drop() events.Type {
	switch strings.ToLower(e.Reason) {
	case "bounced address", "invalid":
		return events.TypeBounced
	case "spam reporting address":
		return events.TypeComplained
	case "unsubscribed address":
		return events.TypeUnsubscribed
	}
	return events.TypeUndelivered
}
