package query_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/query"
	"lemma/webhooks"
)

// stepOf is the only step of an enrollment with an event.
func (b *bundle) stepOf(e query.Enrollment, event string) query.Step {
	b.T.Helper()
	_, all, _, err := b.Steps(bg, b.Workspace, e.ID, -1)
	b.Must(err)
	for _, s := range all {
		if s.Event == event {
			return s
		}
	}
	b.T.Fatalf("no step %s in %+v", event, all)
	return query.Step{}
}

// While an endpoint fails, the history of a waiting enrollment shows it, and so does the
// explanation.
func TestAFailingEndpointIsSeen(t *testing.T) {
	b := setup(t, 1)
	var status atomic.Int32
	flow := b.Live(strings.ReplaceAll(flowstest.CallsWebhook, "$endpoint", b.AnsweringEndpoint(&status)))
	b.RecordEvent("c1", "go")
	b.Settle()
	e := b.Enrollment(flow, "c1")
	id := enrollment.NodeKey(e.ID, "notify")
	if m := b.stepOf(e, "webhook").Message; m == nil || m.ID != id || m.Status != webhooks.Pending || m.Attempts != 0 || m.NextAt == nil {
		t.Errorf("not called yet: %+v", m)
	}
	b.whyIs(flow, "c1", "The profile is enrolled: enrolled at T in version 1, it is at the node notify; its message is to be called at T.")

	status.Store(500)
	b.CallWebhooks()
	b.Exec(`update outbox set due_at = now()`)
	b.CallWebhooks()
	if m := b.stepOf(e, "webhook").Message; m == nil || m.Status != webhooks.Pending || m.Attempts != 2 ||
		m.StatusCode != http.StatusInternalServerError || m.Reason != "status" || m.CalledAt == nil ||
		m.NextAt == nil || !m.NextAt.After(*m.CalledAt) {
		t.Errorf("it fails: %+v", m)
	}
	b.whyIs(flow, "c1", "The profile is enrolled: enrolled at T in version 1, it is at the node notify; its message was called 2 times, "+
		"last "+
		"answered 500, next try at T.")
	b.Exec(`update outbox set status_code = null, last_error = 'timeout'`)
	b.whyIs(flow, "c1", "The profile is enrolled: enrolled at T in version 1, it is at the node notify; its message was called 2 times, the "+
		"last ended as timeout, next try at T.")
	b.Exec(`update outbox set leased_by = 'x', lease_until = now() + interval '1 minute'`)
	b.whyIs(flow, "c1",
		"The profile is enrolled: enrolled at T in version 1, it is at the node notify; its message is being called, 2 times by now.")
	b.Exec(`update outbox set leased_by = null, lease_until = null, due_at = now()`)

	status.Store(404)
	b.CallWebhooks()
	b.whyIs(flow, "c1", "The profile is enrolled: enrolled at T in version 1, it is at the node notify; its message failed, called 3 times, "+
		"last answered 404.")
	b.Settle()
	if m := b.stepOf(e, "webhook").Message; m == nil || m.Status != webhooks.Failed || m.StatusCode != http.StatusNotFound ||
		m.FinishedAt == nil || m.NextAt != nil {
		t.Errorf("the message has failed: %+v", m)
	}
	b.Exec(`delete from outbox`)
	if m := b.stepOf(e, "webhook").Message; m == nil || m.ID != id || m.Status != "" {
		t.Errorf("the message is still stored: %+v", m)
	}
}

// A history shows the outcome of each message, and no message where a webhook was skipped.
func TestTheHistoryShowsOutcomesOfMessages(t *testing.T) {
	b := setup(t, 2)
	b.ExecDB(`update customers set opted_out = true where id = 'c2'`)
	flow := b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up")
	b.RecordEvent("c2", "signed_up")
	b.Settle()
	written, skipped := b.Enrollment(flow, "c1"), b.Enrollment(flow, "c2")
	if s := b.stepOf(written,
		"sent"); s.NotificationID == "" || s.Notification == nil || s.Notification.Status != "pending" || s.Notification.Reason != nil {
		t.Errorf("it was written and not sent: %+v", s)
	}
	b.Exec(`insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis, reason)
		select workspace_id, batch_id, ordinal, 1, 'rejected', true, 'response', 'mailbox_unknown' from notifications where batch_id is not null`)
	if s := b.stepOf(written,
		"sent"); s.Notification == nil || s.Notification.Status != "failed" || *s.Notification.Reason != "mailbox_unknown" {
		t.Errorf("it was refused: %+v", s)
	}
	if s := b.stepOf(skipped,
		"skipped"); s.Notification == nil || s.Notification.Status != "skipped" || *s.Notification.Reason != "unsubscribed" {
		t.Errorf("it was skipped: %+v", s)
	}
	if s := b.stepOf(written, "enrolled"); s.Notification != nil || s.Message != nil || s.NotificationID != "" {
		t.Errorf("nothing was written here: %+v", s)
	}
	b.Exec(`update enrollment_steps set data = '{"reason":"already_called"}' where event = 'skipped'`)
	if s := b.stepOf(skipped, "skipped"); s.Notification != nil || s.NotificationID != "" {
		t.Errorf("a webhook has no notification: %+v", s)
	}
}
