package intake_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
)

// Two workers have the same chunk, since the first lease expired. Each stops at each
// stage, and either continues first.
func TestTwoWorkersWithTheSameChunk(t *testing.T) {
	for _, awakes := range []bool{false, true} {
		t.Run(fmt.Sprint("awakes: ", awakes), func(t *testing.T) {
			b := setup(t, 2)
			for _, one := range flowstest.Stages {
				for _, two := range flowstest.Stages {
					for _, first := range []int{0, 1} {
						when := fmt.Sprintf("one %s, two %s, let go first: %d", one, two, first)
						s := b.NewPair(awakes)
						w := [2]*flowstest.Stopped{b.StopAt(one)}
						b.Reached(w[0])
						b.StealShards()
						w[1] = b.StopAt(two)
						b.Until(0, w[1].Reached, w[1].Done)
						before := b.Waits()
						close(w[first].Leave)
						if first == 0 || before == 0 { // otherwise it waits for the other
							b.Until(before, w[first].Done)
						}
						close(w[1-first].Leave)
						<-w[0].Done
						<-w[1].Done
						b.Must(errors.Join(w[0].Err, w[1].Err))
						b.Invariants(when)
						want := "enrolled@ checked@ sent@hello"
						if awakes {
							want += " resumed@wait sent@nudge completed@end"
						}
						if got := b.Trace(s.C1); got != want {
							t.Errorf("%s: %s", when, got)
						}
						both := w[1].N > 0 // the second has read c1 too
						if n := flowstest.Conflicts(w[0].Process) + flowstest.Conflicts(w[1].Process); (n == 1) != both {
							t.Errorf("%s: %d conflicts", when, n)
						}
						s.Finish()
						b.Invariants(when, "at the end")
					}
				}
			}
		})
	}
}

// A trigger arrives while another one of the same profile has enrolled it and not
// committed: it waits, and the first transaction's end decides.
func TestTwoTriggersOfOneProfile(t *testing.T) {
	for name, c := range map[string]struct {
		recurrence, one, two string // ids of the events
		reason               string // why the second is refused
	}{
		"the same uniqueness key": {"once", "e1", "e2", enrollment.AlreadyEnrolled},
		"two uniqueness keys":     {"per_event", "e1", "e2", enrollment.AlreadyActive},
		"the same event":          {"per_event", "e1", "e1", ""},
	} {
		for _, commits := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, commits: %v", name, commits), func(t *testing.T) {
				b := setup(t, 0)
				text := flowstest.UntilTomorrow(c.recurrence, "go")
				if c.reason == enrollment.AlreadyEnrolled { // only the key must refuse
					text = strings.Replace(text, `{"triggers"`, `{"overlap":"allow","triggers"`, 1)
				}
				flow := b.Live(text)
				tx, first := b.holdTrigger(intake.Event{ProfileKey: "c1", Name: "go", ID: c.one})
				other, seen := b.Traced(flow)
				var second intake.Recorded
				two := flowstest.Start(func() (err error) {
					second, err = other.Record(bg, b.Workspace, intake.Event{ProfileKey: "c1", Name: "go", ID: c.two})
					return err
				})
				b.Until(0, two.Done)
				if commits {
					b.Must(tx.Commit(bg))
				} else {
					b.Must(tx.Rollback(bg))
				}
				<-two.Done
				b.Must(two.Err)
				switch {
				case commits && c.reason == "":
					if !second.Duplicate || len(second.Results) != 0 {
						t.Errorf("%+v", second)
					}
				case commits:
					if r := second.Results[0]; r.Outcome != enrollment.Refused || r.Reason != c.reason || r.EnrollmentID == nil ||
						*r.EnrollmentID != *first[0].Results[0].EnrollmentID {
						t.Errorf("%+v", r)
					}
				case second.Duplicate || second.Results[0].Outcome != enrollment.Enrolled:
					t.Errorf("%+v", second)
				}
				b.WantCount(1, `select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, b.Workspace, flow)
				if n, refused := b.Count(`select count(*) from refusals where workspace_id = $1`, b.Workspace),
					commits && c.reason != ""; (n == 1) != refused {
					t.Errorf("%d refusals", n)
				}
				if seen.Begun.Load() != 1 || seen.Enrolls.Load() > 1 {
					t.Errorf("it took %d transactions and %d inserts", seen.Begun.Load(), seen.Enrolls.Load())
				}
				b.Invariants()
			})
		}
	}
}

// The conflicting enrollment ends before the refused trigger can read it: the refusal is
// final, and nothing is retried.
func TestTheConflictingEnrollmentIsGone(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.UntilTomorrow("per_event", "go"))
	b.RecordEvent("c1", "go")
	b.Settle()
	id := b.Enrollment(flow, "c1").ID
	other, seen := b.Traced(flow)
	seen.Stop = func(sql string) {
		if strings.Contains(sql, "as r (flow_id, key, profile_key, i)") {
			_, err := b.Exit(bg, b.Workspace, id, "")
			b.Must(err)
		}
	}
	r, err := other.Record(bg, b.Workspace, intake.Event{ProfileKey: "c1", Name: "go"})
	b.Must(err)
	if got := r.Results[0]; got.Outcome != enrollment.Refused || got.Reason != enrollment.AlreadyActive || got.EnrollmentID != nil {
		t.Errorf("%+v", got)
	}
	if seen.Begun.Load() != 1 || seen.Enrolls.Load() != 1 {
		t.Errorf("it took %d transactions and %d inserts", seen.Begun.Load(), seen.Enrolls.Load())
	}
	if r := b.RecordEvent("c1", "go"); r.Results[0].Outcome != enrollment.Enrolled {
		t.Errorf("%+v", r)
	}
	b.Invariants()
}

// Bulks with the same profiles in opposite orders neither fail nor wait for each other,
// and each profile enrolls once.
func TestBulksInOppositeOrders(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.UntilTomorrow("once", "go"))
	const n = 1000
	var nodes [4]*flowstest.Process
	var seen [4]*flowstest.Tracer
	var all, ready sync.WaitGroup
	ready.Add(len(nodes))
	for i := range nodes {
		nodes[i], seen[i] = b.Traced(flow)
		seen[i].Stop = func(sql string) { // they insert at the same time
			if strings.Contains(sql, "insert into enrollments") && seen[i].Enrolls.Load() == 1 {
				ready.Done()
				ready.Wait()
			}
		}
	}
	for i := range nodes {
		all.Go(func() {
			var events []intake.Event
			for j := range n {
				events = append(events, intake.Event{ProfileKey: fmt.Sprintf("c%d", j), Name: "go"})
			}
			if i >= 2 {
				slices.Reverse(events)
			}
			if _, err := nodes[i].RecordAll(bg, b.Workspace, events); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, s := range seen {
		if s.Deadlocks.Load() != 0 || s.Begun.Load() != 1 {
			t.Errorf("%d deadlocks, %d transactions", s.Deadlocks.Load(), s.Begun.Load())
		}
	}
	if enrolled, refused := b.Count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, b.Workspace,
		flow), b.Count(`select count(*) from refusals where workspace_id = $1`, b.Workspace); enrolled != n || refused != 3*n {
		t.Errorf("%d enrolled and %d refused", enrolled, refused)
	}
	b.Invariants()
}

// A bulk contains a profile twice, and stops between the first and the second of its events.
// Another one, which has the same events in another order, waits for it, and Postgres aborts one.
// From then on it waits until the first has ended, and none is aborted.
func TestBulksThatCrossOver(t *testing.T) {
	for name, other := range map[string][][2]string{
		"twice, too": {{"a", "y"}, {"a", "x"}},
		"each once":  {{"a", "y"}, {"b", "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 0)
			x, y := b.Live(flowstest.HourAfter("x")), b.Live(flowstest.HourAfter("y"))
			process, seen := b.Traced(x, y)
			for pass, want := range []int32{1, 0} {
				start := func(events [][2]string) *flowstest.Task {
					var all []intake.Event
					for _, e := range events {
						all = append(all, intake.Event{ProfileKey: fmt.Sprint(e[0], pass), Name: e[1]})
					}
					return flowstest.Start(func() error { _, err := process.RecordAll(bg, b.Workspace, all); return err })
				}
				reached, release := make(chan struct{}), make(chan struct{})
				var inserts atomic.Int32
				seen.Stop = func(sql string) {
					if strings.Contains(sql, "insert into enrollments") && inserts.Add(1) == 2 {
						close(reached)
						<-release
					}
				}
				before := seen.Deadlocks.Load()
				first := start([][2]string{{"a", "x"}, {"b", "x"}, {"a", "y"}})
				<-reached
				second := start(other)
				b.Eventually("the second waits", func() bool { return b.Waits() > 0 })
				close(release)
				<-first.Done
				<-second.Done
				b.Must(errors.Join(first.Err, second.Err))
				if n := seen.Deadlocks.Load() - before; n != want {
					t.Errorf("pass %d: %d deadlocks", pass, n)
				}
				b.WantCount(3*(pass+1), `select count(*) from enrollments where workspace_id = $1`, b.Workspace)
				b.WantCount(2*(pass+1), `select count(*) from refusals where workspace_id = $1`, b.Workspace)
			}
			b.Invariants()
		})
	}
}

// A worker crashes at each stage, in each possible way. The next worker continues, and
// everything happens once.
func TestAWorkerCrashes(t *testing.T) {
	for name, crashes := range map[string]func(b *bundle, w *flowstest.Stopped){
		"killed":          func(*bundle, *flowstest.Stopped) { runtime.Goexit() },
		"cancelled":       func(_ *bundle, w *flowstest.Stopped) { w.Cancel() },
		"its connections": func(b *bundle, _ *flowstest.Stopped) { b.Cut("victim") },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 2)
			deps := b.Deps
			deps.Pool = b.Connect(func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "victim" })
			for _, stage := range flowstest.Stages {
				for _, awakes := range []bool{false, true} {
					when := fmt.Sprintf("%s, awakes: %v", stage, awakes)
					s := b.NewPair(awakes)
					var w *flowstest.Stopped
					w = b.StopProcess(flowstest.NewProcess(deps, b.Config), stage, func() { crashes(b, w) })
					b.Reached(w)
					close(w.Leave)
					<-w.Done
					b.Invariants(when)
					// The crashed worker released no lease.
					b.StealShards()
					b.Exec(`update flow_shards set retry_at = now() where workspace_id = $1`, b.Workspace) // also after a lost connection
					b.Exec(`update enrollments set resume_at = now() where workspace_id = $1 and status = 'active'
						and blocked_reason is not null`, b.Workspace)
					b.Settle()
					want := "enrolled@ checked@ sent@hello"
					if awakes {
						want += " resumed@wait sent@nudge completed@end"
					}
					if got := b.Trace(s.C1); got != want {
						t.Errorf("%s: %s", when, got)
					}
					s.Finish()
					b.Invariants(when, "at the end")
				}
			}
		})
	}
}

// A commit is applied and its answer is lost: the worker retries later, and repeats
// nothing.
func TestACommitWhoseAnswerIsLost(t *testing.T) {
	b := setup(t, 8)
	flow := b.Live(flowstest.TwoMessages)
	for i := range 8 {
		_, err := b.Enroll(bg, b.Workspace, flow, intake.Enrolling{ProfileKey: fmt.Sprintf("c%d", i+1)}, false)
		b.Must(err)
	}
	b.Exec(`update enrollments set shard = 0 where workspace_id = $1`, b.Workspace)
	var armed atomic.Bool
	deps := b.Deps
	deps.Pool = b.Connect(func(c *pgxpool.Config) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return flowstest.LostAnswer{Conn: conn, Armed: &armed, Asked: &atomic.Bool{}}, err
		}
	})
	for _, size := range []int{8, 1} {
		f := flowstest.NewProcess(deps, flows.Config{Chunk: size, BackOff: time.Millisecond})
		f.Hook.Do = func(stage string) {
			if stage == "acted" {
				f.Hook.Do = nil
				armed.Store(true)
			}
		}
		if _, err := f.RunOnce(bg); err == nil || armed.Load() {
			t.Fatalf("no answer was lost, so nothing was tested: %v", err)
		}
		b.Exec(`update flow_shards set retry_at = now() where workspace_id = $1`, b.Workspace) // it rests after a lost connection
		if _, err := f.RunOnce(bg); err != nil {
			t.Fatal(err)
		}
		b.WantCount(0, `select count(*) from enrollments where workspace_id = $1 and (failures > 0 or blocked_reason is not null)`,
			b.Workspace)
		b.Invariants(size)
		b.Exec(`update enrollments set resume_at = now() where workspace_id = $1 and status = 'active'`, b.Workspace)
	}
	b.Settle()
	for i := range 8 {
		if got, want := b.Trace(b.Enrollment(flow,
			fmt.Sprintf("c%d", i+1)).ID), "enrolled@ checked@ sent@hello resumed@wait sent@nudge completed@end"; got != want {
			t.Errorf("%s", got)
		}
	}
	b.Invariants("at the end")
}

// A message exists already, by accident: its enrollment advances, in one transaction, and
// the message is not duplicated.
func TestAConflictOfMessagesIsAnAnswer(t *testing.T) {
	b := setup(t, 2)
	s := b.NewPair(true)
	b.Exec(`
		insert into notifications (workspace_id, origin_id, key, batch_id, ordinal, profile_key, address, payload, enrollment_id)
		select workspace_id, origin_id, $2, batch_id, ordinal + 100, profile_key, address, payload, enrollment_id
		from notifications where workspace_id = $1 and enrollment_id = $3`, b.Workspace, enrollment.NodeKey(s.C1, "nudge"), s.C1)
	f, seen := b.Traced()
	n, err := f.RunOnce(bg)
	b.Must(err)
	if got := b.Row(s.C1); n != 1 || seen.Begun.Load() != 1 || !strings.Contains(got, "completed") || b.Notifications() != 3 {
		t.Errorf("%d in %d transactions: %s, %d messages", n, seen.Begun.Load(), got, b.Notifications())
	}
	if n, err := f.RunOnce(bg); n != 0 || err != nil {
		t.Errorf("it is retried: %d, %v", n, err)
	}
	s.Finish()
}
