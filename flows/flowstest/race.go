package flowstest

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

	"lemma/flows"
	"lemma/flows/intake"
)

// Races with real workers, each stopped between its steps and let go in every
// order that matters. Nothing here waits for time to pass: a worker stands at a
// stage, or it waits for a lock, and the test sees which.

//go:embed testdata/invariants.sql
var invariantsSQL string

// Invariants asks the database which promise is broken.
func (b *Fixture) Invariants(when ...any) {
	b.T.Helper()
	rows, err := b.Pool.Query(context.Background(), invariantsSQL, b.Workspace)
	b.Must(err)
	broken, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (text string, err error) {
		var fault, who string
		err = row.Scan(&fault, &who)
		return fault + ": " + who, err
	})
	b.Must(err)
	for _, fault := range broken {
		b.T.Errorf("%v: %s", when, fault)
	}
}

// Task is something that goes on beside the test.
type Task struct {
	Done chan struct{}
	Err  error
}

// Start does something beside the test.
func Start(do func() error) *Task {
	t := &Task{Done: make(chan struct{})}
	go func() {
		defer close(t.Done)
		t.Err = do()
	}()
	return t
}

// Stopped is a worker of a node of its own that stands still at one stage of
// its first chunk until it is let go.
type Stopped struct {
	*Node
	*Task
	ctx     context.Context
	Cancel  context.CancelFunc
	N       int
	Reached chan struct{} // closed when it stands there
	Leave   chan struct{} // closed to let it go
}

// StopAt starts a worker that will stand still at a stage. What it does there
// is done first.
func (b *Fixture) StopAt(stage string, what ...func()) *Stopped {
	return b.StopNode(b.Another(), stage, what...)
}

// StopNode is StopAt with a worker of a given node.
func (b *Fixture) StopNode(f *Node, stage string, what ...func()) *Stopped {
	w := &Stopped{Node: f, Reached: make(chan struct{}), Leave: make(chan struct{})}
	w.ctx, w.Cancel = context.WithCancel(context.Background())
	b.T.Cleanup(w.Cancel)
	var once sync.Once
	f.Hook.Do = func(at string) {
		if at == stage {
			once.Do(func() {
				close(w.Reached)
				<-w.Leave
				for _, do := range what {
					do()
				}
			})
		}
	}
	w.Task = Start(func() (err error) {
		w.N, err = f.RunOnce(w.ctx)
		return err
	})
	return w
}

// End lets the worker go and waits until it is done.
func (w *Stopped) End() error {
	close(w.Leave)
	<-w.Done
	return w.Err
}

// Waits counts who waits for a lock.
func (b *Fixture) Waits() (n int) {
	b.T.Helper()
	b.Must(b.Pool.QueryRow(context.Background(),
		`select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`).Scan(&n))
	return n
}

// Until waits for one of the channels, or until more than before wait for a lock.
func (b *Fixture) Until(before int, any ...<-chan struct{}) {
	b.T.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		for _, c := range any {
			select {
			case <-c:
				return
			default:
			}
		}
		if b.Waits() > before {
			return
		}
	}
	b.T.Fatal("it neither ends nor waits for anybody")
}

// Stands waits until a worker is at its stage.
func (b *Fixture) Stands(w *Stopped) {
	b.T.Helper()
	select {
	case <-w.Reached:
	case <-w.Done:
		b.T.Fatalf("the worker was done before it came there: %d, %v", w.N, w.Err)
	case <-time.After(20 * time.Second):
		b.T.Fatal("the worker never came there")
	}
}

// StealShards makes every turn free for another worker, as when its holder has
// outlived its lease.
func (b *Fixture) StealShards() {
	b.T.Helper()
	b.Exec(b.Pool, `update flow_shards set lease_until = now() - interval '1 second' where workspace_id = $1 and lease_until is not null`, b.Workspace)
}

// Stages are those of a worker, in their order.
var Stages = []string{"read", "evaluated", "locked", "acted", "committed"}

// Scene is a flow with c1, whom a worker is about to move, and c2, who waits.
// c1's wait is over if c1 awakes; otherwise c1 has yet to enter.
type Scene struct {
	*Fixture
	FlowID uuid.UUID
	C1, C2 uuid.UUID
}

// NewScene sets up a scene of TwoMessages.
func (b *Fixture) NewScene(awakes bool) *Scene {
	b.T.Helper()
	return b.SceneOf(TwoMessages, awakes)
}

// SceneOf sets up a scene of any flow.
func (b *Fixture) SceneOf(text string, awakes bool) *Scene {
	b.T.Helper()
	s := &Scene{Fixture: b, FlowID: b.Live(text)}
	enroll := func(profile string) uuid.UUID {
		r, err := b.Enroll(context.Background(), b.Workspace, s.FlowID, intake.Enrolling{ProfileKey: profile}, false)
		b.Must(err)
		return *r.EnrollmentID
	}
	s.C2 = enroll("c2")
	b.Settle()
	s.C1 = enroll("c1")
	if awakes {
		b.Settle()
		s.Wake(s.C1)
	}
	return s
}

// Wake makes one person's wait over.
func (b *Fixture) Wake(id uuid.UUID) {
	b.T.Helper()
	b.Exec(b.Pool, `update enrollments set waiting_since = waiting_since - (resume_at - now()), resume_at = now() where workspace_id = $1 and id = $2`, b.Workspace, id)
}

// Row is all that is known of somebody.
func (b *Fixture) Row(id uuid.UUID) (text string) {
	b.Must(b.Pool.QueryRow(context.Background(), `
		select e::text || (select count(*) from notifications n where n.workspace_id = e.workspace_id and n.enrollment_id = e.id)
		from enrollments e where workspace_id = $1 and id = $2`, b.Workspace, id).Scan(&text))
	return text
}

// Finish lets everybody come to the end.
func (s *Scene) Finish() {
	s.T.Helper()
	if s.Fixture.Flow(s.FlowID).Status == flows.Paused {
		_, err := s.Resume(context.Background(), s.Workspace, s.FlowID, new(time.Duration(0)), nil)
		s.Must(err)
	}
	for range 3 {
		s.FinishMoves()
		s.Settle()
		s.Pass(25 * time.Hour)
	}
	s.Settle()
	s.Must(s.Tick(context.Background()))
	if n := s.Count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and status = 'active'`, s.FlowID); n != 0 {
		s.T.Errorf("%d never arrive", n)
	}
}

// Conflicts reads a worker's counter.
func Conflicts(f *Node) int { return int(Counted(f.Metrics.Conflicts)) }

// Counted reads a counter.
func Counted(c prometheus.Counter) float64 {
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	all, err := r.Gather()
	if err != nil {
		panic(err)
	}
	return all[0].GetMetric()[0].GetCounter().GetValue()
}

// Tracer sees every statement of a pool. It can stop one, and counts.
type Tracer struct {
	Stop      func(sql string) // may block
	Begun     atomic.Int32
	Deadlocks atomic.Int32
	Enrolls   atomic.Int32 // inserts into enrollments
}

func (t *Tracer) see(sql string) {
	if strings.HasPrefix(sql, "begin") {
		t.Begun.Add(1)
	}
	if strings.Contains(sql, "insert into enrollments") {
		t.Enrolls.Add(1)
	}
	if t.Stop != nil {
		t.Stop(sql)
	}
}

func (t *Tracer) end(err error) {
	var detail *pgconn.PgError
	if errors.As(err, &detail) && (detail.Code == "40P01" || detail.Code == "40001") {
		t.Deadlocks.Add(1)
	}
}

func (t *Tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	t.see(d.SQL)
	return ctx
}

func (t *Tracer) TraceQueryEnd(_ context.Context, _ *pgx.Conn, d pgx.TraceQueryEndData) { t.end(d.Err) }

func (t *Tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (t *Tracer) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	t.end(d.Err)
}

func (t *Tracer) TraceBatchEnd(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchEndData) { t.end(d.Err) }

// OwnPool is a second pool on the bundle's database, to check and to break.
func (b *Fixture) OwnPool(change func(*pgxpool.Config)) *pgxpool.Pool {
	b.T.Helper()
	cfg := b.Pool.Config()
	change(cfg)
	own, err := pgxpool.NewWithConfig(context.Background(), cfg)
	b.Must(err)
	b.T.Cleanup(own.Close)
	return own
}

// Traced is a node whose statements are seen.
func (b *Fixture) Traced() (*Node, *Tracer) {
	b.T.Helper()
	seen := &Tracer{}
	deps := b.Deps
	deps.Pool = b.OwnPool(func(c *pgxpool.Config) { c.ConnConfig.Tracer = seen })
	return NewNode(deps, b.Config), seen
}

// Cut ends connections at the server.
func (b *Fixture) Cut(application string) {
	b.Exec(b.Pool, `select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = current_database() and application_name = $1`, application)
}

// Deaf is a connection that hears nothing more once a commit has been applied.
type Deaf struct {
	net.Conn
	Armed, Asked *atomic.Bool
}

func (d Deaf) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "commit") && d.Armed.Load() {
		d.Asked.Store(true)
	}
	return d.Conn.Write(p)
}

func (d Deaf) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	if d.Asked.CompareAndSwap(true, false) {
		d.Armed.Store(false)
		_ = d.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

// FinishMoves works until no move is open.
func (b *Fixture) FinishMoves() {
	b.T.Helper()
	for range 1000 {
		n, err := b.MoveOnce(context.Background())
		b.Must(err)
		if n == 0 && b.Count(`select count(*) from flow_moves where workspace_id = $1 and finished_at is null`) == 0 {
			return
		}
	}
	b.T.Fatal("a move does not end")
}
