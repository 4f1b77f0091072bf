// Package processors bounds what a process computes for its workspaces at a time: messages that the
// engine renders, signatures, and conditions that take long.
package processors

import (
	"context"
	"runtime"

	"github.com/google/uuid"

	"lemma/slots"
)

// all are as many slots as processors: with more computations than these, each would take long because
// of the others.
//
// One workspace leaves one processor to the others, and those that wait are served round robin: what
// takes long delays other workspaces for one computation at most.
var all = of(runtime.GOMAXPROCS(0))

func of(n int) *slots.Slots {
	return slots.New(slots.Limits{Process: n, Workspace: OfWorkspace(n)}, nil)
}

// OfWorkspace is how many of n processors one workspace has.
func OfWorkspace(n int) int { return max(1, n-1) }

// Enter waits for a slot of a workspace. The caller holds no other, and computes without waiting for
// anything until leave.
func Enter(workspace uuid.UUID) (leave func()) {
	leave, _ = all.Await(context.Background(), slots.Resource{Workspace: workspace}) // it waits for ever
	return leave
}
