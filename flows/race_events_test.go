package flows

import (
	"fmt"
	"strings"
	"testing"
)

// expecting waits for an event for a day.
const expecting = `{"audience_id":"$audience","triggers":[{"type":"event","event":"cart"}],"recurrence":{"policy":"once"},"start":"first","nodes":{
	"first":{"type":"delay","for":"P1D","next":"buy"},
	"buy":{"type":"wait_for_event","event":"bought","timeout":"P1D","next":"thanks","on_timeout":"nudge"},
	"thanks":{"type":"exit","goal":true},"nudge":{$send,"next":"end"},"end":{"type":"exit"}}}`

// The event comes while a worker is about to enter the wait for it. It is
// heard at once, and not when the time is over.
func TestAnEventComesWhileItsWaitIsEntered(t *testing.T) {
	b := setup(t, 1)
	for _, stage := range stages {
		flow := b.live(strings.ReplaceAll(strings.ReplaceAll(expecting, "bought", "bought at "+stage), "cart", "cart at "+stage))
		b.tell("c1", "cart at "+stage)
		b.settleDown()
		id := b.enrollment(flow, "c1").ID
		b.wake(id)
		r := b.boughtAt(stage)
		if got, want := b.story(id), "enrolled@ checked@ resumed@first resumed@buy completed@thanks"; got != want {
			t.Errorf("%s, %d woken: %s", stage, r.Woken, got)
		}
		b.invariants(stage)
	}
}

// timeOut ends everybody's wait here and now, although it began only just now.
func (b *bundle) timeOut() {
	b.t.Helper()
	b.run(b.pool, `update enrollments set resume_at = now() where workspace_id = $1 and status = 'active'`, b.ws)
	b.settleDown()
}

// The other way round: the event has begun to be recorded when the worker comes.
func TestAWaitIsEnteredWhileItsEventComes(t *testing.T) {
	b := setup(t, 1)
	flow := b.live(expecting)
	b.tell("c1", "cart")
	b.settleDown()
	id := b.enrollment(flow, "c1").ID
	b.wake(id)
	tx, r := b.holdTrigger(Event{ProfileKey: "c1", Name: "bought"})
	w := b.stopAt("locked")
	b.until(0, w.done)
	b.must(tx.Commit(bg))
	b.must(w.ends())
	b.settleDown()
	if got, want := b.story(id), "enrolled@ checked@ resumed@first resumed@buy completed@thanks"; got != want {
		t.Errorf("%d woken: %s", r[0].Woken, got)
	}
	b.invariants()
}

// An event that comes after the trigger and before the first lot is not lost
// to a journey that begins with the wait for it.
func TestAnEventComesBeforeTheFirstLot(t *testing.T) {
	b := setup(t, 1)
	flow := b.live(`{"triggers":[{"type":"event","event":"cart"}],"recurrence":{"policy":"once"},"start":"buy","nodes":{
		"buy":{"type":"wait_for_event","event":"bought","timeout":"P1D","next":"thanks","on_timeout":"nudge"},"thanks":{"type":"exit"},"nudge":{"type":"exit"}}}`)
	b.tell("c1", "cart")
	b.tell("c1", "bought")
	b.settleDown()
	if got := b.story(b.enrollment(flow, "c1").ID); got != "enrolled@ checked@ resumed@buy completed@thanks" {
		t.Error(got)
	}
}

// The event comes in the last moment of the wait for it, while a worker is
// about to end that: either ends it, and both say the same.
func TestAnEventComesWhileItsWaitTimesOut(t *testing.T) {
	b := setup(t, 1)
	for _, stage := range stages {
		flow := b.live(strings.ReplaceAll(strings.ReplaceAll(expecting, "bought", "bought at "+stage), "cart", "cart at "+stage))
		b.tell("c1", "cart at "+stage)
		b.settleDown()
		id := b.enrollment(flow, "c1").ID
		b.timeOut()
		b.wake(id)
		r := b.boughtAt(stage)
		want := "enrolled@ checked@ resumed@first timed_out@buy sent@nudge completed@end" // it came when the time was over
		if got := b.story(id); got != want || r.Woken != 0 {
			t.Errorf("%s: %d woken, %s", stage, r.Woken, got)
		}
		b.invariants(stage)
	}
}

// The goal is reached while a worker is about to write a letter: after the
// answer nothing is written, and before it nothing is undone.
func TestAGoalIsReachedBesideAWorker(t *testing.T) {
	b := setup(t, 2)
	for _, awakes := range []bool{false, true} {
		for _, stage := range stages {
			goal := fmt.Sprintf("goal %s %v", stage, awakes)
			s := b.sceneOf(strings.Replace(letters1, `"start"`, `"exit_on":[{"event":"`+goal+`","goal":true}],"start"`, 1), awakes)
			w := b.stopAt(stage)
			b.stands(w)
			var r Recorded
			var answered string
			event := start(func() (err error) {
				r, err = b.another().Record(bg, b.ws, Event{ProfileKey: "c1", Name: goal})
				answered = b.row(s.c1)
				return err
			})
			b.until(0, event.done)
			b.must(w.ends())
			<-event.done
			b.must(event.err)
			if now := b.row(s.c1); now != answered {
				t.Errorf("%s: after the answer:\n%s\n%s", goal, answered, now)
			}
			early := stage == "read" || stage == "walked"
			if exits := early || !awakes; (r.Exited == 1) != exits {
				t.Errorf("%s: %d exited", goal, r.Exited)
			}
			if n := overtaken(w.Flows); (n == 1) != early {
				t.Errorf("%s: overtaken %d times", goal, n)
			}
			b.invariants(goal)
			s.finish()
			b.invariants(goal, "at the end")
		}
	}
}

// boughtAt tells of "bought at stage" while a worker stands there, and lets both
// come to their end.
func (b *bundle) boughtAt(stage string) (r Recorded) {
	b.t.Helper()
	w := b.stopAt(stage)
	b.stands(w)
	event := start(func() (err error) {
		r, err = b.another().Record(bg, b.ws, Event{ProfileKey: "c1", Name: "bought at " + stage})
		return err
	})
	b.until(0, event.done)
	b.must(w.ends())
	<-event.done
	b.must(event.err)
	b.settleDown()
	return r
}
