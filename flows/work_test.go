package flows_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"lemma"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
)

// Enrollments that become due on a node are found by it without polling all shards of all
// flows, however many there are.
func TestLocalDuesAreFoundWithoutPollingAllFlows(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(flowstest.ForAnHour)
	f, seen := b.Traced()
	var everywhere, claims atomic.Int32
	seen.Stop = func(sql string) {
		if strings.Contains(sql, "update flow_shards t set leased_by = $1") {
			claims.Add(1)
			if !strings.Contains(sql, "(t.workspace_id, t.flow_id, t.shard) = ") {
				everywhere.Add(1)
			}
		}
	}
	ctx, stop := context.WithCancel(bg)
	worker := flowstest.Start(func() error { f.Work(ctx); return nil })
	comesTo := func(what func() error, trace string) {
		t.Helper()
		b.Must(what())
		b.Eventually("the enrollment has come to "+trace, func() bool { return b.Trace(b.Enrollment(flow, "c1").ID) == trace })
	}
	record := func(event string) func() error {
		return func() error {
			_, err := f.Record(bg, b.Workspace, intake.Event{ProfileKey: "c1", Name: event})
			return err
		}
	}
	comesTo(record("cart"), "enrolled@ checked@")
	comesTo(record("bought"), "enrolled@ checked@ resumed@buy completed@thanks")
	stop()
	<-worker.Done
	if n := everywhere.Load(); n != 0 || claims.Load() == 0 {
		t.Errorf("%d of %d polls are of all shards", n, claims.Load())
	}
}

// A backlog of one flow does not occupy a worker: after a full chunk all shards are
// polled.
func TestABacklogIsLeftForOthers(t *testing.T) {
	b := setup(t, 0, func(c *flows.Config) { c.Chunk = 2 })
	flow := b.Live(flowstest.HourAfter("go"))
	b.RecordOfAll(9, "go")
	b.Exec(`update enrollments set shard = 0 where workspace_id = $1`, b.Workspace)
	b.SetWaker(enrollment.NewWaker())
	b.WorkAt(bg, enrollment.Shard{Workspace: b.Workspace, Flow: flow, Number: 0})
	if where, ok := b.Flows.Waker().Next(); !ok || where != (enrollment.Shard{}) {
		t.Errorf("%v, %v", where, ok)
	}
	b.WantCount(9, `select count(*) from enrollments where workspace_id = $1 and node = 'wait'`, b.Workspace)
}

// A wake is a hint: for a shard without due enrollments, leased or unknown, nothing
// happens.
func TestAWakeWithoutWork(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.HourAfter("go"))
	r := b.RecordEvent("c1", "go")
	due := enrollment.ShardOf(*r.Results[0].EnrollmentID)
	for _, where := range []enrollment.Shard{{Workspace: b.Workspace, Flow: flow, Number: (due + 1) % enrollment.Shards},
		{Workspace: b.Workspace, Flow: lemma.NewID(), Number: due}, {Workspace: lemma.NewID(), Flow: flow, Number: due}} {
		if n, _, err := b.RunAt(bg, where); n != 0 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	held, err := b.ClaimShard(bg, enrollment.Shard{Workspace: b.Workspace, Flow: flow, Number: due})
	if err != nil || held == nil {
		t.Fatal(held, err)
	}
	if n, _, err := b.RunAt(bg, enrollment.Shard{Workspace: b.Workspace, Flow: flow, Number: due}); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	b.Must(b.ReleaseShard(*held, 0))
	if n, _, err := b.RunAt(bg, enrollment.Shard{Workspace: b.Workspace, Flow: flow, Number: due}); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// A worker whose shard had no result enqueues it once more: it may have been enqueued and
// polled while it was leased.
func TestAShardWithoutResultIsPolledAgain(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.HourAfter("go"))
	b.RecordEvent("c1", "go")
	where := enrollment.Shard{Workspace: b.Workspace, Flow: flow, Number: enrollment.ShardOf(b.Enrollment(flow, "c1").ID)}
	for ok := true; ok; {
		_, ok = b.Flows.Waker().Next()
	}
	b.Hook.Do = func(stage string) {
		if stage == "claimed" { // the enrollment is no longer due when it is read
			b.Exec(`update enrollments set resume_at = now() + interval '1 hour' where workspace_id = $1`, b.Workspace)
		}
	}
	b.WorkAt(bg, where)
	if again, ok := b.Flows.Waker().Next(); !ok || again != where {
		t.Errorf("%+v, %v", again, ok)
	}
	b.WorkAt(bg, where) // nothing is due, so it ends
	if again, ok := b.Flows.Waker().Next(); ok {
		t.Errorf("it is enqueued again: %+v", again)
	}
}
