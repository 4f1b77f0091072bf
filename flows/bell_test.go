package flows

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
)

// Who is enrolled or woken on a node is found by it without a look at the turns
// of all flows, however many there are.
func TestWhoBecomesDueHereIsFoundWithoutALookAtAllFlows(t *testing.T) {
	b := setup(t, 1)
	flow := b.live(forAnHour)
	f, seen := b.traced()
	var everywhere, claims atomic.Int32
	seen.stop = func(sql string) {
		if strings.Contains(sql, "update flow_turns t set leased_by = $1") {
			claims.Add(1)
			if !strings.Contains(sql, "(t.workspace_id, t.flow_id, t.turn) = ") {
				everywhere.Add(1)
			}
		}
	}
	ctx, stop := context.WithCancel(bg)
	worker := start(func() error { f.work(ctx); return nil })
	comesTo := func(what func() error, story string) {
		t.Helper()
		b.must(what())
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
			if b.story(b.enrollment(flow, "c1").ID) == story {
				return
			}
		}
		t.Errorf("%s, not %s", b.story(b.enrollment(flow, "c1").ID), story)
	}
	tell := func(event string) func() error {
		return func() error {
			_, err := f.Record(bg, b.ws, Event{ProfileKey: "c1", Name: event})
			return err
		}
	}
	comesTo(tell("cart"), "enrolled@ checked@")
	comesTo(tell("bought"), "enrolled@ checked@ resumed@buy completed@thanks")
	stop()
	<-worker.done
	if n := everywhere.Load(); n != 0 || claims.Load() == 0 {
		t.Errorf("%d of %d looks are at all turns", n, claims.Load())
	}
}

// A backlog of one flow, once it is rung for, does not keep a worker: after a
// whole lot everywhere is looked.
func TestABacklogIsLeftForOthers(t *testing.T) {
	b := setup(t, 0, func(c *Config) { c.Lot = 2 })
	flow := b.live(hourAfter("go"))
	b.allTell(9, "go")
	b.run(b.pool, `update enrollments set turn = 0 where workspace_id = $1`, b.ws)
	b.bell = newBell()
	b.workAt(bg, share{b.ws, flow, 0})
	if where, ok := b.bell.next(); !ok || where != (share{}) {
		t.Errorf("%v, %v", where, ok)
	}
	if n := b.count(`select count(*) from enrollments where workspace_id = $1 and node = 'wait'`); n != 9 {
		t.Errorf("%d have come on", n)
	}
}

// The bell is a hint: of a share where nobody is due, whose turn is held or that
// does not exist nothing comes.
func TestABellThatRingsForNothing(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(hourAfter("go"))
	r := b.tell("c1", "go")
	due := turnOf(*r.Results[0].EnrollmentID)
	for _, where := range []share{{b.ws, flow, (due + 1) % Turns}, {b.ws, lemma.NewID(), due}, {lemma.NewID(), flow, due}} {
		if n, _, err := b.runOnce(bg, where); n != 0 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	held, err := b.claimTurn(bg, share{b.ws, flow, due})
	if err != nil || held == nil {
		t.Fatal(held, err)
	}
	if n, _, err := b.runOnce(bg, share{b.ws, flow, due}); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	b.must(b.releaseTurn(*held, 0))
	if n, _, err := b.runOnce(bg, share{b.ws, flow, due}); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// Each workspace has one share in turn, a share is remembered once, and
// everywhere comes before all.
func TestTheBellIsFairToWorkspaces(t *testing.T) {
	t.Parallel()
	b := newBell()
	busy, other := lemma.NewID(), lemma.NewID()
	for range 2 {
		for range 5 {
			b.ringFor(map[share]bool{{busy, lemma.NewID(), 0}: true})
		}
		b.ringFor(map[share]bool{{other, uuid.Nil, 1}: true})
	}
	b.ring()
	var order []string
	for where, ok := b.next(); ok; where, ok = b.next() {
		order = append(order, map[uuid.UUID]string{busy: "busy", other: "other", uuid.Nil: "everywhere"}[where.ws])
	}
	want := "everywhere busy other" + strings.Repeat(" busy", 9)
	if got := strings.Join(order, " "); got != want {
		t.Errorf("%s, not %s", got, want)
	}
	if len(b.known)+len(b.shares)+len(b.workspaces) != 0 {
		t.Errorf("%d are still known", len(b.known))
	}
	for range mostShares + 1 {
		b.ringFor(map[share]bool{{busy, lemma.NewID(), 0}: true})
	}
	if where, ok := b.next(); !ok || where != (share{}) || len(b.known) != mostShares {
		t.Errorf("%d are known", len(b.known))
	}
}

// Whoever had a turn in vain rings for it once more: somebody may have been rung
// for and looked for while it was taken.
func TestATurnInVainIsRungForOnceMore(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(hourAfter("go"))
	b.tell("c1", "go")
	where := share{b.ws, flow, turnOf(b.enrollment(flow, "c1").ID)}
	for ok := true; ok; {
		_, ok = b.bell.next()
	}
	b.hook = func(stage string) {
		if stage == "claimed" { // she is not due any more when it comes to read her
			b.run(b.pool, `update enrollments set resume_at = now() + interval '1 hour' where workspace_id = $1`, b.ws)
		}
	}
	b.workAt(bg, where)
	if again, ok := b.bell.next(); !ok || again != where {
		t.Errorf("%+v, %v", again, ok)
	}
	b.workAt(bg, where) // nobody is due: that is the end of it
	if again, ok := b.bell.next(); ok {
		t.Errorf("it is rung for again: %+v", again)
	}
}
