package ses

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"lemma/events"
	"lemma/sender"
	"lemma/sender/redact"
	"lemma/sender/report"
	"lemma/sender/ses/sns"
)

// event is a record of event publishing, or a feedback notification of an identity, as Amazon
// SES publishes it to Amazon SNS. Both have the same objects. A notification has no tags, so
// that it names no message of Lemma.
type event struct {
	EventType        string
	NotificationType string // of a feedback notification
	Mail             struct {
		MessageID string              `json:"messageId"`
		Tags      map[string][]string `json:"tags"`
		To        []string            `json:"destination"`
	}
	Bounce struct {
		BounceType, BounceSubType string
		BouncedRecipients         []recipientStatus
		Timestamp                 time.Time
	}
	Complaint struct {
		ComplainedRecipients                    []recipientStatus
		ComplaintFeedbackType, ComplaintSubType string
		Timestamp                               time.Time
	}
	Delivery struct {
		Recipients   []string
		SMTPResponse string `json:"smtpResponse"`
		Timestamp    time.Time
	}
	DeliveryDelay struct {
		DelayType         string
		DelayedRecipients []recipientStatus
		Timestamp         time.Time
	}
	Reject       struct{ Reason string }
	Failure      struct{ ErrorMessage string }
	Open         struct{ Timestamp time.Time }
	Click        struct{ Timestamp time.Time }
	Subscription struct {
		NewTopicPreferences struct{ UnsubscribeAll bool }
		Timestamp           time.Time
	}
}

type recipientStatus struct{ EmailAddress, Status, DiagnosticCode string }

// testMessage is what Amazon SES publishes when a topic is added to a configuration set.
const testMessage = "Successfully validated SNS topic"

// reports are the reports of a notification, one for each recipient that it names.
func reports(m *sns.Message, secrets *redact.Secrets) ([]events.Report, error) {
	if strings.HasPrefix(m.Message, testMessage) {
		return nil, nil
	}
	var e event
	if err := json.Unmarshal([]byte(m.Message), &e); err != nil {
		return nil, fmt.Errorf("not an event of Amazon SES: %w", sender.ErrUnreadable)
	}
	if e.EventType = cmp.Or(e.EventType, e.NotificationType); e.EventType == "" {
		return nil, fmt.Errorf("an event without a type: %w", sender.ErrUnreadable)
	}
	list := e.list(secrets)
	for i := range list {
		r := &list[i]
		r.ID = m.MessageID
		if i > 0 {
			r.ID += "/" + strconv.Itoa(i)
		}
		r.Notification, r.Attempt = e.sent()
		r.Address = report.Recipient(r.Type, r.Notification, cmp.Or(r.Address, e.recipient()))
		r.CarrierID = report.Short(e.Mail.MessageID)
		if r.OccurredAt.IsZero() {
			r.OccurredAt = m.SentAt
		}
	}
	return list, nil
}

// sent are the notification and the attempt, as the tags of the message name them.
func (e *event) sent() (notification string, attempt int) {
	if ids := e.Mail.Tags["lemma_ntf"]; len(ids) > 0 {
		notification = report.Notification(ids[0])
	}
	if numbers := e.Mail.Tags["lemma_attempt"]; len(numbers) > 0 {
		attempt = report.Attempt(numbers[0])
	}
	return notification, attempt
}

// recipient is that of the message; empty if it has several, of which any may be meant.
func (e *event) recipient() string {
	if len(e.Mail.To) != 1 {
		return ""
	}
	return e.Mail.To[0]
}

// list is the table of events in the package's comment. A message of Lemma has one
// recipient.
func (e *event) list(secrets *redact.Secrets) []events.Report {
	one := func(kind events.Type, at time.Time, detail string) []events.Report {
		to := ""
		if len(e.Mail.To) > 0 {
			to = e.Mail.To[0]
		}
		return []events.Report{{Type: kind, OccurredAt: at, Code: report.Code(detail), Detail: sender.Detail(secrets, detail, to)}}
	}
	switch e.EventType {
	case "Send":
		return one(events.TypeAccepted, time.Time{}, "")
	case "Reject":
		return one(events.TypeRejected, time.Time{}, e.Reject.Reason)
	case "Rendering Failure":
		return one(events.TypeRejected, time.Time{}, e.Failure.ErrorMessage)
	case "Delivery":
		return one(events.TypeDelivered, e.Delivery.Timestamp, e.Delivery.SMTPResponse)
	case "DeliveryDelay":
		return of(secrets, events.TypeDelayed, e.DeliveryDelay.DelayType, e.DeliveryDelay.Timestamp, e.DeliveryDelay.DelayedRecipients)
	case "Bounce":
		return of(secrets, e.bounce(), e.Bounce.BounceSubType, e.Bounce.Timestamp, e.Bounce.BouncedRecipients)
	case "Complaint":
		return e.complaint(secrets)
	case "Open":
		return one(events.TypeOpened, e.Open.Timestamp, "")
	case "Click":
		return one(events.TypeClicked, e.Click.Timestamp, "")
	case "Subscription":
		if e.Subscription.NewTopicPreferences.UnsubscribeAll {
			return one(events.TypeUnsubscribed, e.Subscription.Timestamp, "")
		}
	}
	return nil
}

func (e *event) bounce() events.Type {
	switch e.Bounce.BounceType + " " + e.Bounce.BounceSubType {
	case "Permanent UnsubscribedRecipient":
		return events.TypeUnsubscribed
	case "Transient General", "Transient MailboxFull":
		return events.TypeSoftBounced
	}
	if e.Bounce.BounceType == "Permanent" {
		return events.TypeBounced
	}
	return events.TypeUndelivered
}

// complaint reports nothing when the recipient reports that the message is no spam.
func (e *event) complaint(secrets *redact.Secrets) []events.Report {
	c := e.Complaint
	if c.ComplaintFeedbackType == "not-spam" {
		return nil
	}
	reason := c.ComplaintFeedbackType
	if reason == "" {
		reason = c.ComplaintSubType
	}
	return of(secrets, events.TypeComplained, reason, c.Timestamp, c.ComplainedRecipients)
}

// mostRecipients bounds the reports of one event. A message to Amazon SES has at most
// 50 recipients.
const mostRecipients = 50

// of makes a report for each recipient, and one when none is named.
func of(secrets *redact.Secrets, kind events.Type, reason string, at time.Time, recipients []recipientStatus) []events.Report {
	if len(recipients) == 0 {
		recipients = []recipientStatus{{}}
	}
	var list []events.Report
	for _, r := range recipients[:min(len(recipients), mostRecipients)] {
		text := r.DiagnosticCode
		if text == "" {
			text = r.Status
		}
		list = append(list, events.Report{Type: kind, Reason: report.Reason(secrets.Text(reason)), OccurredAt: at,
			Address: r.EmailAddress,
			Code:    report.Code(text), Detail: sender.Detail(secrets, text, r.EmailAddress)})
	}
	return list
}
