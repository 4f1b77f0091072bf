// Package processors bounds what a process computes of one kind for its workspaces at a time.
package processors

import (
	"context"
	"runtime"

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
	together *slots.Slots // of a workspace, of all kinds; nil: of a kind apart
	process  *slots.Slots // of this kind
}

// New returns the slots of a kind.
func New() *Processors { return kind(here, together) }

// Apart returns the slots of a kind that does not count among all kinds together: its computations hold
// slots that workspaces share, and must not wait for other kinds of their workspace meanwhile.
func Apart() *Processors { return kind(here, nil) }

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
	turn, _ := p.Turn(context.Background(), workspace) // it waits for ever
	leaveProcess := turn.Enter()
	return func() {
		leaveProcess()
		turn.Leave()
	}
}

// Turn is a computation that waits for no other of its kind and workspace any more.
type Turn struct {
	of        *Processors
	workspace uuid.UUID
	leave     func()
}

// Turn waits for the computations of the same kind and workspace. Its caller may wait for a slot that
// workspaces share before it calls Enter of the turn, so that it does not hold that slot while it waits
// for these. Other kinds of the workspace do not wait for the turn. A kind for this is Apart.
// The error is that of ctx.
func (p *Processors) Turn(ctx context.Context, workspace uuid.UUID) (*Turn, error) {
	leave, err := p.own.Await(ctx, slots.Resource{Workspace: workspace})
	if err != nil {
		return nil, err
	}
	return &Turn{p, workspace, leave}, nil
}

// Enter waits for a slot of the workspace, of all kinds, and for one of the process, until leave.
func (t *Turn) Enter() (leave func()) {
	leaveTogether := func() {}
	if t.of.together != nil {
		leaveTogether = t.await(t.of.together)
	}
	leaveProcess := t.await(t.of.process)
	return func() {
		leaveProcess()
		leaveTogether()
	}
}

// Leave ends the turn.
func (t *Turn) Leave() { t.leave() }

func (t *Turn) await(s *slots.Slots) (leave func()) {
	leave, _ = s.Await(context.Background(), slots.Resource{Workspace: t.workspace}) // it waits for ever
	return leave
}
