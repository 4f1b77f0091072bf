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

	"lemma"
)

// An admin does each thing while a worker stands at each stage.
func TestAnAdminBesideAWorker(t *testing.T) {
	version2 := func(s *scene, in InFlight) error {
		v, err := s.CreateVersion(bg, s.ws, s.flow, s.definition(letters2))
		s.must(err)
		_, err = s.Publish(bg, s.ws, s.flow, v.Version, nil, in, nil)
		return err
	}
	type verb struct {
		do    func(s *scene) error
		takes bool // c1 away from a worker that has read c1
		stops bool // the worker, without a change to c1
	}
	for name, v := range map[string]verb{
		"publishes, all stay": {do: func(s *scene) error { return version2(s, InFlight{Mode: "stay"}) }},
		"publishes, all move": {do: func(s *scene) error {
			defer s.moveAllOver()
			return version2(s, InFlight{Mode: "move", Map: map[string]*string{"nudge": ptr("other")}})
		}, takes: true},
		"publishes, all exit": {do: func(s *scene) error {
			defer s.moveAllOver()
			return version2(s, InFlight{Mode: "exit"})
		}, takes: true},
		"moves by hand":  {do: func(s *scene) error { _, err := s.Move(bg, s.ws, s.c1, nil, "wait"); return err }, takes: true},
		"moves back":     {do: func(s *scene) error { _, err := s.Move(bg, s.ws, s.c1, nil, "hello"); return err }, takes: true},
		"exits by hand":  {do: func(s *scene) error { _, err := s.Exit(bg, s.ws, s.c1, ""); return err }, takes: true},
		"pauses":         {do: func(s *scene) error { _, err := s.Pause(bg, s.ws, s.flow, nil); return err }, stops: true},
		"drains":         {do: func(s *scene) error { _, err := s.Drain(bg, s.ws, s.flow, nil); return err }},
		"archives":       {do: func(s *scene) error { _, err := s.Archive(bg, s.ws, s.flow, nil); return err }, stops: true},
		"archives, exit": {do: func(s *scene) error { defer s.moveAllOver(); _, err := s.Archive(bg, s.ws, s.flow, nil); return err }, stops: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 2)
			for _, stage := range stages {
				for _, awakes := range []bool{false, true} {
					when := fmt.Sprintf("%s, awakes: %v", stage, awakes)
					s := b.scene(awakes)
					bystander := b.row(s.c2)
					w := b.stopAt(stage)
					b.stands(w)
					var answered string
					admin := start(func() error {
						err := v.do(s)
						answered = b.row(s.c1)
						return err
					})
					b.until(0, admin.done)
					b.must(w.ends())
					<-admin.done
					if admin.err != nil && lemma.KindOf(admin.err) != lemma.WrongState { // c1 was at the end first
						t.Fatal(when, admin.err)
					}
					if now := b.row(s.c1); (v.takes || v.stops) && now != answered {
						t.Errorf("%s: something was done to c1 after the answer:\n%s\n%s", when, answered, now)
					}
					early := stage == "read" || stage == "walked"
					if n := overtaken(w.Flows); (n == 1) != (v.takes && early) {
						t.Errorf("%s: the worker was overtaken %d times", when, n)
					}
					if now := b.row(s.c2); !v.takes && name != "archives, exit" && now != bystander {
						t.Errorf("%s: something was done to c2:\n%s\n%s", when, bystander, now)
					}
					b.invariants(when)
					s.finish()
					b.invariants(when, "at the end")
				}
			}
		})
	}
}

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

// A trigger that has enrolled and not committed holds up every verb; one that
// comes while a verb is at work waits for it, and meets what the verb made.
func TestAVerbIsACleanCutForTriggers(t *testing.T) {
	for name, c := range map[string]struct {
		do      func(b *bundle, f *Flows, flow uuid.UUID, event string) error
		version int    // that the next trigger enrolls into
		reason  string // for which it is refused
	}{
		"publish": {func(b *bundle, f *Flows, flow uuid.UUID, event string) error {
			v, err := f.CreateVersion(bg, b.ws, flow, b.definition(untilTomorrow("per_event", event)), uuid.Nil)
			b.must(err)
			_, err = f.Publish(bg, b.ws, flow, v.Version, nil, InFlight{}, nil)
			return err
		}, 2, ""},
		"pause": {func(b *bundle, f *Flows, flow uuid.UUID, _ string) error {
			_, err := f.Pause(bg, b.ws, flow, nil)
			return err
		}, 0, IsPaused},
		"drain": {func(b *bundle, f *Flows, flow uuid.UUID, _ string) error {
			_, err := f.Drain(bg, b.ws, flow, nil)
			return err
		}, 0, NotLive},
		"archive": {func(b *bundle, f *Flows, flow uuid.UUID, _ string) error {
			_, err := f.Archive(bg, b.ws, flow, nil)
			return err
		}, 0, NotLive},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 0)
			for _, triggerFirst := range []bool{true, false} {
				event := fmt.Sprint("go ", triggerFirst)
				flow := b.live(untilTomorrow("per_event", event))
				f, seen := b.traced()
				var r Result
				if triggerFirst {
					tx, first := b.holdTrigger(Event{ProfileKey: "c1", Name: event})
					verb := start(func() error { return c.do(b, f, flow, event) })
					b.until(0, verb.done)
					b.must(tx.Commit(bg))
					<-verb.done
					b.must(verb.err)
					if e := b.enrollment(flow, "c1"); first[0].Results[0].Outcome != Enrolled || e.Version != 1 || e.Status == Exited {
						t.Errorf("%+v", e)
					}
				} else {
					reached, leave := make(chan struct{}), make(chan struct{})
					seen.stop = func(sql string) {
						if strings.Contains(sql, "update flows set version = ") {
							close(reached)
							<-leave
						}
					}
					verb := start(func() error { return c.do(b, f, flow, event) })
					<-reached
					trigger := start(func() error {
						got, err := b.Record(bg, b.ws, Event{ProfileKey: "c1", Name: event})
						if len(got.Results) > 0 {
							r = got.Results[0]
						}
						return err
					})
					b.until(0, trigger.done)
					close(leave)
					<-verb.done
					<-trigger.done
					b.must(errors.Join(verb.err, trigger.err))
					if r.Reason != c.reason || (c.version > 0) != (r.Outcome == Enrolled) {
						t.Errorf("%+v", r)
					}
					if n := b.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and version = $3`, flow, c.version); (n == 1) != (c.version > 0) {
						t.Errorf("%d enrolled", n)
					}
				}
				b.invariants(triggerFirst)
			}
		})
	}
}

// Triggers that come one after the other without a gap do not keep a verb
// waiting for ever: who comes after it waits for it.
func TestAVerbDoesNotStarve(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(untilTomorrow("per_event", "go"))
	tx, _ := b.holdTrigger(Event{ProfileKey: "c1", Name: "go"})
	pause := start(func() error { _, err := b.Pause(bg, b.ws, flow, nil); return err })
	b.until(0, pause.done)
	var r Recorded
	before := b.waits()
	late := start(func() (err error) {
		r, err = b.another().Record(bg, b.ws, Event{ProfileKey: "c2", Name: "go"})
		return err
	})
	b.until(before, late.done)
	b.must(tx.Commit(bg))
	<-pause.done
	<-late.done
	b.must(errors.Join(pause.err, late.err))
	if got := r.Results[0]; got.Reason != IsPaused {
		t.Errorf("a trigger overtook the pause that waited before it: %+v", got)
	}
}
