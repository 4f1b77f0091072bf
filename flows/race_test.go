package flows

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

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Two workers have the same lot, since the first one's turn ran out. Each
// stands at each stage, and either is let go first.
func TestTwoWorkersWithTheSameLot(t *testing.T) {
	for _, awakes := range []bool{false, true} {
		t.Run(fmt.Sprint("awakes: ", awakes), func(t *testing.T) {
			b := setup(t, 2)
			for _, one := range stages {
				for _, two := range stages {
					for _, first := range []int{0, 1} {
						when := fmt.Sprintf("one %s, two %s, let go first: %d", one, two, first)
						s := b.scene(awakes)
						w := [2]*stopped{b.stopAt(one)}
						b.stands(w[0])
						b.stealTurns()
						w[1] = b.stopAt(two)
						b.until(0, w[1].reached, w[1].done)
						before := b.waits()
						close(w[first].leave)
						if first == 0 || before == 0 { // else it waits for the other
							b.until(before, w[first].done)
						}
						close(w[1-first].leave)
						<-w[0].done
						<-w[1].done
						b.must(errors.Join(w[0].err, w[1].err))
						b.invariants(when)
						want := "enrolled@ checked@ sent@hello"
						if awakes {
							want += " resumed@wait sent@nudge completed@end"
						}
						if got := b.story(s.c1); got != want {
							t.Errorf("%s: %s", when, got)
						}
						both := w[1].n > 0 // the second has read c1 too
						if n := overtaken(w[0].Flows) + overtaken(w[1].Flows); (n == 1) != both {
							t.Errorf("%s: %d were overtaken", when, n)
						}
						s.finish()
						b.invariants(when, "at the end")
					}
				}
			}
		})
	}
}

// A trigger comes while another of the same profile has enrolled her and not
// committed: it waits, and the first one's end decides.
func TestTwoTriggersOfOneProfile(t *testing.T) {
	for name, c := range map[string]struct {
		recurrence, one, two string // ids of the events
		reason               string // for which the second is refused
	}{
		"the same uniqueness key": {"once", "e1", "e2", AlreadyEnrolled},
		"two uniqueness keys":     {"per_event", "e1", "e2", AlreadyActive},
		"the same event":          {"per_event", "e1", "e1", ""},
	} {
		for _, commits := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, commits: %v", name, commits), func(t *testing.T) {
				b := setup(t, 0)
				text := untilTomorrow(c.recurrence, "go")
				if c.reason == AlreadyEnrolled { // the key alone is to refuse
					text = strings.Replace(text, `{"triggers"`, `{"overlap":"allow","triggers"`, 1)
				}
				flow := b.live(text)
				tx, first := b.holdTrigger(Event{ProfileKey: "c1", Name: "go", ID: c.one})
				other, seen := b.traced()
				var second Recorded
				two := start(func() (err error) {
					second, err = other.Record(bg, b.ws, Event{ProfileKey: "c1", Name: "go", ID: c.two})
					return err
				})
				b.until(0, two.done)
				if commits {
					b.must(tx.Commit(bg))
				} else {
					b.must(tx.Rollback(bg))
				}
				<-two.done
				b.must(two.err)
				switch {
				case commits && c.reason == "":
					if !second.Duplicate || len(second.Results) != 0 {
						t.Errorf("%+v", second)
					}
				case commits:
					if r := second.Results[0]; r.Outcome != Refused || r.Reason != c.reason || r.EnrollmentID == nil || *r.EnrollmentID != *first[0].Results[0].EnrollmentID {
						t.Errorf("%+v", r)
					}
				case second.Duplicate || second.Results[0].Outcome != Enrolled:
					t.Errorf("%+v", second)
				}
				if n := b.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, flow); n != 1 {
					t.Errorf("%d enrollments", n)
				}
				if n, refused := b.count(`select count(*) from refusals where workspace_id = $1`), commits && c.reason != ""; (n == 1) != refused {
					t.Errorf("%d refusals", n)
				}
				if seen.begun.Load() != 1 || seen.enrolls.Load() > 1 {
					t.Errorf("it took %d transactions and %d inserts", seen.begun.Load(), seen.enrolls.Load())
				}
				b.invariants()
			})
		}
	}
}

// The journey that refuses a trigger ends before the trigger can see whose it
// was: the refusal stands, and nobody tries again.
func TestTheRivalIsGone(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(untilTomorrow("per_event", "go"))
	b.tell("c1", "go")
	b.settleDown()
	id := b.enrollment(flow, "c1").ID
	other, seen := b.traced()
	seen.stop = func(sql string) {
		if strings.Contains(sql, "as r (flow_id, key, profile_key, i)") {
			_, err := b.Exit(bg, b.ws, id, "")
			b.must(err)
		}
	}
	r, err := other.Record(bg, b.ws, Event{ProfileKey: "c1", Name: "go"})
	b.must(err)
	if got := r.Results[0]; got.Outcome != Refused || got.Reason != AlreadyActive || got.EnrollmentID != nil {
		t.Errorf("%+v", got)
	}
	if seen.begun.Load() != 1 || seen.enrolls.Load() != 1 {
		t.Errorf("it took %d transactions and %d inserts", seen.begun.Load(), seen.enrolls.Load())
	}
	if r := b.tell("c1", "go"); r.Results[0].Outcome != Enrolled {
		t.Errorf("%+v", r)
	}
	b.invariants()
}

// Bulks that name the same people in opposite orders neither fail nor stand in
// each other's way, and everybody is enrolled once.
func TestBulksInOppositeOrders(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(untilTomorrow("once", "go"))
	const n = 1000
	var nodes [4]*Flows
	var seen [4]*tracer
	var all, ready sync.WaitGroup
	ready.Add(len(nodes))
	for i := range nodes {
		nodes[i], seen[i] = b.traced()
		seen[i].stop = func(sql string) { // they insert at the same time
			if strings.Contains(sql, "insert into enrollments") && seen[i].enrolls.Load() == 1 {
				ready.Done()
				ready.Wait()
			}
		}
	}
	for i := range nodes {
		all.Go(func() {
			var events []Event
			for j := range n {
				events = append(events, Event{ProfileKey: fmt.Sprintf("c%d", j), Name: "go"})
			}
			if i >= 2 {
				slices.Reverse(events)
			}
			if _, err := nodes[i].RecordAll(bg, b.ws, events); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, s := range seen {
		if s.deadlocks.Load() != 0 || s.begun.Load() != 1 {
			t.Errorf("%d deadlocks, %d transactions", s.deadlocks.Load(), s.begun.Load())
		}
	}
	if enrolled, refused := b.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, flow), b.count(`select count(*) from refusals where workspace_id = $1`); enrolled != n || refused != 3*n {
		t.Errorf("%d enrolled and %d refused", enrolled, refused)
	}
	b.invariants()
}

// Of two bulks each has one person twice, with two events in opposite orders;
// each stands between the first and the second. Postgres breaks one off, which
// is tried again: nobody is told, and everybody is enrolled once.
func TestBulksThatCrossOver(t *testing.T) {
	b := setup(t, 0)
	x, y := b.live(untilTomorrow("once", "x")), b.live(untilTomorrow("once", "y"))
	var both sync.WaitGroup
	both.Add(2)
	var seen [2]*tracer
	var tasks [2]*task
	for i, names := range [2][2]string{{"x", "y"}, {"y", "x"}} {
		var f *Flows
		f, seen[i] = b.traced()
		seen[i].stop = func(sql string) {
			if strings.Contains(sql, "insert into enrollments") && seen[i].enrolls.Load() == 2 && seen[i].begun.Load() == 1 {
				both.Done()
				both.Wait()
			}
		}
		tasks[i] = start(func() error {
			_, err := f.RecordAll(bg, b.ws, []Event{{ProfileKey: "c1", Name: names[0]}, {ProfileKey: "c1", Name: names[1]}})
			return err
		})
	}
	for i, task := range tasks {
		<-task.done
		if n := seen[i].begun.Load(); task.err != nil || n > deadlocks {
			t.Errorf("%d tries, %v", n, task.err)
		}
	}
	for _, flow := range []uuid.UUID{x, y} {
		b.enrollment(flow, "c1")
	}
	if n := b.count(`select count(*) from refusals where workspace_id = $1 and reason = 'already_enrolled'`); n != 2 {
		t.Errorf("%d refusals", n)
	}
	b.invariants()
}

// A worker dies at each stage, in each way that one can. Whoever comes next
// carries on, and everything happens once.
func TestAWorkerDies(t *testing.T) {
	for name, dies := range map[string]func(b *bundle, w *stopped){
		"killed":          func(*bundle, *stopped) { runtime.Goexit() },
		"told to go":      func(_ *bundle, w *stopped) { w.cancel() },
		"its connections": func(b *bundle, _ *stopped) { b.cut("victim") },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 2)
			rooms := b.rooms
			rooms.Pool = b.ownPool(func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "victim" })
			for _, stage := range stages {
				for _, awakes := range []bool{false, true} {
					when := fmt.Sprintf("%s, awakes: %v", stage, awakes)
					s := b.scene(awakes)
					var w *stopped
					w = b.stopNode(New(rooms, b.cfg), stage, func() { dies(b, w) })
					b.stands(w)
					close(w.leave)
					<-w.done
					b.invariants(when)
					b.stealTurns() // who died gave nothing back
					b.run(b.pool, `update enrollments set resume_at = now() where workspace_id = $1 and status = 'active' and trouble is not null`, b.ws)
					b.settleDown()
					want := "enrolled@ checked@ sent@hello"
					if awakes {
						want += " resumed@wait sent@nudge completed@end"
					}
					if got := b.story(s.c1); got != want {
						t.Errorf("%s: %s", when, got)
					}
					s.finish()
					b.invariants(when, "at the end")
				}
			}
		})
	}
}

// A commit is applied and its answer is lost: the worker tries again, finds its
// people moved, and does nothing twice.
func TestACommitWhoseAnswerIsLost(t *testing.T) {
	b := setup(t, 8)
	flow := b.live(letters1)
	for i := range 8 {
		_, err := b.Enroll(bg, b.ws, flow, Enrolling{ProfileKey: fmt.Sprintf("c%d", i+1)}, false)
		b.must(err)
	}
	b.run(b.pool, `update enrollments set turn = 0 where workspace_id = $1`, b.ws)
	var armed atomic.Bool
	rooms := b.rooms
	rooms.Pool = b.ownPool(func(c *pgxpool.Config) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return deaf{conn, &armed, &atomic.Bool{}}, err
		}
	})
	for _, size := range []int{8, 1} {
		f := New(rooms, Config{Lot: size, BackOff: time.Millisecond})
		f.hook = func(stage string) {
			if stage == "acted" {
				f.hook = nil
				armed.Store(true)
			}
		}
		if _, err := f.RunOnce(bg); err != nil {
			t.Fatal(err)
		}
		if armed.Load() {
			t.Fatal("no answer was lost: this has shown nothing")
		}
		if n := overtaken(f); n != size {
			t.Errorf("%d were found moved, of %d", n, size)
		}
		b.invariants(size)
		b.run(b.pool, `update enrollments set resume_at = now() where workspace_id = $1 and status = 'active'`, b.ws)
	}
	b.settleDown()
	for i := range 8 {
		if got, want := b.story(b.enrollment(flow, fmt.Sprintf("c%d", i+1)).ID), "enrolled@ checked@ sent@hello resumed@wait sent@nudge completed@end"; got != want {
			t.Errorf("%s", got)
		}
	}
	b.invariants("at the end")
}

// A letter is there already, by whatever accident: its enrollment goes on, in
// one transaction, and the letter is not doubled.
func TestAConflictOfLettersIsAnAnswer(t *testing.T) {
	b := setup(t, 2)
	s := b.scene(true)
	b.run(b.pool, `
		insert into notifications (workspace_id, origin_id, key, batch_id, ordinal, profile_key, address, payload, enrollment_id)
		select workspace_id, origin_id, $2, batch_id, ordinal + 100, profile_key, address, payload, enrollment_id
		from notifications where workspace_id = $1 and enrollment_id = $3`, b.ws, NodeKey(s.c1, "nudge"), s.c1)
	f, seen := b.traced()
	n, err := f.RunOnce(bg)
	b.must(err)
	if got := b.row(s.c1); n != 1 || seen.begun.Load() != 1 || !strings.Contains(got, "completed") || b.notifications() != 3 {
		t.Errorf("%d in %d transactions: %s, %d letters", n, seen.begun.Load(), got, b.notifications())
	}
	if n, err := f.RunOnce(bg); n != 0 || err != nil {
		t.Errorf("it is tried again: %d, %v", n, err)
	}
	s.finish()
}
