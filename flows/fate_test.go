package flows

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"lemma"
	"lemma/webhooks"
)

// answering is an endpoint that answers with a status.
func (b *bundle) answering(status *atomic.Int32) string {
	b.t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(status.Load())) }))
	b.t.Cleanup(server.Close)
	e, _, err := b.rooms.Webhooks.Create(bg, b.ws, webhooks.NewEndpoint{ID: lemma.NewID(), Name: server.URL, URL: server.URL})
	b.must(err)
	return lemma.FormatID(lemma.PrefixEndpoint, e.ID)
}

// call has the outbox call what is due.
func (b *bundle) call() {
	b.t.Helper()
	if n, err := b.rooms.Webhooks.RunOnce(bg); err != nil || n != 1 {
		b.t.Fatalf("%d messages were called: %v", n, err)
	}
}

// stepOf is the only step of a person's history with an event.
func (b *bundle) stepOf(e Enrollment, event string) Step {
	b.t.Helper()
	_, all, err := b.Steps(bg, b.ws, e.ID)
	b.must(err)
	for _, s := range all {
		if s.Event == event {
			return s
		}
	}
	b.t.Fatalf("no step %s in %+v", event, all)
	return Step{}
}

const tells = `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"tell","nodes":{
	"tell":{"type":"webhook","endpoint_id":"$endpoint","next":"end"},"end":{"type":"exit"}}}`

// While an endpoint fails, the history of whoever waits for it says so, and so
// does the explanation.
func TestAFailingEndpointIsSeen(t *testing.T) {
	b := setup(t, 1)
	var status atomic.Int32
	flow := b.live(strings.ReplaceAll(tells, "$endpoint", b.answering(&status)))
	b.tell("c1", "go")
	b.settleDown()
	e := b.enrollment(flow, "c1")
	id := NodeKey(e.ID, "tell")
	if m := b.stepOf(e, "webhook").Message; m == nil || m.ID != id || m.State != webhooks.Pending || m.Attempts != 0 || m.NextAt == nil {
		t.Errorf("nobody has called yet: %+v", m)
	}
	b.whyIs(flow, "c1", "The profile is on its way: enrolled at T in version 1, it stands at the node tell; its message is to be called at T.")

	status.Store(500)
	b.call()
	b.run(b.pool, `update outbox set due_at = now()`)
	b.call()
	if m := b.stepOf(e, "webhook").Message; m == nil || m.State != webhooks.Pending || m.Attempts != 2 || m.Status != 500 || m.Reason != "status" || m.CalledAt == nil || m.NextAt == nil || !m.NextAt.After(*m.CalledAt) {
		t.Errorf("it fails: %+v", m)
	}
	b.whyIs(flow, "c1", "The profile is on its way: enrolled at T in version 1, it stands at the node tell; its message was called 2 times, last answered 500, next try at T.")
	b.run(b.pool, `update outbox set status_code = null, last_error = 'timeout'`)
	b.whyIs(flow, "c1", "The profile is on its way: enrolled at T in version 1, it stands at the node tell; its message was called 2 times, the last ended as timeout, next try at T.")
	b.run(b.pool, `update outbox set leased_by = 'x', lease_until = now() + interval '1 minute'`)
	b.whyIs(flow, "c1", "The profile is on its way: enrolled at T in version 1, it stands at the node tell; its message is being called, 2 times by now.")
	b.run(b.pool, `update outbox set leased_by = null, lease_until = null, due_at = now()`)

	status.Store(404)
	b.call()
	b.whyIs(flow, "c1", "The profile is on its way: enrolled at T in version 1, it stands at the node tell; its message failed, called 3 times, last answered 404.")
	b.settleDown()
	if m := b.stepOf(e, "webhook").Message; m == nil || m.State != webhooks.Failed || m.Status != 404 || m.FinishedAt == nil || m.NextAt != nil {
		t.Errorf("it has failed: %+v", m)
	}
	b.run(b.pool, `delete from outbox`)
	if m := b.stepOf(e, "webhook").Message; m == nil || m.ID != id || m.State != "" {
		t.Errorf("it is not kept any more: %+v", m)
	}
}

// A history says of each letter what became of it, and names none where a
// webhook was left out.
func TestTheHistoryKnowsWhatBecameOfLetters(t *testing.T) {
	b := setup(t, 2)
	b.run(b.shop, `update customers set opted_out = true where id = 'c2'`)
	flow := b.live(welcome)
	b.tell("c1", "signed_up")
	b.tell("c2", "signed_up")
	b.settleDown()
	written, skipped := b.enrollment(flow, "c1"), b.enrollment(flow, "c2")
	if s := b.stepOf(written, "sent"); s.NotificationID == "" || s.Notification == nil || s.Notification.Status != "pending" || s.Notification.Reason != nil {
		t.Errorf("it was only written: %+v", s)
	}
	b.run(b.pool, `insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis, reason)
		select workspace_id, batch_id, ordinal, 1, 'rejected', true, 'response', 'mailbox_unknown' from notifications where batch_id is not null`)
	if s := b.stepOf(written, "sent"); s.Notification == nil || s.Notification.Status != "failed" || *s.Notification.Reason != "mailbox_unknown" {
		t.Errorf("it was refused: %+v", s)
	}
	if s := b.stepOf(skipped, "skipped"); s.Notification == nil || s.Notification.Status != "skipped" || *s.Notification.Reason != "unsubscribed" {
		t.Errorf("she was skipped: %+v", s)
	}
	if s := b.stepOf(written, "enrolled"); s.Notification != nil || s.Message != nil || s.NotificationID != "" {
		t.Errorf("nothing was written here: %+v", s)
	}
	b.run(b.pool, `update enrollment_steps set data = '{"reason":"already_called"}' where event = 'skipped'`)
	if s := b.stepOf(skipped, "skipped"); s.Notification != nil || s.NotificationID != "" {
		t.Errorf("a webhook has no notification: %+v", s)
	}
}
