package flows_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
)

// A wait ends once, not before its time by the database's clock, and it ends: even if its
// timer fires early, late, twice or never.

// fired is a chunk of active enrollments of a flow, due or not: as a timer without a check
// would read it.
func (b *bundle) fired(f *flowstest.Process, flow uuid.UUID) (flows.ShardLease, []*execution.Execution) {
	b.T.Helper()
	b.Exec(`update enrollments set shard = 0 where workspace_id = $1`, b.Workspace)
	t := flows.NewShardLease(b.Workspace, flow)
	found, err := execution.ReadDue(bg, f.Connections(), t.Shard(), time.Time{}, time.Now().AddDate(10, 0, 0), 1000)
	b.Must(err)
	var chunk []*execution.Execution
	for _, d := range found {
		r, err := f.Execution.Route(bg, b.Workspace, flow, d.Version)
		b.Must(err)
		chunk = append(chunk, d.Execution(r, 0))
	}
	return t, chunk
}

const untilNudge, toTheEnd = "enrolled@ checked@ sent@hello", "enrolled@ checked@ sent@hello resumed@wait sent@nudge completed@end"

func TestAnEarlyTimerDoesNothing(t *testing.T) {
	b := setup(t, 2)
	s := b.NewPair(false)
	b.Settle()
	shard, chunk := b.fired(b.Process, s.FlowID)
	before := b.Snapshot(s.FlowID)
	if len(chunk) != 2 {
		t.Fatalf("%d are active", len(chunk))
	}
	b.Must(b.TryChunk(bg, shard, chunk))
	if n, err := b.RunOnce(bg); n != 0 || err != nil {
		t.Errorf("%d are due, %v", n, err)
	}
	if due, err := b.ReadDue(bg, &shard); len(due) != 0 || err != nil {
		t.Errorf("%d are read, %v", len(due), err)
	}
	if b.Snapshot(s.FlowID) != before || flowstest.Conflicts(b.Process) != 2 {
		t.Errorf("an enrollment was resumed early; %d conflicts", flowstest.Conflicts(b.Process))
	}
	b.Invariants()
}

// An enrollment is due when a worker reads it, and no longer when it writes.
func TestATimerThatWasRightWhenItFired(t *testing.T) {
	b := setup(t, 2)
	s := b.NewPair(true)
	w := b.StopAt("evaluated")
	b.Reached(w)
	b.Exec(`update enrollments set resume_at = now() + interval '1 hour' where id = $1`, s.C1)
	b.Must(w.End())
	if got := b.Trace(s.C1); got != untilNudge || flowstest.Conflicts(w.Process) != 1 {
		t.Errorf("%s, %d conflicts", got, flowstest.Conflicts(w.Process))
	}
	b.Wake(s.C1)
	b.Settle()
	b.WantTrace(s.C1, toTheEnd)
	b.Invariants()
}

func TestADoubleTimerResumesOnce(t *testing.T) {
	b := setup(t, 2)
	for _, atOnce := range []bool{false, true} {
		s := b.NewPair(true)
		b.Wake(s.C2)
		one, two := b.Another(), b.Another()
		shard, first := b.fired(one, s.FlowID)
		_, second := b.fired(two, s.FlowID)
		b.Must(one.Execution.Evaluate(bg, first))
		b.Must(two.Execution.Evaluate(bg, second))
		both := flowstest.Start(func() error { return one.TryChunk(bg, shard, first) })
		if !atOnce {
			<-both.Done
		}
		b.Must(two.TryChunk(bg, shard, second))
		<-both.Done
		b.Must(both.Err)
		if n := flowstest.Conflicts(one) + flowstest.Conflicts(two); n != 2 {
			t.Errorf("%d of 2 had a conflict", n)
		}
		// A third timer fires for a past step.
		b.Must(one.TryChunk(bg, shard, execution.Again(first)))
		for _, id := range []uuid.UUID{s.C1, s.C2} {
			b.WantTrace(id, toTheEnd)
		}
		b.Invariants(atOnce)
	}
}

// A worker has read enrollments one wait ago, and the next wait is over too: the worker
// must not end it.
func TestAnOldTimerResumesNothing(t *testing.T) {
	b := setup(t, 2)
	s := b.NewPair(false)
	w := b.StopAt("evaluated")
	b.Reached(w)
	b.StealShards()
	b.Settle()
	b.Wake(s.C1)
	b.Must(w.End())
	if got := b.Trace(s.C1); got != untilNudge || flowstest.Conflicts(w.Process) != 1 {
		t.Errorf("%s, %d conflicts", got, flowstest.Conflicts(w.Process))
	}
	b.Settle()
	b.WantTrace(s.C1, toTheEnd)
	b.Invariants()
}

// A wait is over and nothing woke it: no wake, or its worker crashed with the shard. The next
// poll finds it, on any process.
func TestALostTimerIsFound(t *testing.T) {
	b := setup(t, 2, func(c *flows.Config) { c.Lease = time.Second })
	s := b.NewPair(true)
	if claimed, err := b.ClaimShard(bg, enrollment.Shard{}); claimed == nil || err != nil { // and crashes
		t.Fatal(claimed, err)
	}
	other := b.Another()
	if n, err := other.RunOnce(bg); n != 0 || err != nil {
		t.Fatalf("%d, %v: a shard has two leases", n, err)
	}
	ctx, stop := context.WithCancel(bg)
	loop := flowstest.Start(func() error { other.Loop(ctx); return nil })
	b.Eventually("the other process ends the enrollment", func() bool { return b.Trace(s.C1) == toTheEnd })
	stop()
	<-loop.Done
	b.Invariants()
}

// However long a poll without result took, the next one is soon enough that due
// enrollments are found within a minute.
func TestALongPollDelaysTheNextForLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := flows.New(flows.Deps{}, flows.Config{})
		ctx, stop := context.WithCancel(bg)
		go f.PollShards(ctx)
		for _, c := range []struct{ took, next time.Duration }{
			{0, 250 * time.Millisecond}, {100 * time.Millisecond, 2 * time.Second}, {time.Minute, flows.IdleMost}, {0,
				250 * time.Millisecond},
		} {
			f.SetIdlePoll(c.took)
			<-f.Waker().Woken
			begun := time.Now()
			<-f.Waker().Woken
			if d := time.Since(begun); d != c.next {
				t.Errorf("after one of %s the next one comes %s later", c.took, d)
			}
		}
		stop()
		synctest.Wait()
	})
}

func TestAnEndedEnrollmentIsNotWoken(t *testing.T) {
	b := setup(t, 2)
	s := b.NewPair(true)
	shard, chunk := b.fired(b.Process, s.FlowID)
	_, err := b.Exit(bg, b.Workspace, s.C1, "")
	b.Must(err)
	after := b.Row(s.C1)
	b.Must(b.TryChunk(bg, shard, chunk))
	b.Settle()
	if now := b.Row(s.C1); now != after {
		t.Errorf("%s\n%s", after, now)
	}
	b.Invariants()
}

// node is a node for which the database's clock differs from its own.
func (b *bundle) node(ahead time.Duration) *flowstest.Process {
	b.T.Helper()
	schema := fmt.Sprintf("clock_%x", uint64(ahead))
	b.Exec(fmt.Sprintf(`create schema if not exists %s; create or replace function %s.now() returns timestamptz language sql stable as
		$$ select pg_catalog.now() + interval '%d seconds' $$`, schema, schema, int(ahead.Seconds())))
	deps := b.Deps
	deps.Pool = b.Connect(func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["search_path"] = schema + ", pg_catalog, public"
		c.MaxConns = 4
	})
	f := flowstest.NewProcess(deps, b.Config)
	var detail time.Time
	b.Must(f.Connections().QueryRow(bg, `select now()`).Scan(&detail))
	if off := time.Until(detail) - ahead; off.Abs() > time.Minute {
		b.T.Fatalf("the clock is not %s ahead but %s", ahead, time.Until(detail))
	}
	return f
}

func (b *bundle) runOut(f *flowstest.Process) (n int) {
	b.T.Helper()
	for {
		moved, err := f.RunOnce(bg)
		b.Must(err)
		if moved == 0 {
			return n
		}
		n += moved
	}
}

// Only the database's clock counts. Here it is hours ahead of and behind that of the
// process.
func TestOnlyTheDatabasesClockCounts(t *testing.T) {
	b := setup(t, 2)
	b.NewPair(false)
	b.Settle()
	for _, c := range []struct {
		ahead time.Duration
		moved int
	}{{-25 * time.Hour, 0}, {0, 0}, {23 * time.Hour, 0}, {25 * time.Hour, 2}, {25 * time.Hour, 0}} {
		if n := b.runOut(b.node(c.ahead)); n != c.moved {
			t.Errorf("%d are moved when it is %s later", n, c.ahead)
		}
	}
	// Waits also begin by that clock.
	ahead := b.node(48 * time.Hour)
	r, err := ahead.Enroll(bg, b.Workspace, b.Live(flowstest.TwoMessages), intake.Enrolling{ProfileKey: "c1"}, false)
	b.Must(err)
	b.runOut(ahead)
	e, err := b.GetEnrollment(bg, b.Workspace, *r.EnrollmentID)
	b.Must(err)
	if left := time.Until(*e.ResumeAt); left < 71*time.Hour || left > 73*time.Hour {
		t.Errorf("it waits for %s", left)
	}
	b.Invariants()
}

// The clock is set forward and back while enrollments wait. None is resumed twice, and
// once it is late enough all are.
func TestTheClockIsSetForwardAndBack(t *testing.T) {
	b := setup(t, 9)
	flow := b.Live(flowstest.TwoMessages)
	var all []uuid.UUID
	for i, ahead := range []time.Duration{0, -30 * time.Hour, 26 * time.Hour, 0, 50 * time.Hour, -50 * time.Hour, 26 * time.Hour, 0,
		75 * time.Hour} {
		f := b.node(ahead)
		r, err := f.Enroll(bg, b.Workspace, flow, intake.Enrolling{ProfileKey: fmt.Sprintf("c%d", i+1)}, false)
		b.Must(err)
		all = append(all, *r.EnrollmentID)
		b.runOut(f)
		b.Invariants(ahead)
	}
	b.runOut(b.node(100 * time.Hour))
	for i, id := range all {
		if got := b.Trace(id); got != toTheEnd {
			t.Errorf("c%d: %s", i+1, got)
		}
	}
	b.Invariants("at the end")
}
