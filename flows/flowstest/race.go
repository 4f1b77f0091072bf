package flowstest

import (
	"context"
	_ "embed"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"lemma/flows"
	"lemma/flows/intake"
	"lemma/pgerr"
	"lemma/pgtest"
)

// Races with real workers. Each is stopped between its steps and continued in every order
// that matters. No test sleeps: a worker has reached a stage, or it waits for a lock, and
// the test checks which.

//go:embed testdata/invariants.sql
var invariantsSQL string

// Invariants checks the properties of flows in the database.
func (b *Fixture) Invariants(when ...any) {
	b.T.Helper()
	rows, err := b.Pool.Query(context.Background(), invariantsSQL, b.Workspace)
	b.Must(err)
	broken, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (text string, err error) {
		var fault, where string
		err = row.Scan(&fault, &where)
		return fault + ": " + where, err
	})
	b.Must(err)
	for _, fault := range broken {
		b.T.Errorf("%v: %s", when, fault)
	}
}

// Task is a function that runs beside the test.
type Task struct {
	Done chan struct{}
	Err  error
}

// Start runs a function beside the test.
func Start(do func() error) *Task {
	t := &Task{Done: make(chan struct{})}
	go func() {
		defer close(t.Done)
		t.Err = do()
	}()
	return t
}

// Stopped is a worker of its own process that stops at one stage of its first chunk until it
// is continued.
type Stopped struct {
	*Process
	*Task
	ctx     context.Context //nolint:containedctx // of the worker, which Cancel stops
	Cancel  context.CancelFunc
	N       int
	Reached chan struct{} // closed when it has reached the stage
	Leave   chan struct{} // closed to continue it
}

// StopAt starts a worker that stops at a stage, and first runs what there.
func (b *Fixture) StopAt(stage string, what ...func()) *Stopped {
	return b.StopProcess(b.Another(), stage, what...)
}

// StopProcess is StopAt with a worker of a given process.
func (b *Fixture) StopProcess(f *Process, stage string, what ...func()) *Stopped {
	w := &Stopped{Process: f, Reached: make(chan struct{}), Leave: make(chan struct{})}
	w.ctx, w.Cancel = context.WithCancel(context.Background()) //nolint:gosec // the next line cancels it
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

// End continues the worker and waits until it ends.
func (w *Stopped) End() error {
	close(w.Leave)
	<-w.Done
	return w.Err
}

// Waits counts the sessions that wait for a lock.
func (b *Fixture) Waits() int {
	b.T.Helper()
	return pgtest.LockWaits(b.T, b.Pool)
}

// Until waits for one of the channels, or until more than before sessions wait for a lock.
func (b *Fixture) Until(before int, any ...<-chan struct{}) {
	b.T.Helper()
	b.Eventually("it ends or waits for a lock", func() bool {
		for _, c := range any {
			select {
			case <-c:
				return true
			default:
			}
		}
		return b.Waits() > before
	})
}

// Reached waits until a worker has reached its stage.
func (b *Fixture) Reached(w *Stopped) {
	b.T.Helper()
	select {
	case <-w.Reached:
	case <-w.Done:
		b.T.Fatalf("the worker ended before the stage: %d, %v", w.N, w.Err)
	case <-time.After(20 * time.Second):
		b.T.Fatal("the worker never reached the stage")
	}
}

// StealShards frees all shards, as if their leases had expired.
func (b *Fixture) StealShards() {
	b.T.Helper()
	b.Exec(`update flow_shards set lease_until = now() - interval '1 second' where workspace_id = $1 and lease_until is not null`, b.Workspace)
}

// Stages are those of a worker, in their order.
var Stages = []string{"read", "evaluated", "locked", "acted", "committed"}

// Pair is a flow with c1, which a worker is about to move, and c2, which waits. With
// awakes, c1's wait is over; otherwise c1 has not entered the first node.
type Pair struct {
	*Fixture
	FlowID uuid.UUID
	C1, C2 uuid.UUID
}

// NewPair sets up the pair of TwoMessages.
func (b *Fixture) NewPair(awakes bool) *Pair {
	b.T.Helper()
	return b.PairOf(TwoMessages, awakes)
}

// PairOf sets up the pair of any flow.
func (b *Fixture) PairOf(text string, awakes bool) *Pair {
	b.T.Helper()
	s := &Pair{Fixture: b, FlowID: b.Live(text)}
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

// Wake ends the wait of one enrollment.
func (b *Fixture) Wake(id uuid.UUID) {
	b.T.Helper()
	b.Exec(`update enrollments set waiting_since = waiting_since - (resume_at - now()), resume_at = now() where workspace_id = $1
		and id = $2`, b.Workspace, id)
}

// Row is an enrollment's row with the number of its notifications.
func (b *Fixture) Row(id uuid.UUID) string {
	return pgtest.One[string](b.T, b.Pool, `
		select e::text || (select count(*) from notifications n where n.workspace_id = e.workspace_id and n.enrollment_id = e.id)
		from enrollments e where workspace_id = $1 and id = $2`, b.Workspace, id)
}

// Finish advances all enrollments to their end.
func (s *Pair) Finish() {
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
	if n := s.Count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and status = 'active'`, s.Workspace,
		s.FlowID); n != 0 {
		s.T.Errorf("%d enrollments do not end", n)
	}
}

// Conflicts reads a worker's counter.
func Conflicts(f *Process) int { return int(Counted(f.Metrics.Conflicts)) }

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

// Tracer counts the statements of a pool, and can stop one.
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
	if pgerr.Retryable(err) {
		t.Deadlocks.Add(1)
	}
}

// TraceQueryStart implements pgx.QueryTracer.
func (t *Tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	t.see(d.SQL)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (t *Tracer) TraceQueryEnd(_ context.Context, _ *pgx.Conn, d pgx.TraceQueryEndData) { t.end(d.Err) }

// TraceBatchStart implements pgx.BatchTracer.
func (t *Tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (t *Tracer) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	t.end(d.Err)
}

// TraceBatchEnd implements pgx.BatchTracer.
func (t *Tracer) TraceBatchEnd(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchEndData) { t.end(d.Err) }

// Traced is a process with a Tracer. It has compiled the first versions of flows.
func (b *Fixture) Traced(flows ...uuid.UUID) (*Process, *Tracer) {
	b.T.Helper()
	seen := &Tracer{}
	deps := b.Deps
	deps.Pool = b.Connect(func(c *pgxpool.Config) { c.ConnConfig.Tracer = seen })
	n := NewProcess(deps, b.Config)
	for _, flow := range flows {
		b.Must(Second(n.Execution.Versions.Get(context.Background(), b.Pool, b.Workspace, flow, 1)))
	}
	return n, seen
}

// Cut terminates connections at the server.
func (b *Fixture) Cut(application string) {
	b.Exec(`select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = current_database()
		and application_name = $1`, application)
}

// LostAnswer is a connection that breaks after a commit was applied, before its answer.
type LostAnswer struct {
	net.Conn
	Armed, Asked *atomic.Bool
}

func (d LostAnswer) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "commit") && d.Armed.Load() {
		d.Asked.Store(true)
	}
	return d.Conn.Write(p)
}

func (d LostAnswer) Read(p []byte) (int, error) {
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
		if n == 0 && b.Count(`select count(*) from flow_moves where workspace_id = $1 and finished_at is null`, b.Workspace) == 0 {
			return
		}
	}
	b.T.Fatal("a move does not end")
}

// CompilesAlone fails the test if a transaction is open while a process compiles a version.
// It returns how many versions were compiled.
func (b *Fixture) CompilesAlone(n *Process) (compiled func() int) {
	var count atomic.Int32
	n.Hook.Do = func(stage string) {
		if stage != "compile" {
			return
		}
		count.Add(1)
		var open int
		err := b.Pool.QueryRow(context.Background(), `select count(*) from pg_stat_activity where datname = current_database()
			and xact_start is not null and pid <> pg_backend_pid() and backend_type = 'client backend'`).Scan(&open)
		if err != nil || open > 0 {
			b.T.Errorf("%d transactions are open while a version is compiled: %v", open, err)
		}
	}
	return func() int { return int(count.Load()) }
}
