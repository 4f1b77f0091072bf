package flows_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/pgtest"
)

// waitsFor5s waits for an event for five seconds, after whatever comes FIRST.
func waitsFor5s(first string) string {
	return strings.NewReplacer("FIRST", first).Replace(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],
		"recurrence":{"policy":"once"},"start":"first","nodes":{
		"first":{FIRST},
		"wait":{"type":"wait_for_event","event":"bought","timeout":"PT5S","next":"bought","on_timeout":"late"},"bought":{"type":"exit"},
			"late":{"type":"exit"}}}`)
}

const nothingFirst = `"type":"split","arms":[{"weight":1,"next":"wait"},{"weight":1,"next":"wait"}]`

// ago moves all recorded times into the past, as if no worker had run since.
func (b *bundle) ago(d time.Duration) {
	b.T.Helper()
	b.Exec(`update enrollments set enrolled_at = enrolled_at - $2::interval, resume_at = resume_at - $2::interval,
		first_due_at = first_due_at - $2::interval,
		waiting_since = waiting_since - $2::interval where workspace_id = $1 and status = 'active'`, b.Workspace, d)
	b.Exec(`update trigger_events set received_at = received_at - $2::interval where workspace_id = $1`, b.Workspace, d)
}

// A wait accepts the events within its time, from when it was reached on, however late a
// worker is.
func TestHowLateAWorkerComesDecidesNothing(t *testing.T) {
	const bought, late = "resumed@wait completed@bought", "timed_out@wait completed@late"
	for name, c := range map[string]struct {
		// From the trigger to the event before the worker, to the worker, and to the event after it;
		// 0: no event.
		before, worker, after time.Duration
		want                  string
	}{
		"in time, and the worker too":           {0, 1, 3, bought},
		"in time, and the worker is late":       {3, 8, 0, bought},
		"in time, and the worker is very late":  {3, 3600, 0, bought},
		"too late, and the worker came in time": {0, 1, 6, late},
		"too late, and the worker was late":     {0, 4, 8, late},
		"too late, and the worker was later":    {0, 8, 9, late},
		"too late, before a worker was there":   {6, 8, 0, late},
		"too late, also by the time of workers": {0, 8, 12, late},
		"nothing came, and the worker was late": {0, 8, 0, late},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 1)
			flow := b.Live(waitsFor5s(nothingFirst))
			b.RecordEvent("c1", "go")
			id, now := b.Enrollment(flow, "c1").ID, time.Duration(0)
			pass := func(to time.Duration) { b.ago((to - now) * time.Second); now = to }
			if c.before != 0 {
				pass(c.before)
				b.RecordEvent("c1", "bought")
			}
			pass(c.worker)
			if n, err := b.RunOnce(bg); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			if c.after != 0 {
				pass(c.after)
				if r := b.RecordEvent("c1", "bought"); r.Woken != 0 && c.want == late {
					t.Error("it was woken after its time")
				}
			}
			pass(now + 10)
			b.Settle()
			b.WantTrace(id, "enrolled@ checked@ split@first "+c.want)
			b.Invariants()
		})
	}
}

// A wait behind a message begins when the message was written: nothing could answer it
// before. Events in between still count.
func TestAWaitAfterAMessage(t *testing.T) {
	b := setup(t, 2)
	flow := b.Live(waitsFor5s(`$send,"next":"wait"`))
	b.RecordEvent("c1", "go")
	b.RecordEvent("c2", "go")
	b.ago(2 * time.Second)
	b.RecordEvent("c2", "bought")
	b.ago(6 * time.Second)
	for range 4 {
		_, err := b.RunOnce(bg)
		b.Must(err)
	}
	e := b.Enrollment(flow, "c1")
	if left := time.Until(*e.ResumeAt); left < 2*time.Second || left > 5*time.Second || e.Status != enrollment.Waiting {
		t.Errorf("%s for %s", e.Status, left)
	}
	if r := b.RecordEvent("c1", "bought"); r.Woken != 1 {
		t.Errorf("%d woken", r.Woken)
	}
	b.Settle()
	for _, profile := range []string{"c1", "c2"} {
		if got := b.Trace(b.Enrollment(flow, profile).ID); got != "enrolled@ checked@ sent@first resumed@wait completed@bought" {
			t.Errorf("%s: %s", profile, got)
		}
	}
}

// An enrollment that reaches a wait whose time is over is not shown as blocked, and its
// timeout still counts from its beginning when the wait is made longer.
func TestAWaitThatIsOverWhenItIsReached(t *testing.T) {
	b := setup(t, 1)
	text := waitsFor5s(nothingFirst)
	flow := b.Live(text)
	b.RecordEvent("c1", "go")
	b.ago(time.Minute)
	if n, err := b.RunOnce(bg); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	e := b.Enrollment(flow, "c1")
	if e.Node != "wait" || e.BlockedSince != nil || e.ResumeAt.After(time.Now()) || time.Since(*e.ResumeAt) > 50*time.Second {
		t.Errorf("%+v", e)
	}
	if got := b.deadline(e.ID).Sub(e.EnrolledAt); got != 5*time.Second {
		t.Errorf("the timeout is after %s", got)
	}
	b.PublishNext(flow, strings.Replace(text, "PT5S", "PT2M", 1), flows.InFlight{Mode: "move"})
	b.FinishMoves()
	if got := b.deadline(e.ID).Sub(e.EnrolledAt); got != 2*time.Minute {
		t.Errorf("the longer timeout is after %s", got)
	}
	if r := b.RecordEvent("c1", "bought"); r.Woken != 1 {
		t.Errorf("%d woken", r.Woken)
	}
}

// deadline is when a wait times out.
func (b *bundle) deadline(id uuid.UUID) time.Time {
	b.T.Helper()
	return pgtest.One[time.Time](b.T, b.Pool, `select coalesce(first_due_at, resume_at) from enrollments where workspace_id = $1 and id = $2`,
		b.Workspace, id)
}
