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
// computation does not wait for long ones of another kind.
type Processors struct{ slots *slots.Slots }

// New returns the slots of a kind.
func New() *Processors { return of(runtime.GOMAXPROCS(0)) }

func of(n int) *Processors {
	return &Processors{slots.New(slots.Limits{Process: n, Workspace: max(1, n-1)}, nil)}
}

// Enter waits for a slot of a workspace. The caller holds no lock or other slot that a computation of
// this kind needs, and computes without waiting for anything until leave.
func (p *Processors) Enter(workspace uuid.UUID) (leave func()) {
	leave, _ = p.slots.Await(context.Background(), slots.Resource{Workspace: workspace}) // it waits for ever
	return leave
}
