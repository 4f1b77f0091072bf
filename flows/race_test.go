package flows

import (
	"context"
	_ "embed"
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
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"lemma"
)

// Races with real workers, each stopped between its steps and let go in every
// order that matters. Nothing here waits for time to pass: a worker stands at a
// stage, or it waits for a lock, and the test sees which.

//go:embed testdata/invariants.sql
var invariantsSQL string

var bg = context.Background()

// invariants asks the database which promise is broken.
func (b *bundle) invariants(when ...any) {
	b.t.Helper()
	rows, err := b.pool.Query(bg, invariantsSQL, b.ws)
	b.must(err)
	broken, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (text string, err error) {
		var fault, who string
		err = row.Scan(&fault, &who)
		return fault + ": " + who, err
	})
	b.must(err)
	for _, fault := range broken {
		b.t.Errorf("%v: %s", when, fault)
	}
}

// task is something that goes on beside the test.
type task struct {
	done chan struct{}
	err  error
}

func start(do func() error) *task {
	t := &task{done: make(chan struct{})}
	go func() {
		defer close(t.done)
		t.err = do()
	}()
	return t
}

// stopped is a worker of a node of its own that stands still at one stage of
// its first lot until it is let go.
type stopped struct {
	*Flows
	*task
	ctx     context.Context
	cancel  context.CancelFunc
	n       int
	reached chan struct{} // closed when it stands there
	leave   chan struct{} // closed to let it go
}

// stopAt starts a worker that will stand still at a stage. What it does there
// is done first.
func (b *bundle) stopAt(stage string, what ...func()) *stopped {
	return b.stopNode(b.another(), stage, what...)
}

func (b *bundle) stopNode(f *Flows, stage string, what ...func()) *stopped {
	w := &stopped{Flows: f, reached: make(chan struct{}), leave: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancel(bg)
	b.t.Cleanup(w.cancel)
	var once sync.Once
	f.hook = func(at string) {
		if at == stage {
			once.Do(func() {
				close(w.reached)
				<-w.leave
				for _, do := range what {
					do()
				}
			})
		}
	}
	w.task = start(func() (err error) {
		w.n, err = f.RunOnce(w.ctx)
		return err
	})
	return w
}

// ends lets the worker go and waits until it is done.
func (w *stopped) ends() error {
	close(w.leave)
	<-w.done
	return w.err
}

// waits counts who waits for a lock.
func (b *bundle) waits() (n int) {
	b.t.Helper()
	b.must(b.pool.QueryRow(bg, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`).Scan(&n))
	return n
}

// until waits for one of the channels, or until more than before wait for a lock.
func (b *bundle) until(before int, any ...<-chan struct{}) {
	b.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		for _, c := range any {
			select {
			case <-c:
				return
			default:
			}
		}
		if b.waits() > before {
			return
		}
	}
	b.t.Fatal("it neither ends nor waits for anybody")
}

// stands waits until a worker is at its stage.
func (b *bundle) stands(w *stopped) {
	b.t.Helper()
	select {
	case <-w.reached:
	case <-w.done:
		b.t.Fatalf("the worker was done before it came there: %d, %v", w.n, w.err)
	case <-time.After(20 * time.Second):
		b.t.Fatal("the worker never came there")
	}
}

// stealTurns makes every turn free for another worker, as when its holder has
// outlived its lease.
func (b *bundle) stealTurns() {
	b.t.Helper()
	b.run(b.pool, `update flow_turns set lease_until = now() - interval '1 second' where workspace_id = $1 and lease_until is not null`, b.ws)
}

var stages = []string{"read", "walked", "locked", "acted", "committed"}

// letters1 is a journey with a letter before and one after a wait, letters2 the
// same with another letter in the place of the last.
const letters1 = `{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"hello","nodes":{
	"hello":{$send,"next":"wait"},"wait":{"type":"delay","for":"P1D","next":"nudge"},"nudge":{$send,"next":"end"},"end":{"type":"exit"}}}`

var letters2 = strings.ReplaceAll(letters1, `"nudge"`, `"other"`)

// scene is a flow with c1, whom a worker is about to move, and c2, who waits.
// c1's wait is over if c1 awakes; otherwise c1 has yet to enter.
type scene struct {
	*bundle
	flow   uuid.UUID
	c1, c2 uuid.UUID
}

func (b *bundle) scene(awakes bool) *scene {
	b.t.Helper()
	return b.sceneOf(letters1, awakes)
}

func (b *bundle) sceneOf(text string, awakes bool) *scene {
	b.t.Helper()
	s := &scene{bundle: b, flow: b.live(text)}
	enroll := func(profile string) uuid.UUID {
		r, err := b.Enroll(bg, b.ws, s.flow, Enrolling{ProfileKey: profile}, false)
		b.must(err)
		return *r.EnrollmentID
	}
	s.c2 = enroll("c2")
	b.settleDown()
	s.c1 = enroll("c1")
	if awakes {
		b.settleDown()
		s.wake(s.c1)
	}
	return s
}

// wake makes one person's wait over.
func (b *bundle) wake(id uuid.UUID) {
	b.t.Helper()
	b.run(b.pool, `update enrollments set waiting_since = waiting_since - (resume_at - now()), resume_at = now() where workspace_id = $1 and id = $2`, b.ws, id)
}

// row is all that is known of somebody.
func (b *bundle) row(id uuid.UUID) (text string) {
	b.must(b.pool.QueryRow(bg, `
		select e::text || (select count(*) from notifications n where n.workspace_id = e.workspace_id and n.enrollment_id = e.id)
		from enrollments e where workspace_id = $1 and id = $2`, b.ws, id).Scan(&text))
	return text
}

// finish lets everybody come to the end.
func (s *scene) finish() {
	s.t.Helper()
	if s.bundle.flow(s.flow).Status == Paused {
		_, err := s.Resume(bg, s.ws, s.flow, ptr(time.Duration(0)), nil)
		s.must(err)
	}
	for range 3 {
		s.moveAllOver()
		s.settleDown()
		s.pass(25 * time.Hour)
	}
	s.settleDown()
	s.must(s.Tick(bg))
	if n := s.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and status = 'active'`, s.flow); n != 0 {
		s.t.Errorf("%d never arrive", n)
	}
}

// overtaken reads a worker's counter.
func overtaken(f *Flows) int {
	r := prometheus.NewRegistry()
	r.MustRegister(f.metrics.overtaken)
	all, err := r.Gather()
	if err != nil {
		panic(err)
	}
	return int(all[0].GetMetric()[0].GetCounter().GetValue())
}

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

// tracer sees every statement of a pool. It can stop one, and counts.
type tracer struct {
	stop      func(sql string) // may block
	begun     atomic.Int32
	deadlocks atomic.Int32
	enrolls   atomic.Int32 // inserts into enrollments
}

func (t *tracer) see(sql string) {
	if strings.HasPrefix(sql, "begin") {
		t.begun.Add(1)
	}
	if strings.Contains(sql, "insert into enrollments") {
		t.enrolls.Add(1)
	}
	if t.stop != nil {
		t.stop(sql)
	}
}

func (t *tracer) end(err error) {
	var said *pgconn.PgError
	if errors.As(err, &said) && (said.Code == "40P01" || said.Code == "40001") {
		t.deadlocks.Add(1)
	}
}

func (t *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	t.see(d.SQL)
	return ctx
}
func (t *tracer) TraceQueryEnd(_ context.Context, _ *pgx.Conn, d pgx.TraceQueryEndData) { t.end(d.Err) }
func (t *tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (t *tracer) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	t.end(d.Err)
}
func (t *tracer) TraceBatchEnd(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchEndData) { t.end(d.Err) }

// ownPool is a second pool on the bundle's database, to look at and to break.
func (b *bundle) ownPool(change func(*pgxpool.Config)) *pgxpool.Pool {
	b.t.Helper()
	cfg := b.pool.Config()
	change(cfg)
	own, err := pgxpool.NewWithConfig(bg, cfg)
	b.must(err)
	b.t.Cleanup(own.Close)
	return own
}

// traced is a node whose statements are seen.
func (b *bundle) traced() (*Flows, *tracer) {
	b.t.Helper()
	seen := &tracer{}
	rooms := b.rooms
	rooms.Pool = b.ownPool(func(c *pgxpool.Config) { c.ConnConfig.Tracer = seen })
	return New(rooms, b.cfg), seen
}

// holdTrigger records events in a transaction that the test ends.
func (b *bundle) holdTrigger(events ...Event) (pgx.Tx, []Recorded) {
	b.t.Helper()
	tx, err := b.pool.Begin(bg)
	b.must(err)
	b.t.Cleanup(func() { _ = tx.Rollback(bg) })
	var all []*occurrence
	for _, e := range events {
		o, err := e.occurrence()
		b.must(err)
		all = append(all, o)
	}
	done, err := (&take{Flows: b.Flows, tx: tx, ws: b.ws}).events(bg, all)
	b.must(err)
	return tx, done
}

func untilTomorrow(recurrence, event string) string {
	return `{"triggers":[{"type":"event","event":"` + event + `"}],"recurrence":{"policy":"` + recurrence + `"},"start":"wait","nodes":{
		"wait":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`
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
		if n := seen[i].begun.Load(); task.err != nil || n > 2 {
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

// cut ends connections at the server.
func (b *bundle) cut(application string) {
	b.run(b.pool, `select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = current_database() and application_name = $1`, application)
}

// deaf is a connection that hears nothing more once a commit has been applied.
type deaf struct {
	net.Conn
	armed, asked *atomic.Bool
}

func (d deaf) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "commit") && d.armed.Load() {
		d.asked.Store(true)
	}
	return d.Conn.Write(p)
}

func (d deaf) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	if d.asked.CompareAndSwap(true, false) {
		d.armed.Store(false)
		_ = d.Conn.Close()
		return 0, net.ErrClosed
	}
	return n, err
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

// timeOut ends everybody's wait here and now, although it began only just now.
func (b *bundle) timeOut() {
	b.t.Helper()
	b.run(b.pool, `update enrollments set resume_at = now() where workspace_id = $1 and status = 'active'`, b.ws)
	b.settleDown()
}

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
		w := b.stopAt(stage)
		b.stands(w)
		var r Recorded
		event := start(func() (err error) {
			r, err = b.another().Record(bg, b.ws, Event{ProfileKey: "c1", Name: "bought at " + stage})
			return err
		})
		b.until(0, event.done)
		b.must(w.ends())
		<-event.done
		b.must(event.err)
		b.settleDown()
		if got, want := b.story(id), "enrolled@ checked@ resumed@first resumed@buy completed@thanks"; got != want {
			t.Errorf("%s, %d woken: %s", stage, r.Woken, got)
		}
		b.invariants(stage)
	}
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
		w := b.stopAt(stage)
		b.stands(w)
		var r Recorded
		event := start(func() (err error) {
			r, err = b.another().Record(bg, b.ws, Event{ProfileKey: "c1", Name: "bought at " + stage})
			return err
		})
		b.until(0, event.done)
		b.must(w.ends())
		<-event.done
		b.must(event.err)
		b.settleDown()
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

// A trigger that has enrolled and not committed holds up every verb; one that
// comes while a verb is at work waits for it, and meets what the verb made.
func TestAVerbIsACleanCutForTriggers(t *testing.T) {
	for name, c := range map[string]struct {
		do      func(b *bundle, f *Flows, flow uuid.UUID, event string) error
		version int    // that the next trigger enrolls into
		reason  string // for which it is refused
	}{
		"publish": {func(b *bundle, f *Flows, flow uuid.UUID, event string) error {
			v, err := f.CreateVersion(bg, b.ws, flow, b.definition(untilTomorrow("per_event", event)))
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
						if strings.Contains(sql, "update flows set version") {
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
