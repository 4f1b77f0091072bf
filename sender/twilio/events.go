package twilio

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"lemma/events"
	"lemma/sender"
	"lemma/sender/report"
)

// statuses are the reports of the statuses of a message. failureType has those of
// failures.
var statuses = map[string]events.Type{
	"accepted": events.TypeAccepted, "scheduled": events.TypeAccepted, "queued": events.TypeAccepted, "sending": events.TypeAccepted,
	"sent": events.TypeAccepted, "delivered": events.TypeDelivered, "read": events.TypeOpened, "canceled": events.TypeUndelivered,
}

// The error codes that mean more than that a message was not delivered.
const codeUnsubscribed = "21610"

var (
	badNumbers = []string{"21211", "21214", "21217", "21614", "30005"}
	mayPass    = []string{"30003", "30006"}
)

// statusReports are the reports of a status callback. The URL names the notification.
func statusReports(query, form url.Values, w sender.WebhookRequest) ([]events.Report, error) {
	sid, status := report.Short(form.Get("MessageSid")), form.Get("MessageStatus")
	if sid == "" {
		return nil, fmt.Errorf("no MessageSid: %w", sender.ErrUnreadable)
	}
	code := form.Get("ErrorCode")
	kind, known := statuses[status]
	switch {
	case status == "undelivered" || status == "failed":
		kind = failureType(code)
	case !known:
		return nil, nil
	}
	notification, to := report.Notification(query.Get("n")), form.Get("To")
	one := events.Report{ID: sid + "/" + status, Notification: notification, Attempt: report.Attempt(query.Get("a")), CarrierID: sid,
		Address: report.Recipient(kind, notification, to), Type: kind, Reason: report.Reason(w.Redact.Text(status)),
		Detail: sender.Detail(w.Redact, form.Get("ErrorMessage"), to), OccurredAt: w.At.UTC()}
	if number, err := strconv.ParseUint(code, 10, 16); err == nil && number > 0 {
		one.Reason = "twilio_" + strconv.FormatUint(number, 10)
	}
	if code != codeUnsubscribed || kind != events.TypeUndelivered {
		return []events.Report{one}, nil
	}
	stopped := one
	stopped.ID, stopped.Type = sid+"/unsubscribed", events.TypeUnsubscribed
	stopped.Address = report.Recipient(stopped.Type, notification, to)
	return []events.Report{one, stopped}, nil
}

// failureType is the report of a failure by its error code.
func failureType(code string) events.Type {
	switch {
	case slices.Contains(badNumbers, code):
		return events.TypeBounced
	case slices.Contains(mayPass, code):
		return events.TypeSoftBounced
	}
	return events.TypeUndelivered
}

// stopWords are the keywords by which Twilio unsubscribes a recipient where Advanced
// Opt-Out is off.
var stopWords = []string{"STOP", "STOPALL", "UNSUBSCRIBE", "CANCEL", "END", "QUIT", "REVOKE", "OPTOUT"}

// messageReports is the report of a message from a recipient: that they unsubscribe. From may
// have the name of another channel before the number: whatsapp:+4930123456.
func messageReports(form url.Values, at time.Time) ([]events.Report, error) {
	sid := report.Short(form.Get("MessageSid"))
	if sid == "" {
		return nil, fmt.Errorf("no MessageSid: %w", sender.ErrUnreadable)
	}
	stop := form.Get("OptOutType") == "STOP" ||
		form.Get("OptOutType") == "" && slices.Contains(stopWords, strings.ToUpper(strings.TrimSpace(form.Get("Body"))))
	if stop {
		return []events.Report{{ID: sid + "/stop", CarrierID: sid, Address: form.Get("From"), Type: events.TypeUnsubscribed, Reason: "stop",
			OccurredAt: at.UTC()}}, nil
	}
	return nil, nil
}
