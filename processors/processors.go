// Package processors bounds what a process computes of one kind for its workspaces at a time.
package processors

import (
	"context"
	"runtime"
	"slices"

	"github.com/google/uuid"

	"lemma/slots"
)

// Processors are as many slots as processors: with more computations than these, each would take long
// because of the others.
//
// One workspace leaves one to the others, and those that wait are served round robin: what takes long
// delays other workspaces for one computation at most. Each kind has slots of its own, so that a short
// computation does not wait for long ones of another kind and workspace. All kinds together, a workspace
// computes two at a time, or one less than there are processors.
type Processors struct {
	own      *slots.Slots // of a workspace, of this kind
	together *slots.Slots // of a workspace, of all kinds
	process  *slots.Slots // of this kind
}

// New returns the slots of a kind.
func New() *Processors { return kind(here, together) }

var (
	here     = runtime.GOMAXPROCS(0)
	together = allKinds(here)
)

func kind(n int, together *slots.Slots) *Processors {
	return &Processors{slots.New(slots.Limits{Workspace: max(1, n-1)}, nil), together,
		slots.New(slots.Limits{Process: n, Workspace: n}, nil)}
}

func allKinds(n int) *slots.Slots {
	return slots.New(slots.Limits{Workspace: max(n-1, min(n, 2))}, nil)
}

// Enter waits for a slot of a workspace. The caller holds no lock that a computation of this kind needs
// and no slot of any kind, and computes without waiting for anything until leave. Those of a kind that
// wait for each other hold no slot that another kind of their workspace could use.
func (p *Processors) Enter(workspace uuid.UUID) (leave func()) {
	turn := p.Turn(workspace)
	leaveProcess := turn.Enter()
	return func() {
		leaveProcess()
		turn.Leave()
	}
}

// Turn is a computation that waits for no other of its workspace any more, but for those of other ones.
type Turn struct {
	of        *Processors
	workspace uuid.UUID
	leave     []func()
}

// Turn waits for the computations of the same workspace. Its caller may wait for a slot that workspaces
// share before it calls Enter of the turn, so that it does not hold that slot while it waits for
// computations of its own.
func (p *Processors) Turn(workspace uuid.UUID) *Turn {
	t := &Turn{of: p, workspace: workspace}
	for _, s := range []*slots.Slots{p.own, p.together} {
		t.leave = append(t.leave, t.await(s))
	}
	return t
}

// Enter waits for a slot of the process, until leave.
func (t *Turn) Enter() (leave func()) { return t.await(t.of.process) }

// Leave ends the turn.
func (t *Turn) Leave() {
	for _, one := range slices.Backward(t.leave) {
		one()
	}
}

func (t *Turn) await(s *slots.Slots) (leave func()) {
	leave, _ = s.Await(context.Background(), slots.Resource{Workspace: t.workspace}) // it waits for ever
	return leave
}
