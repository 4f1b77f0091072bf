package flows_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lemma"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/pgtest"
)

// The data sources of one workspace hang, with more queries than it has places: an enrollment of
// another, whose source answers, advances meanwhile.
func TestSlowSourcesOfAWorkspaceDelayNoOther(t *testing.T) {
	b := setup(t, 1, func(c *flows.Config) { c.Workers, c.BackOff = 4, time.Minute })
	audiences, add := b.Patient()
	b.Deps.Audiences = audiences
	b.Process = b.Another()
	const sources, shards = 3, 4
	for range sources {
		b.Audience = add(b.Workspace)
		b.Live(asksProfiles)
	}
	for i := range 40 {
		b.RecordEvent(fmt.Sprint("p", i), "go")
	}
	slow := b.Workspace
	b.Workspace = pgtest.Workspace(t, b.Pool)
	defer func() { b.Workspace = slow }()
	b.ExecDB(`insert into orders values ('c1')`)
	b.Audience = b.NewAudience(b.NewSource(b.DSN), "select customer_id as id, 'c1@shop.example' as email from orders")
	quick := b.Live(asksProfiles)
	unlock := b.hangs()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); b.Loop(ctx) }()
	b.Eventually("the workspace has all places that it gets", func() bool {
		return b.Count(`select count(distinct (flow_id, shard)) from enrollments where workspace_id = $1 and blocked_reason = 'source_busy'`,
			slow) >= sources*shards-3
	})
	b.RecordEvent("c1", "go")
	b.Eventually("an enrollment of another workspace advances", func() bool {
		return b.Count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and status = 'completed'`,
			b.Workspace, quick) == 1
	})
	pgtest.WaitForLocks(t, b.DB, 2)
	stop()
	unlock()
	<-ended
}

// Another transaction of a workspace has locked its enrollments, or a flow, for long. The last worker that is free for
// others leaves them.
func TestLockedEnrollmentsAreLeft(t *testing.T) {
	for name, lock := range map[string]string{
		"the enrollments": `select from enrollments where workspace_id = $1 and $2::uuid is not null for update`,
		"the flow":        `select pg_advisory_xact_lock(` + enrollment.FlowLockSQL("$2::uuid") + `) where $1::uuid is not null`,
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 3)
			flow := b.Live(flowstest.TwoMessages)
			b.RecordEvent("c1", "go")
			tx, err := b.Pool.Begin(bg)
			b.Must(err)
			_, err = tx.Exec(bg, lock, b.Workspace, flow)
			b.Must(err)
			for range 3 { // of four workers
				b.EnterWorker()
			}
			n, err := b.RunOnce(bg)
			if n != 1 || err != nil {
				t.Errorf("%d, %v", n, err)
			}
			if n, err := b.RunOnce(bg); n != 0 || err != nil { // it rests
				t.Errorf("%d at once again, %v", n, err)
			}
			b.WantCount(1, `select count(*) from enrollments where status = 'active' and blocked_reason is null and step = 0`)
			b.Must(tx.Rollback(bg))
			b.Exec(`update flow_shards set retry_at = now()`)
			b.Settle()
			b.WantCount(0, `select count(*) from enrollments where step = 0`)
		})
	}
}

// Versions of due enrollments that take long to compile are compiled for several chunks, so that a worker is free for
// others in between.
func TestAChunkCompilesFewVersions(t *testing.T) {
	for name, c := range map[string]struct {
		limit time.Duration
		want  []int
	}{"no time": {-1, []int{2, 1, 0}}, "much time": {time.Hour, []int{3, 0, 0}}} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 3)
			flow := b.Live(flowstest.TwoMessages)
			b.RecordEvent("c1", "go")
			b.RecordEvent("c2", "go")
			b.PublishNext(flow, flowstest.TwoMessagesOtherwise, flows.InFlight{Mode: "stay"})
			b.RecordEvent("c3", "go")
			b.Exec(`update enrollments set shard = 0`)
			b.SetRouteTime(c.limit)
			for _, n := range c.want {
				if got, err := b.RunOnce(bg); got != n || err != nil {
					t.Errorf("%d enrollments in a chunk, want %d, %v", got, n, err)
				}
			}
		})
	}
}

// Moves without enrollments end at once, all in one tick: those behind them do not wait.
func TestMovesWithoutEnrollmentsEndAtOnce(t *testing.T) {
	b := setup(t, 1)
	for range 5 {
		flow := b.Live(flowstest.TwoMessages)
		b.PublishNext(flow, flowstest.TwoMessagesOtherwise, flows.InFlight{Mode: "exit"})
	}
	b.WantCount(5, `select count(*) from flow_moves where finished_at is null`)
	b.Must(b.MoveAround(bg))
	b.WantCount(0, `select count(*) from flow_moves where finished_at is null`)
}

// A worker waits for enrollments that are locked if others are free for other workspaces: else a workspace whose
// events lock them all the time would stand still.
func TestAWorkerWaitsForLockedEnrollments(t *testing.T) {
	b := setup(t, 3)
	b.Live(flowstest.TwoMessages)
	b.RecordEvent("c1", "go")
	tx, err := b.Pool.Begin(bg)
	b.Must(err)
	_, err = tx.Exec(bg, `select from enrollments where workspace_id = $1 for update`, b.Workspace)
	b.Must(err)
	done := make(chan error)
	go func() { n, err := b.RunOnce(bg); b.T.Logf("%d enrollments", n); done <- err }()
	pgtest.WaitForLocks(t, b.Pool, 1)
	b.Must(tx.Rollback(bg))
	b.Must(<-done)
	b.WantCount(0, `select count(*) from enrollments where step = 0`)
}

// A quarter of the workers, one at least, waits for no lock for long.
func TestWorkersThatWait(t *testing.T) {
	for workers, most := range map[int]int{1: 1, 2: 1, 3: 2, 4: 3, 8: 6} {
		f := flows.New(flows.Deps{}, flows.Config{Workers: workers})
		for i := range workers {
			if briefly := f.EnterWorker(); briefly != (i >= most) {
				t.Errorf("worker %d of %d: %v", i+1, workers, briefly)
			}
		}
	}
}

func TestAMoveOfLockedEnrollmentsWaits(t *testing.T) {
	b := setup(t, 3)
	flow := b.Live(flowstest.TwoMessages)
	b.RecordEvent("c1", "go")
	b.Settle()
	b.PublishNext(flow, flowstest.TwoMessagesOtherwise, flows.InFlight{Mode: "move", Map: map[string]*string{"nudge": new("other")}})
	tx, err := b.Pool.Begin(bg)
	b.Must(err)
	_, err = tx.Exec(bg, `select from enrollments where workspace_id = $1 for update`, b.Workspace)
	b.Must(err)
	b.Must(b.MoveAround(bg))
	b.WantCount(1, `select count(*) from flow_moves where finished_at is null and leased_by is null and retry_at > now()`)
	b.Must(tx.Rollback(bg))
	b.Exec(`update flow_moves set retry_at = now()`)
	b.Must(b.MoveAround(bg))
	b.WantCount(1, `select count(*) from flow_moves where finished_at is not null and moved = 1`)
}

// holds takes places of queries to a source, until they are released.
func holds(n int, query func(question func() error) error) (release func()) {
	until, begun, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	for range n {
		go func() {
			_ = query(func() error { begun <- struct{}{}; <-until; return nil })
			ended <- struct{}{}
		}()
		<-begun
	}
	return func() {
		close(until)
		for range n {
			<-ended
		}
	}
}

// Enrollments that find no place, since other workspaces have them, are tried again within
// seconds, however often that happens. Those whose own source has no place wait for longer.
func TestAPlaceOfOthersIsNoFailureOfTheSource(t *testing.T) {
	b := setup(t, 1, func(c *flows.Config) { c.Workers, c.BackOff, c.MaxBackOff = 2, time.Hour, time.Hour })
	flow := b.Live(asksProfiles)
	sources := b.Execution.Sources
	b.RecordEvent("c1", "go")
	release := holds(1, func(question func() error) error {
		return sources.QueryForWorker(bg, lemma.NewID(), lemma.NewID(), question)
	})
	for range 3 {
		b.TimeOut()
		if soon, later := b.soon(); soon != 1 || later != 0 {
			t.Fatalf("%d are tried again soon, %d later", soon, later)
		}
		b.WantCount(0, `select failures from enrollments where workspace_id = $1 and flow_id = $2`, b.Workspace, flow)
	}
	release()
	release = holds(2, func(question func() error) error { return sources.Query(bg, b.Source, question) })
	b.TimeOut()
	if soon, later := b.soon(); soon != 0 || later != 1 {
		t.Errorf("%d are tried again soon, %d later", soon, later)
	}
	release()
	b.TimeOut()
	b.WantCount(1, `select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and status = 'completed'`, b.Workspace, flow)
	r := prometheus.NewRegistry()
	r.MustRegister(b.Metrics.Sources)
	found, err := r.Gather()
	b.Must(err)
	counted := map[string]float64{}
	for _, m := range found[0].GetMetric() {
		counted[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
	}
	if counted["process"] < 3 || counted["workspace"] != 0 || counted["source"] != 1 {
		t.Errorf("refused %v", counted)
	}
}
