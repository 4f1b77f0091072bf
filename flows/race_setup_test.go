package flows

import (
	"context"
	_ "embed"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
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
