package intake_test

import (
	"fmt"
	"strings"
	"testing"

	"lemma/flows/flowstest"
	"lemma/flows/intake"
)

// expecting waits for an event for a day.
const expecting = `{"audience_id":"$audience","triggers":[{"type":"event","event":"cart"}],"recurrence":{"policy":"once"},"start":"first",
	"nodes":{
	"first":{"type":"delay","for":"P1D","next":"buy"},
	"buy":{"type":"wait_for_event","event":"bought","timeout":"P1D","next":"thanks","on_timeout":"nudge"},
	"thanks":{"type":"exit","goal":true},"nudge":{$send,"next":"end"},"end":{"type":"exit"}}}`

// The event arrives while a worker is about to enter the wait for it. It matches at once,
// and not only when the wait times out.
func TestAnEventComesWhileItsWaitIsEntered(t *testing.T) {
	b := setup(t, 1)
	for _, stage := range flowstest.Stages {
		flow := b.Live(strings.ReplaceAll(strings.ReplaceAll(expecting, "bought", "bought at "+stage), "cart", "cart at "+stage))
		b.RecordEvent("c1", "cart at "+stage)
		b.Settle()
		id := b.Enrollment(flow, "c1").ID
		b.Wake(id)
		r := b.boughtAt(stage)
		if got, want := b.Trace(id), "enrolled@ checked@ resumed@first resumed@buy completed@thanks"; got != want {
			t.Errorf("%s, %d woken: %s", stage, r.Woken, got)
		}
		b.Invariants(stage)
	}
}

// The reverse: the event is being recorded when the worker enters the wait.
func TestAWaitIsEnteredWhileItsEventComes(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(expecting)
	b.RecordEvent("c1", "cart")
	b.Settle()
	id := b.Enrollment(flow, "c1").ID
	b.Wake(id)
	tx, r := b.holdTrigger(intake.Event{ProfileKey: "c1", Name: "bought"})
	w := b.StopAt("locked")
	b.Until(0, w.Done)
	b.Must(tx.Commit(bg))
	b.Must(w.End())
	b.Settle()
	if got, want := b.Trace(id), "enrolled@ checked@ resumed@first resumed@buy completed@thanks"; got != want {
		t.Errorf("%d woken: %s", r[0].Woken, got)
	}
	b.Invariants()
}

// An event after the trigger and before the first chunk is not lost for an enrollment that
// begins with the wait for it.
func TestAnEventComesBeforeTheFirstChunk(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(`{"triggers":[{"type":"event","event":"cart"}],"recurrence":{"policy":"once"},"start":"buy","nodes":{
		"buy":{"type":"wait_for_event","event":"bought","timeout":"P1D","next":"thanks","on_timeout":"nudge"},"thanks":{"type":"exit"},
			"nudge":{"type":"exit"}}}`)
	b.RecordEvent("c1", "cart")
	b.RecordEvent("c1", "bought")
	b.Settle()
	b.WantTrace(b.Enrollment(flow, "c1").ID, "enrolled@ checked@ resumed@buy completed@thanks")
}

// The event arrives just before the wait for it times out, while a worker is about to end
// the wait: one of them ends it, and both report the same.
func TestAnEventComesWhileItsWaitTimesOut(t *testing.T) {
	b := setup(t, 1)
	for _, stage := range flowstest.Stages {
		flow := b.Live(strings.ReplaceAll(strings.ReplaceAll(expecting, "bought", "bought at "+stage), "cart", "cart at "+stage))
		b.RecordEvent("c1", "cart at "+stage)
		b.Settle()
		id := b.Enrollment(flow, "c1").ID
		b.TimeOut()
		b.Wake(id)
		r := b.boughtAt(stage)
		want := "enrolled@ checked@ resumed@first timed_out@buy sent@nudge completed@end" // the event came after the time
		if got := b.Trace(id); got != want || r.Woken != 0 {
			t.Errorf("%s: %d woken, %s", stage, r.Woken, got)
		}
		b.Invariants(stage)
	}
}

// The goal is reached while a worker is about to write a message: after the answer nothing
// is written, and before it nothing is undone.
func TestAGoalIsReachedBesideAWorker(t *testing.T) {
	b := setup(t, 2)
	for _, awakes := range []bool{false, true} {
		for _, stage := range flowstest.Stages {
			goal := fmt.Sprintf("goal %s %v", stage, awakes)
			s := b.PairOf(strings.Replace(flowstest.TwoMessages, `"start"`, `"exit_on":[{"event":"`+goal+`","goal":true}],"start"`, 1),
				awakes)
			w := b.StopAt(stage)
			b.Reached(w)
			var r intake.Recorded
			var answered string
			event := flowstest.Start(func() (err error) {
				r, err = b.Another().Record(bg, b.Workspace, intake.Event{ProfileKey: "c1", Name: goal})
				answered = b.Row(s.C1)
				return err
			})
			b.Until(0, event.Done)
			b.Must(w.End())
			<-event.Done
			b.Must(event.Err)
			if now := b.Row(s.C1); now != answered {
				t.Errorf("%s: after the answer:\n%s\n%s", goal, answered, now)
			}
			early := stage == "read" || stage == "evaluated"
			if exits := early || !awakes; (r.Exited == 1) != exits {
				t.Errorf("%s: %d exited", goal, r.Exited)
			}
			if n := flowstest.Conflicts(w.Process); (n == 1) != early {
				t.Errorf("%s: overtaken %d times", goal, n)
			}
			b.Invariants(goal)
			s.Finish()
			b.Invariants(goal, "at the end")
		}
	}
}

// boughtAt records "bought" while a worker has reached stage, and lets both end.
func (b *bundle) boughtAt(stage string) (r intake.Recorded) {
	b.T.Helper()
	w := b.StopAt(stage)
	b.Reached(w)
	event := flowstest.Start(func() (err error) {
		r, err = b.Another().Record(bg, b.Workspace, intake.Event{ProfileKey: "c1", Name: "bought at " + stage})
		return err
	})
	b.Until(0, event.Done)
	b.Must(w.End())
	<-event.Done
	b.Must(event.Err)
	b.Settle()
	return r
}
