package remote

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"lemma/client"
)

// The history shows the outcome of messages and webhooks.
func TestOutcomeOfAStep(t *testing.T) {
	t.Parallel()
	next := time.Date(2027, 1, 2, 15, 4, 5, 0, time.UTC)
	for want, s := range map[string]client.EnrollmentStep{
		"":     {},
		"sent": {Notification: &client.StepNotification{Status: new("sent")}},
		"sent 2, skipped 1": {Notification: &client.StepNotification{Status: new("skipped"), Reason: new("suppressed")},
			Others: []client.StepNotification{{Status: new("sent")}, {Status: new("sent")}}},
		"skipped: unsubscribed": {Notification: &client.StepNotification{Status: new("skipped"), Reason: new("unsubscribed")}},
		"pending after 4 calls, last 500, next 2027-01-02T15:04:05Z": {WebhookMessage: &client.WebhookMessage{Status: new("pending"),
			Attempts: new(4), StatusCode: new(500), Reason: new("status"), NextAt: &next}},
		"failed after 9 calls, last timeout": {WebhookMessage: &client.WebhookMessage{Status: new("failed"), Attempts: new(9),
			Reason: new("timeout")}},
		"pending after 0 calls, next 2027-01-02T15:04:05Z": {WebhookMessage: &client.WebhookMessage{Status: new("pending"),
			Attempts: new(0), NextAt: &next}},
		" ": {WebhookMessage: &client.WebhookMessage{}},
	} {
		if got := outcome(s); got != strings.TrimSpace(want) {
			t.Errorf("%q, not %q", got, want)
		}
	}
}

// The counts show a failed poll of the audience.
func TestCountsShowThePoll(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	why := "source_changed: a column is gone"
	read := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	err := showCounts(&out, client.FlowCounts{AudiencePoll: &client.AudiencePoll{LastPollAt: &read, RowsRead: 9,
		RefusedBy: map[string]int64{"invalid_key": 2}, Failures: 3, LastError: &why}})
	want := `(?s)audience read +2027-01-02T03:04:05Z.*not enrolled +invalid_key 2.*` +
		`failures since +3.*because of +source_changed: a column is gone.*next poll +none.*NODE`
	if err != nil || !regexp.MustCompile(want).MatchString(out.String()) {
		t.Errorf("%v: %s", err, out.String())
	}
}

// Control characters in data do not reach the terminal.
func TestTablesArePrintable(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := Table(&out, "A|B", []string{"x\x1b[2Jy\nz"}, func(s string) []string { return []string{s, "b"} }); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out.String(), "\x1b") || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("prints %q", out.String())
	}
}
