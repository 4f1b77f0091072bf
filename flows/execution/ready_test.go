package execution_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/flows/admission"
	"lemma/flows/execution"
	"lemma/flows/flowstest"
	"lemma/flows/graph"
	"lemma/pgtest"
	"lemma/processors"
)

// A transaction that needs more than it may hold compiles the others itself: it does not
// begin again without end.
func TestATransactionThatNeedsMoreVersionsThanItHolds(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.Minimal)
	begun := 0
	b.Must(b.Another().Execution.Versions.Transact(bg, b.Pool, b.Workspace, execution.Request{}, func(tx pgx.Tx, r *execution.Ready) error {
		begun++
		r.Fill()
		if err := r.Need(map[execution.VersionID]bool{{Flow: flow, Version: 1}: true}); err != nil {
			return err
		}
		g, err := r.Get(bg, tx, flow, 1)
		if err == nil && g == nil {
			t.Error("no graph")
		}
		return err
	}))
	if begun != 1 {
		t.Errorf("%d transactions", begun)
	}
}

// A version that cannot be read is read once, and its error is given to the transaction.
func TestAVersionThatIsMissing(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.Minimal)
	begun := 0
	missing := errors.New("missing")
	err := b.Another().Execution.Versions.Transact(bg, b.Pool, b.Workspace, execution.Request{}, func(tx pgx.Tx, r *execution.Ready) error {
		begun++
		if _, err := r.Get(bg, tx, flow, 9); lemma.KindOf(err) != lemma.NotFound {
			return err
		}
		return missing
	})
	if !errors.Is(err, missing) || begun != 2 {
		t.Errorf("%d transactions: %v", begun, err)
	}
}

// Many transactions that need a version at the same time wait for one that compiles it.
func TestAVersionIsCompiledOnceForAllThatWait(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.Minimal)
	n := b.Another()
	const all = 8
	var compiled atomic.Int32
	var begun, done sync.WaitGroup
	begun.Add(all)
	n.Hook.Do = func(stage string) {
		if stage == "compile" {
			compiled.Add(1)
			begun.Wait()
		}
	}
	for range all {
		done.Go(func() {
			first := sync.OnceFunc(begun.Done)
			err := n.Execution.Versions.Transact(bg, b.Pool, b.Workspace, execution.Request{}, func(tx pgx.Tx, r *execution.Ready) error {
				defer first()
				return flowstest.Second(r.Get(bg, tx, flow, 1))
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	done.Wait()
	if n := compiled.Load(); n != 1 {
		t.Errorf("it was compiled %d times", n)
	}
}

// Callers that waited for a version until their time was over leave one compilation behind, and
// not one each, which would occupy the slot of the workspace one after the other.
func TestCallersThatLeaveShareACompilation(t *testing.T) {
	b := setup(t, 0)
	other, flow := b.Live(flowstest.Minimal), b.Live(flowstest.Welcome)
	n := b.Another()
	get := func(ctx context.Context, flow uuid.UUID) error {
		return flowstest.Second(n.Execution.Versions.Get(ctx, b.Pool, b.Workspace, flow, 1))
	}
	var compiled atomic.Int32
	compiling, release := make(chan struct{}), make(chan struct{})
	n.Hook.Do = func(stage string) {
		if stage != "compile" {
			return
		}
		if compiled.Add(1) == 1 {
			close(compiling)
			<-release
			return
		}
		panic("the version is not cached")
	}
	var first, left sync.WaitGroup
	first.Go(func() { b.Must(get(bg, other)) })
	<-compiling // which has the slot
	for range 8 {
		left.Go(func() {
			ctx, cancel := context.WithTimeout(bg, 200*time.Millisecond)
			defer cancel()
			if err := get(ctx, flow); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a caller that leaves: %v", err)
			}
		})
	}
	left.Wait()
	close(release)
	first.Wait()
	if err := get(bg, flow); err == nil {
		t.Error("the version is cached")
	}
	if n := compiled.Load(); n > 3 { // the other, at most one for all that left, and the last
		t.Errorf("%d compilations", n)
	}
}

// One transaction of a workspace at a time holds large compiled versions. Another waits
// until the time of its request is over.
func TestOneTransactionOfAWorkspaceHoldsLargeVersions(t *testing.T) {
	b := setup(t, 0)
	large := strings.Replace(flowstest.Minimal, `{`, `{"layout":{"x":"`+strings.Repeat("x", 100<<10)+`"},`, 1)
	var need [2]map[execution.VersionID]bool
	for i := range need {
		need[i] = map[execution.VersionID]bool{{Flow: b.Live(large), Version: 1}: true, {Flow: b.Live(large), Version: 1}: true}
	}
	versions := &b.Another().Execution.Versions
	b.Must(versions.Transact(bg, b.Pool, b.Workspace, execution.Request{}, func(_ pgx.Tx, r *execution.Ready) error {
		if err := r.Need(need[0]); err != nil {
			return err
		}
		err := versions.Transact(bg, b.Pool, b.Workspace, execution.Request{Time: 50 * time.Millisecond},
			func(_ pgx.Tx, r *execution.Ready) error { return r.Need(need[1]) })
		if !admission.IsOverloaded(err) {
			t.Errorf("the other: %v", err)
		}
		return nil
	}))
	b.Must(versions.Transact(bg, b.Pool, b.Workspace, execution.Request{}, func(_ pgx.Tx, r *execution.Ready) error {
		return r.Need(need[1])
	}))
}

// A small version does not wait for a large one that is being compiled. Another large one
// waits for as long as its caller.
func TestASmallVersionDoesNotWaitForLargeOnes(t *testing.T) {
	b := setup(t, 0)
	large := strings.Replace(flowstest.Minimal, `{`, `{"layout":{"x":"`+strings.Repeat("x", 10<<10)+`"},`, 1)
	first, second, small := b.Live(large), b.Live(large), b.Live(flowstest.Minimal)
	n := b.Another()
	begun, free := make(chan struct{}), make(chan struct{})
	var calls atomic.Int32
	n.Hook.Do = func(stage string) {
		if stage == "compile" && calls.Add(1) == 1 {
			close(begun)
			<-free
		}
	}
	get := func(ctx context.Context, flow uuid.UUID) error {
		return flowstest.Second(n.Execution.Versions.Get(ctx, b.Pool, b.Workspace, flow, 1))
	}
	done := make(chan error, 1)
	go func() { done <- get(bg, first) }()
	<-begun
	within, cancel := context.WithTimeout(bg, 10*time.Second)
	defer cancel()
	b.Must(get(within, small))
	short, cancelShort := context.WithTimeout(bg, 50*time.Millisecond)
	defer cancelShort()
	if err := get(short, second); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the other large one: %v", err)
	}
	close(free)
	b.Must(<-done)
	b.Must(get(bg, second))
}

// A version that waits for the computations of its own workspace holds no place that others need.
func TestAVersionDoesNotWaitForThoseOfABusyWorkspace(t *testing.T) {
	b := setup(t, 0)
	busy, flow := pgtest.Workspace(t, b.Pool), b.Live(flowstest.Minimal)
	its := lemma.NewID()
	b.Exec(`insert into flows select (jsonb_populate_record(f, jsonb_build_object('workspace_id', $1::uuid, 'id', $2::uuid,
		'status', 'draft', 'live_version', null))).* from flows f where id = $3`, busy, its, flow)
	b.Exec(`insert into flow_versions select (jsonb_populate_record(v, jsonb_build_object('workspace_id', $1::uuid, 'flow_id', $2::uuid))).*
		from flow_versions v where flow_id = $3`, busy, its, flow)
	var held []*processors.Turn
	for range max(1, runtime.GOMAXPROCS(0)-1) {
		turn, err := graph.Advance(bg, busy, true)
		b.Must(err)
		held = append(held, turn)
	}
	n := b.Another()
	get := func(ctx context.Context, ws, flow uuid.UUID) error {
		return flowstest.Second(n.Execution.Versions.Get(ctx, b.Pool, ws, flow, 1))
	}
	short, cancel := context.WithTimeout(bg, 100*time.Millisecond)
	defer cancel()
	if err := get(short, busy, its); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("its own: %v", err)
	}
	within, cancelWithin := context.WithTimeout(bg, 10*time.Second)
	defer cancelWithin()
	b.Must(get(within, b.Workspace, flow))
	for _, turn := range held {
		turn.Leave()
	}
	b.Must(get(bg, busy, its))
}
