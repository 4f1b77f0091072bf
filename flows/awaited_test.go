package flows

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// twoWaits waits for an event and then for another, or for another one of the
// same name.
func twoWaits(first, second string) string {
	return strings.NewReplacer("FIRST", first, "SECOND", second).Replace(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"per_event"},"start":"w1","nodes":{
	"w1":{"type":"wait_for_event","event":"FIRST","timeout":"P1D","next":"w2","on_timeout":"late1"},
	"w2":{"type":"wait_for_event","event":"SECOND","timeout":"P1D","next":"done","on_timeout":"late2"},
	"late1":{"type":"exit"},"late2":{"type":"exit"},"done":{"type":"exit"}}}`)
}

const bothHeard = "enrolled@ checked@ resumed@w1 resumed@w2 completed@done"

// What ended one wait is not what the next one has heard.
func TestAnEventEndsOneWaitAndNotTheNext(t *testing.T) {
	b := setup(t, 2)
	flow := b.live(twoWaits("a", "b"))
	for _, profile := range []string{"c1", "c2"} {
		b.tell(profile, "go")
		b.settleDown()
		b.tell(profile, "a")
		b.settleDown()
	}
	if r := b.tell("c1", "b"); r.Woken != 1 {
		t.Errorf("%d woken", r.Woken)
	}
	b.settleDown()
	if got := b.story(b.enrollment(flow, "c1").ID); got != bothHeard {
		t.Error(got)
	}
	b.pass(25 * time.Hour)
	b.settleDown()
	if got := b.story(b.enrollment(flow, "c2").ID); got != "enrolled@ checked@ resumed@w1 timed_out@w2 completed@late2" {
		t.Error(got)
	}
	b.invariants()
}

// A delay after a wait that ended with an event is a delay like any other.
func TestADelayAfterAnAwaitedEventIsShifted(t *testing.T) {
	b := setup(t, 1)
	text := `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"w1","nodes":{
		"w1":{"type":"wait_for_event","event":"a","timeout":"P1D","next":"pause","on_timeout":"end"},"pause":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`
	flow := b.live(text)
	b.tell("c1", "go")
	b.settleDown()
	b.tell("c1", "a")
	b.settleDown()
	was := b.enrollment(flow, "c1")
	b.publish(flow, strings.Replace(text, `"for":"P1D"`, `"for":"P3D"`, 1), InFlight{Mode: "move"})
	b.moveAllOver()
	if is := b.enrollment(flow, "c1"); !is.ResumeAt.Equal(was.ResumeAt.Add(48 * time.Hour)) {
		t.Errorf("from %s to %s", was.ResumeAt, is.ResumeAt)
	}
}

// Each event ends one wait: one that came while a worker was on the way to the
// first, and each of several that came before a late one.
func TestEachEventEndsOneWait(t *testing.T) {
	b := setup(t, 3)
	flow := b.live(twoWaits("a", "a"))
	b.tell("c1", "go")
	w := b.stopAt("walked")
	b.stands(w)
	b.tell("c1", "a")
	b.must(w.ends())
	b.settleDown()
	if got := b.story(b.enrollment(flow, "c1").ID); got != "enrolled@ checked@ resumed@w1" {
		t.Errorf("one event: %s", got)
	}
	for profile, lots := range map[string][][]string{"c2": {{"go"}, {"a"}, {"a"}}, "c3": {{"go", "a", "a"}}} {
		for _, lot := range lots {
			b.tellAll(profile, lot...)
		}
		b.settleDown() // the worker comes late
		if got := b.story(b.enrollment(flow, profile).ID); got != bothHeard {
			t.Errorf("%s: %s", profile, got)
		}
	}
	b.invariants()
}

// Who has heard what she waits for is where she was when it came, however long
// that wait has become since.
func TestAnEndedWaitIsNotShifted(t *testing.T) {
	b := setup(t, 1)
	text := twoWaits("a", "a")
	flow := b.live(text)
	b.tellAll("c1", "go", "a")
	if n, err := b.RunOnce(bg); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	b.tell("c1", "a")
	b.publish(flow, strings.Replace(text, "P1D", "P3D", 1), InFlight{Mode: "move"})
	b.moveAllOver()
	b.settleDown()
	if got := b.story(b.enrollment(flow, "c1").ID); got != "enrolled@ checked@ moved@w1 resumed@w1 resumed@w2 completed@done" {
		t.Error(got)
	}
}

// tellAll records events of a profile in one transaction.
func (b *bundle) tellAll(profile string, names ...string) []Recorded {
	b.t.Helper()
	var all []Event
	for _, name := range names {
		all = append(all, Event{ProfileKey: profile, Name: name})
	}
	done, err := b.RecordAll(bg, b.ws, all)
	b.must(err)
	return done
}

// A wait is found to have ended with an event only when its time is over. The
// event after that is what the next wait has heard.
func TestTheLastLookFindsOneEventForEachWait(t *testing.T) {
	b := setup(t, 1)
	flow := b.live(twoWaits("a", "a"))
	b.tell("c1", "go")
	b.settleDown()
	b.tellAll("c1", "a", "a")
	id := b.enrollment(flow, "c1").ID
	// As if she had been looked for before she was there to be found.
	b.run(b.pool, `update enrollments set heard = null, resume_at = now() where workspace_id = $1`, b.ws)
	b.settleDown()
	if got := b.story(id); got != bothHeard {
		t.Error(got)
	}
	b.invariants()
}

// Who has heard what she waits for as she came to it does not take a second
// share of what a resume releases, and is not shown as kept from going on.
func TestAMissedEventMakesDueNow(t *testing.T) {
	b := setup(t, 1)
	flow := b.live(twoWaits("a", "b"))
	b.tell("c1", "go")
	b.must(second(b.Pause(bg, b.ws, flow, nil)))
	b.tell("c1", "a")
	b.must(second(b.Resume(bg, b.ws, flow, ptr(time.Hour), nil)))
	b.run(b.pool, `update flows set spread_until = held_until + interval '1 microsecond' where workspace_id = $1`, b.ws)
	if n, err := b.RunOnce(bg); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	e := b.enrollment(flow, "c1")
	if held := *b.flow(flow).HeldUntil; e.Node != "w1" || !e.ResumeAt.After(held) || e.DueSince != nil {
		t.Errorf("%+v, held until %s", e, held)
	}
}

// Who is put elsewhere while a pause is being released keeps her place in that,
// and has heard nothing there of what came before.
func TestWhoIsMovedInAReleaseHearsWhatComesAfter(t *testing.T) {
	b := setup(t, 1)
	text := twoWaits("a", "b")
	flow := b.live(text)
	b.tell("c1", "go")
	b.settleDown()
	b.must(second(b.Pause(bg, b.ws, flow, nil)))
	b.timeOut()
	b.must(second(b.Resume(bg, b.ws, flow, ptr(time.Hour), nil)))
	b.tell("c1", "b")
	b.publish(flow, text, InFlight{Mode: "move", Map: map[string]*string{"w1": ptr("w2")}})
	b.moveAllOver()
	b.run(b.pool, `update flows set spread_until = held_until + interval '1 microsecond' where workspace_id = $1`, b.ws)
	b.settleDown()
	e := b.enrollment(flow, "c1")
	if got := b.story(e.ID); got != "enrolled@ checked@ moved@w2" || e.Status != statusWaiting {
		t.Errorf("%s: %s", e.Status, got)
	}
	if r := b.tell("c1", "b"); r.Woken != 1 {
		t.Errorf("%d woken", r.Woken)
	}
}

// held locks somebody's enrollment, so that whoever wants it waits.
func (b *bundle) held(id uuid.UUID) (letGo func()) {
	b.t.Helper()
	tx, err := b.pool.Begin(bg)
	b.must(err)
	b.t.Cleanup(func() { _ = tx.Rollback(bg) })
	_, err = tx.Exec(bg, `select from enrollments where id = $1 for update`, id)
	b.must(err)
	return func() { b.must(tx.Rollback(bg)) }
}

// stuckLot is c1, who waits, and a lot with an a for her that cannot go on because
// of c2, who is locked before her.
type stuckLot struct {
	*bundle
	flow uuid.UUID
	c1   uuid.UUID
	lot  *task
	done []Recorded
	free func()
}

func (b *bundle) stuckLot(text string, more ...string) *stuckLot {
	b.t.Helper()
	h := &stuckLot{bundle: b, flow: b.live(text)}
	b.tell("c2", "go")
	b.tell("c1", "go")
	b.settleDown()
	h.c1 = b.enrollment(h.flow, "c1").ID
	h.free = b.held(b.enrollment(h.flow, "c2").ID)
	lot := []Event{{ProfileKey: "c2", Name: "a"}, {ProfileKey: "c1", Name: "a"}}
	for _, name := range more {
		lot = append(lot, Event{ProfileKey: "c1", Name: name})
	}
	h.lot = start(func() (err error) { h.done, err = b.RecordAll(bg, b.ws, lot); return err })
	b.until(0, h.lot.done)
	return h
}

// ends lets the lot go on, and then everybody.
func (h *stuckLot) ends() {
	h.t.Helper()
	h.free()
	<-h.lot.done
	h.must(h.lot.err)
	h.settleDown()
	h.invariants()
}

// The time of a wait passes while the event's transaction waits for somebody
// else. Whether a worker has been there already or not, the event came too late,
// and says so.
func TestAnEventThatHadItsTurnAfterTheTimeout(t *testing.T) {
	for name, worker := range map[string]bool{"a worker was there": true, "none was": false} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 2)
			h := b.stuckLot(twoWaits("a", "b"))
			var over time.Time
			b.must(b.pool.QueryRow(bg, `update enrollments set resume_at = now() where workspace_id = $1 and id = $2 returning resume_at`, b.ws, h.c1).Scan(&over))
			if worker {
				b.settleDown()
			}
			h.ends()
			if got := b.story(h.c1); got != "enrolled@ checked@ timed_out@w1 completed@late1" || h.done[1].Woken != 0 {
				t.Errorf("%d woken, %s", h.done[1].Woken, got)
			}
			if n := b.count(`select count(*) from trigger_events where workspace_id = $1 and profile_key = 'c1' and name = 'a' and received_at < $2`, over); n != 0 {
				t.Error("the event is said to have come in time")
			}
		})
	}
}

// Two lots beside each other, and the one that began first comes second: each
// event ends a wait, whether a worker has come between them or not.
func TestTwoLotsBesideEachOther(t *testing.T) {
	for name, worker := range map[string]bool{"a worker was between them": true, "none was": false} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 2)
			h := b.stuckLot(twoWaits("a", "a"))
			if r := b.tell("c1", "a"); r.Woken != 1 {
				t.Errorf("%d woken", r.Woken)
			}
			if worker {
				b.settleDown()
			}
			h.ends()
			if got := b.story(h.c1); got != bothHeard {
				t.Error(got)
			}
		})
	}
}

// An event that has its turn late takes along what was told after it: what
// enrolls knows what came before it and what did after it.
func TestWhatWasToldLaterIsLater(t *testing.T) {
	b := setup(t, 2)
	second := b.live(strings.Replace(twoWaits("a", "b"), `"go"`, `"again"`, 1))
	h := b.stuckLot(twoWaits("a", "c"), "again", "viewed", "a", "b")
	h.ends()
	var order string
	b.must(b.pool.QueryRow(bg, `select string_agg(name, ' ' order by received_at) from trigger_events where workspace_id = $1 and profile_key = 'c1'`, b.ws).Scan(&order))
	if order != "go a again viewed a b" {
		t.Error(order)
	}
	e := b.enrollment(second, "c1")
	if got := b.story(e.ID); got != bothHeard {
		t.Error(got)
	}
	_, results, err := b.GetEvent(bg, b.ws, h.done[2].Key)
	if err != nil || len(results) != 1 || results[0].EnrollmentID == nil || *results[0].EnrollmentID != e.ID {
		t.Errorf("%+v, %v", results, err)
	}
	if n := b.count(`select count(*) from trigger_events where workspace_id = $1 and name = 'viewed' and received_at <= $2`, e.EnrolledAt); n != 0 {
		t.Error("what was told after the trigger is said to have come before it")
	}
}
