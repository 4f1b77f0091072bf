package esp

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"lemma/events"
	"lemma/sender"
	"lemma/sender/report"
)

type postmark struct{ secret string }

// postmarkEvent is the body of a request. All types of events share it.
type postmarkEvent struct {
	RecordType        string
	ID                int64
	MessageID         string
	Type              string
	Email, Recipient  string
	Details           string
	Description       string
	SuppressSending   bool
	SuppressionReason string
	Origin            string
	DeliveredAt       time.Time
	BouncedAt         time.Time
	ReceivedAt        time.Time
	ChangedAt         time.Time
	Metadata          map[string]string
}

// Receive is part of sender.Receiver.
func (p postmark) Receive(_ context.Context, r sender.WebhookRequest) ([]events.Report, error) {
	if err := sender.CheckSize(r.Body); err != nil {
		return nil, err
	}
	_, password, _ := (&http.Request{Header: r.Header}).BasicAuth()
	if !same(password, p.secret) && !same(r.Header.Get("X-Webhook-Token"), p.secret) {
		return nil, sender.ErrForged
	}
	var e postmarkEvent
	if err := read(r.Body, &e); err != nil {
		return nil, err
	}
	kind, at := e.report()
	if kind == "" {
		return nil, nil
	}
	detail := e.Details
	if detail == "" {
		detail = e.Description
	}
	notification, to := e.notification(), e.Email+e.Recipient // an event has one of them
	one := events.Report{ID: e.id(at), Notification: notification, CarrierID: report.Short(e.MessageID), Type: kind,
		Address: report.Recipient(kind, notification, to),
		Reason:  report.Reason(r.Redact.Text(e.Type)), Code: report.Code(detail), Detail: sender.Detail(r.Redact, detail, to),
		OccurredAt: orNow(at, r.At)}
	return []events.Report{one}, nil
}

// id is made of what stays the same when an event is sent again, since most have no id.
func (e *postmarkEvent) id(at time.Time) string {
	switch {
	case e.ID != 0:
		return e.RecordType + "/" + strconv.FormatInt(e.ID, 10)
	case e.MessageID == "":
		return ""
	case at.IsZero():
		return e.RecordType + "/" + e.MessageID
	}
	return fmt.Sprintf("%s/%s/%d", e.RecordType, e.MessageID, at.UnixMilli())
}

func (e *postmarkEvent) notification() string {
	for name, value := range e.Metadata {
		if strings.EqualFold(name, "lemma-ntf") {
			return report.Notification(value)
		}
	}
	return ""
}

// report is the table in the package's comment, with the time of the event.
func (e *postmarkEvent) report() (events.Type, time.Time) {
	switch e.RecordType {
	case "Delivery":
		return events.TypeDelivered, e.DeliveredAt
	case "Bounce":
		return e.bounce(), e.BouncedAt
	case "SpamComplaint":
		return events.TypeComplained, e.BouncedAt
	case "Open":
		return events.TypeOpened, e.ReceivedAt
	case "Click":
		return events.TypeClicked, e.ReceivedAt
	case "SubscriptionChange":
		if e.SuppressSending && e.SuppressionReason == "ManualSuppression" && e.Origin == "Recipient" {
			return events.TypeUnsubscribed, e.ChangedAt
		}
	}
	return "", time.Time{}
}

func (e *postmarkEvent) bounce() events.Type {
	switch e.Type {
	case "HardBounce", "BadEmailAddress":
		return events.TypeBounced
	case "SoftBounce", "DnsError":
		return events.TypeSoftBounced
	case "Transient":
		return events.TypeDelayed
	case "Unsubscribe":
		return events.TypeUnsubscribed
	case "SpamComplaint":
		return events.TypeComplained
	case "Subscribe", "AutoResponder", "AddressChange", "ChallengeVerification", "OpenRelayTest":
		return ""
	}
	return events.TypeUndelivered
}
