package flows

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A wait ends once, not before its time by the database's clock, and it ends:
// whoever fires early, late, twice or never.

// fired is a lot of everybody who is on the way in a flow, due or not: what a
// timer that knows nothing of dues would bring.
func (b *bundle) fired(f *Flows, flow uuid.UUID) (turn, []*traveller) {
	b.t.Helper()
	b.run(b.pool, `update enrollments set turn = 0 where workspace_id = $1`, b.ws)
	t := turn{ws: b.ws, flow: flow}
	found, err := f.readRange(bg, t, time.Time{}, time.Now().AddDate(10, 0, 0), 1000)
	b.must(err)
	var lot []*traveller
	for _, d := range found {
		r, err := f.route(bg, b.ws, flow, d.version)
		b.must(err)
		lot = append(lot, d.traveller(r, 0))
	}
	return t, lot
}

const untilNudge, toTheEnd = "enrolled@ checked@ sent@hello", "enrolled@ checked@ sent@hello resumed@wait sent@nudge completed@end"

func TestAnEarlyTimerDoesNothing(t *testing.T) {
	b := setup(t, 2)
	s := b.scene(false)
	b.settleDown()
	turn, lot := b.fired(b.Flows, s.flow)
	before := b.everybody(s.flow)
	if len(lot) != 2 {
		t.Fatalf("%d are on the way", len(lot))
	}
	b.must(b.tryLot(bg, turn, lot))
	if n, err := b.RunOnce(bg); n != 0 || err != nil {
		t.Errorf("%d are due, %v", n, err)
	}
	if due, err := b.readDue(bg, &turn); len(due) != 0 || err != nil {
		t.Errorf("%d are read, %v", len(due), err)
	}
	if b.everybody(s.flow) != before || overtaken(b.Flows) != 2 {
		t.Errorf("somebody was resumed before it was time; %d were left alone", overtaken(b.Flows))
	}
	b.invariants()
}

// Somebody is due when a worker looks, and not any more when it writes.
func TestATimerThatWasRightWhenItFired(t *testing.T) {
	b := setup(t, 2)
	s := b.scene(true)
	w := b.stopAt("walked")
	b.stands(w)
	b.run(b.pool, `update enrollments set resume_at = now() + interval '1 hour' where id = $1`, s.c1)
	b.must(w.ends())
	if got := b.story(s.c1); got != untilNudge || overtaken(w.Flows) != 1 {
		t.Errorf("%s, %d overtaken", got, overtaken(w.Flows))
	}
	b.wake(s.c1)
	b.settleDown()
	if got := b.story(s.c1); got != toTheEnd {
		t.Error(got)
	}
	b.invariants()
}

func TestADoubleTimerResumesOnce(t *testing.T) {
	b := setup(t, 2)
	for _, atOnce := range []bool{false, true} {
		s := b.scene(true)
		b.wake(s.c2)
		one, two := b.another(), b.another()
		turn, first := b.fired(one, s.flow)
		_, second := b.fired(two, s.flow)
		b.must(one.walkAll(bg, first))
		b.must(two.walkAll(bg, second))
		both := start(func() error { return one.tryLot(bg, turn, first) })
		if !atOnce {
			<-both.done
		}
		b.must(two.tryLot(bg, turn, second))
		<-both.done
		b.must(both.err)
		if n := overtaken(one) + overtaken(two); n != 2 {
			t.Errorf("%d were found resumed, of 2", n)
		}
		// A third fires for a step that is long over.
		b.must(one.tryLot(bg, turn, again(first)))
		for _, id := range []uuid.UUID{s.c1, s.c2} {
			if got := b.story(id); got != toTheEnd {
				t.Error(got)
			}
		}
		b.invariants(atOnce)
	}
}

// A worker brings people as they stood one wait ago, and the next wait is over
// too: it is not the worker's to end.
func TestAnOldTimerResumesNobody(t *testing.T) {
	b := setup(t, 2)
	s := b.scene(false)
	w := b.stopAt("walked")
	b.stands(w)
	b.stealTurns()
	b.settleDown()
	b.wake(s.c1)
	b.must(w.ends())
	if got := b.story(s.c1); got != untilNudge || overtaken(w.Flows) != 1 {
		t.Errorf("%s, %d overtaken", got, overtaken(w.Flows))
	}
	b.settleDown()
	if got := b.story(s.c1); got != toTheEnd {
		t.Error(got)
	}
	b.invariants()
}

// A wait is over and nobody was told: no bell rang, or whoever heard it died
// with the turn. The next look finds it, on any node.
func TestALostTimerIsFound(t *testing.T) {
	b := setup(t, 2, func(c *Config) { c.Lease = time.Second })
	s := b.scene(true)
	if claimed, err := b.claimTurn(bg, share{}); claimed == nil || err != nil { // and dies
		t.Fatal(claimed, err)
	}
	other := b.another()
	if n, err := other.RunOnce(bg); n != 0 || err != nil {
		t.Fatalf("%d, %v: a turn is held by two", n, err)
	}
	ctx, stop := context.WithCancel(bg)
	loop := start(func() error { other.Loop(ctx); return nil })
	deadline := time.Now().Add(20 * time.Second)
	for b.story(s.c1) != toTheEnd && time.Now().Before(deadline) {
	}
	stop()
	<-loop.done
	if got := b.story(s.c1); got != toTheEnd {
		t.Error(got)
	}
	b.invariants()
}

// However long a look in vain took, the next comes soon enough that whoever falls
// due is found within a minute.
func TestALongLookPutsTheNextOffForLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(Rooms{}, Config{})
		ctx, stop := context.WithCancel(bg)
		go f.look(ctx)
		for _, c := range []struct{ took, next time.Duration }{
			{0, 250 * time.Millisecond}, {100 * time.Millisecond, 2 * time.Second}, {time.Minute, idleMost}, {0, 250 * time.Millisecond},
		} {
			f.idleLook.Store(int64(c.took))
			<-f.bell.rung
			begun := time.Now()
			<-f.bell.rung
			if d := time.Since(begun); d != c.next {
				t.Errorf("after one of %s the next look comes %s later", c.took, d)
			}
		}
		stop()
		synctest.Wait()
	})
}

func TestWhoHasLeftIsNotWoken(t *testing.T) {
	b := setup(t, 2)
	s := b.scene(true)
	turn, lot := b.fired(b.Flows, s.flow)
	_, err := b.Exit(bg, b.ws, s.c1, "")
	b.must(err)
	after := b.row(s.c1)
	b.must(b.tryLot(bg, turn, lot))
	b.settleDown()
	if now := b.row(s.c1); now != after {
		t.Errorf("%s\n%s", after, now)
	}
	b.invariants()
}

// node is one to which the database says another time than its own clock does.
func (b *bundle) node(ahead time.Duration) *Flows {
	b.t.Helper()
	schema := fmt.Sprintf("clock_%x", uint64(ahead))
	b.run(b.pool, fmt.Sprintf(`create schema if not exists %s; create or replace function %s.now() returns timestamptz language sql stable as
		$$ select pg_catalog.now() + interval '%d seconds' $$`, schema, schema, int(ahead.Seconds())))
	rooms := b.rooms
	rooms.Pool = b.ownPool(func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["search_path"] = schema + ", pg_catalog, public"
		c.MaxConns = 4
	})
	f := New(rooms, b.cfg)
	var said time.Time
	b.must(f.pool.QueryRow(bg, `select now()`).Scan(&said))
	if off := time.Until(said) - ahead; off.Abs() > time.Minute {
		b.t.Fatalf("the clock is not %s ahead but %s", ahead, time.Until(said))
	}
	return f
}

func (b *bundle) runOut(f *Flows) (n int) {
	b.t.Helper()
	for {
		moved, err := f.RunOnce(bg)
		b.must(err)
		if moved == 0 {
			return n
		}
		n += moved
	}
}

// The database's clock is all that counts. Here it is hours ahead of and behind
// that of the process, which must not notice.
func TestOnlyTheDatabasesClockCounts(t *testing.T) {
	b := setup(t, 2)
	b.scene(false)
	b.settleDown()
	for _, c := range []struct {
		ahead time.Duration
		moved int
	}{{-25 * time.Hour, 0}, {0, 0}, {23 * time.Hour, 0}, {25 * time.Hour, 2}, {25 * time.Hour, 0}} {
		if n := b.runOut(b.node(c.ahead)); n != c.moved {
			t.Errorf("%d are moved when it is %s later", n, c.ahead)
		}
	}
	// What begins to wait does so by that clock as well.
	ahead := b.node(48 * time.Hour)
	r, err := ahead.Enroll(bg, b.ws, b.live(letters1), Enrolling{ProfileKey: "c1"}, false)
	b.must(err)
	b.runOut(ahead)
	e, err := b.GetEnrollment(bg, b.ws, *r.EnrollmentID)
	b.must(err)
	if left := time.Until(*e.ResumeAt); left < 71*time.Hour || left > 73*time.Hour {
		t.Errorf("it waits for %s", left)
	}
	b.invariants()
}

// The clock is set forward and back under people who wait. Nobody is resumed
// twice for it, and once it is late enough everybody has been.
func TestTheClockIsSetForwardAndBack(t *testing.T) {
	b := setup(t, 9)
	flow := b.live(letters1)
	var all []uuid.UUID
	for i, ahead := range []time.Duration{0, -30 * time.Hour, 26 * time.Hour, 0, 50 * time.Hour, -50 * time.Hour, 26 * time.Hour, 0, 75 * time.Hour} {
		f := b.node(ahead)
		r, err := f.Enroll(bg, b.ws, flow, Enrolling{ProfileKey: fmt.Sprintf("c%d", i+1)}, false)
		b.must(err)
		all = append(all, *r.EnrollmentID)
		b.runOut(f)
		b.invariants(ahead)
	}
	b.runOut(b.node(100 * time.Hour))
	for i, id := range all {
		if got := b.story(id); got != toTheEnd {
			t.Errorf("c%d: %s", i+1, got)
		}
	}
	b.invariants("at the end")
}
