package webhooks

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"lemma"
	"lemma/page"
	"lemma/pgtest"
)

// delivery reads the delivery status of one message; called and next report whether
// CalledAt and NextAt are set.
func (b bundle) delivery(id uuid.UUID) (d Delivery, called, next bool) {
	b.T.Helper()
	all, err := b.Deliveries(b.T.Context(), b.Workspace, []uuid.UUID{id})
	b.Must(err)
	d, found := all[id]
	if !found {
		b.T.Fatal("the message has no delivery")
	}
	return d, d.CalledAt != nil, d.NextAt != nil
}

// The delivery status is available from the write of a message to its end.
func TestDeliveries(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	m := b.written()
	holds := func(when, state string, attempts, status int, reason string, wantCalled, wantNext bool) {
		t.Helper()
		f, called, next := b.delivery(m.ID)
		if f.Status != state || f.Attempts != attempts || f.StatusCode != status || f.Reason != reason || called != wantCalled ||
			next != wantNext || (f.FinishedAt != nil) != (state != Pending) {
			t.Errorf("%s: %+v", when, f)
		}
	}
	holds("written", Pending, 0, 0, "", false, true)
	b.receiver.status(500)
	b.hook = func(stage string) {
		if stage == "called" {
			holds("being called", Pending, 1, 0, "", false, false)
		}
	}
	b.run(b.Webhooks, 1)
	b.hook = nil
	holds("called once", Pending, 1, 500, ReasonStatus, true, true)
	b.due()
	b.receiver.status(204)
	b.run(b.Webhooks, 1)
	holds("delivered", Delivered, 2, 204, "", true, false)

	refused := b.written()
	b.receiver.status(410)
	b.run(b.Webhooks, 1)
	if f, _, _ := b.delivery(refused.ID); f.Status != Failed || f.StatusCode != http.StatusGone || f.Reason != ReasonStatus ||
		f.EnrollmentID == nil || *f.EnrollmentID != refused.EnrollmentID {
		t.Errorf("refused: %+v", f)
	}
	if all, err := b.Deliveries(t.Context(), uuid.New(), []uuid.UUID{m.ID}); err != nil || len(all) != 0 {
		t.Errorf("another workspace sees %v, %v", all, err)
	}
}

// A message that is put back keeps the time of its call with the answer.
func TestPutBackIsACall(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	m := b.written()
	taken, err := b.claim(t.Context())
	b.Must(err)
	b.Must(b.putBack(taken[0], result{status: 200, final: true}, 0))
	if f, called, next := b.delivery(m.ID); f.Status != Pending || f.StatusCode != http.StatusOK || !called || !next {
		t.Errorf("%+v", f)
	}
}

// The pages of a list contain each message of one endpoint and status once.
func TestMessagesOfAnEndpoint(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e, _ := b.endpoint("/hook")
	other, _ := b.endpoint("/other")
	want := map[string][]uuid.UUID{}
	for i := range 15 {
		m := b.message(e)
		b.write(m, b.message(other))
		state := []string{Pending, Delivered, Failed}[i%3]
		want[state] = append(want[state], m.ID)
		ago := time.Duration(15-i/2) * time.Minute // some at the same time
		b.Exec(`update outbox set status = $2, due_at = date_trunc('minute', now()) - $3::interval,
			finished_at = case when $2 <> 'pending' then date_trunc('minute', now()) - $3::interval end where id = $1`, m.ID, state, ago)
	}
	for state, ids := range want {
		var got []uuid.UUID
		var times []time.Time
		for _, m := range pgtest.Pages(t, 2, func(cursor string) ([]Delivery, string, error) {
			return b.Messages(t.Context(), b.Workspace, e.ID, "", page.Query{Status: state, Limit: 2, Cursor: cursor})
		}) {
			at := m.NextAt
			if state != Pending {
				at = m.FinishedAt
			}
			if got, times = append(got, m.ID), append(times, *at); m.Status != state {
				t.Errorf("in the list of %s: %+v", state, m)
			}
		}
		sorted := cmpopts.SortSlices(func(a, b uuid.UUID) bool { return a.String() < b.String() })
		if d := cmp.Diff(ids, got, sorted); d != "" {
			t.Errorf("%s: %s", state, d)
		}
		ordered := slices.IsSortedFunc(times, func(a, b time.Time) int { return b.Compare(a) })
		if state == Pending {
			ordered = slices.IsSortedFunc(times, time.Time.Compare)
		}
		if !ordered {
			t.Errorf("%s: %v", state, times)
		}
	}
	_, next, err := b.Messages(t.Context(), b.Workspace, e.ID, "", page.Query{Status: Pending, Limit: 1})
	b.Must(err)
	tooLate := "delivered.99999999999999999." + uuid.NewString()
	for state, cursor := range map[string]string{Failed: next, Pending: next + "x", Delivered: tooLate} {
		_, _, err := b.Messages(t.Context(), b.Workspace, e.ID, "", page.Query{Status: state, Limit: 1, Cursor: cursor})
		if lemma.KindOf(err) != lemma.Invalid {
			t.Errorf("a foreign cursor: %v", err)
		}
	}
	if _, _, err := b.Messages(t.Context(), uuid.New(), e.ID, "", page.Query{Status: Pending, Limit: 1}); lemma.KindOf(err) != lemma.NotFound {
		t.Errorf("of another workspace: %v", err)
	}
}

// Health shows a failing endpoint long before GiveUp.
func TestHealth(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e, _ := b.endpoint("/hook")
	health := func() Health {
		t.Helper()
		h, err := b.Health(t.Context(), b.Workspace, e.ID)
		b.Must(err)
		return h
	}
	if d := cmp.Diff(Health{}, health()); d != "" {
		t.Errorf("of a new one: %s", d)
	}
	b.write(b.message(e))
	b.run(b.Webhooks, 1)
	if h := health(); h.Pending != 0 || h.OldestPending != nil || h.LastDelivered == nil || h.LastFailure != nil {
		t.Errorf("it accepts messages: %+v", h)
	}
	b.receiver.status(500)
	failing, waiting := b.message(e), b.message(e)
	b.write(failing)
	b.Exec(`update outbox set created_at = now() - interval '1 hour' where id = $1`, failing.ID)
	b.run(b.Webhooks, 1)
	b.write(waiting)
	h := health()
	if h.Pending != 2 || h.OldestPending == nil || time.Since(*h.OldestPending) < time.Hour || h.LastFailure == nil ||
		h.LastFailure.Status != 500 || h.LastFailure.Reason != ReasonStatus {
		t.Errorf("it fails: %+v", h)
	}
	b.Exec(`update outbox set due_at = now() + interval '1 hour' where id = $1`, failing.ID)
	b.receiver.status(404)
	b.run(b.Webhooks, 1)
	if h := health(); h.Pending != 1 || h.LastFailure == nil || h.LastFailure.Status != 404 {
		t.Errorf("it refuses: %+v", h)
	}
	b.Exec(`update outbox set called_at = now() + interval '1 second' where id = $1`, failing.ID)
	if h := health(); h.LastFailure == nil || h.LastFailure.Status != 500 {
		t.Errorf("the later failure belongs to a message that is retried: %+v", h)
	}
}

// A process whose claim has expired does not put back a message that another one has claimed.
func TestALostClaimPutsNothingBack(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.written()
	taken, err := b.claim(t.Context())
	b.Must(err)
	b.Exec(`update outbox set leased_by = 'another'`)
	b.Must(b.putBack(taken[0], result{status: 503, reason: ReasonStatus}, time.Minute))
	b.WantCount(1, `select count(*) from outbox where leased_by = 'another' and lease_until > now() and not waits`)
}
