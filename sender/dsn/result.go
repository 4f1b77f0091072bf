package dsn

import (
	"net/mail"
	"strings"
	"time"

	"lemma/events"
	"lemma/sender"
	"lemma/sender/redact"
	"lemma/sender/report"
)

// ranks order the results of several addresses. The best is reported.
var ranks = map[events.Type]int{
	events.TypeDelivered: 6, events.TypeAccepted: 5, events.TypeDelayed: 4, events.TypeUndelivered: 3, events.TypeSoftBounced: 2,
	events.TypeBounced: 1,
}

// report is the result of the mail. Its type is empty when it has none.
func (m *mailReport) report(secrets *redact.Secrets) events.Report {
	if m.feedback != nil {
		return m.complaint(secrets)
	}
	var best events.Report
	for _, block := range m.status {
		if valueOf(block, "action") == "" {
			continue // the fields of the message
		}
		if r := result(block, m.date, secrets); ranks[r.Type] > ranks[best.Type] {
			best = r
		}
	}
	return best
}

func (m *mailReport) complaint(secrets *redact.Secrets) events.Report {
	kind := valueOf(m.feedback, "feedback-type")
	r := events.Report{Reason: report.Reason(secrets.Text(kind)), OccurredAt: firstDate(m.date, m.feedback, "arrival-date", "received-date")}
	switch strings.ToLower(kind) {
	case "abuse", "fraud", "virus", "other":
		r.Type = events.TypeComplained
	case "opt-out", "opt-out-list":
		r.Type = events.TypeUnsubscribed
	}
	return r
}

// result is the result of one address.
func result(block []field, date time.Time, secrets *redact.Secrets) events.Report {
	diagnostic := valueOf(block, "diagnostic-code")
	status := statusOf(valueOf(block, "status"), diagnostic)
	r := events.Report{Reason: status, Code: report.Code(diagnostic), Detail: sender.Detail(secrets, diagnostic, addressOf(block)),
		OccurredAt: firstDate(date, block, "last-attempt-date")}
	action, _, _ := strings.Cut(strings.ToLower(valueOf(block, "action")), " ")
	switch action {
	case "failed":
		r.Type = report.Failure(status)
	case "delayed":
		r.Type = events.TypeDelayed
	case "relayed":
		r.Type = events.TypeAccepted
	case "delivered", "expanded":
		r.Type = events.TypeDelivered
	}
	return r
}

// statusOf is the more exact of two status codes.
func statusOf(status, diagnostic string) string {
	status = report.Status(status)
	if more := report.Status(diagnostic); status == "" || strings.HasSuffix(status, ".0.0") && more != "" {
		return more
	}
	return status
}

// addressOf is the address that a block is about, which a detail must not have.
func addressOf(block []field) string {
	for _, name := range []string{"final-recipient", "original-recipient"} {
		if _, address, ok := strings.Cut(valueOf(block, name), ";"); ok {
			return strings.Trim(strings.TrimSpace(address), "<>")
		}
	}
	return ""
}

// firstDate is the first date of the fields that can be read, or otherwise the given one.
func firstDate(otherwise time.Time, block []field, names ...string) time.Time {
	for _, name := range names {
		if t, err := mail.ParseDate(valueOf(block, name)); err == nil {
			return t
		}
	}
	return otherwise
}
