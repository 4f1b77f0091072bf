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
	var all []func()
	for _, s := range []*slots.Slots{p.own, p.together, p.process} {
		one, _ := s.Await(context.Background(), slots.Resource{Workspace: workspace}) // it waits for ever
		all = append(all, one)
	}
	return func() {
		for _, one := range slices.Backward(all) {
			one()
		}
	}
}
