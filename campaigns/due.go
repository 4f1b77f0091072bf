package campaigns

import (
	"context"
	"errors"
	"sync"

	"github.com/google/uuid"

	"lemma"
	"lemma/loop"
	"lemma/slots"
)

// workspacesAtOnce is of how many workspaces one process evaluates iterations at a time,
// measures them or checks their guardrails. Of a workspace, and so of a data source, it is one
// iteration: a source that is slow delays only its own workspace.
const workspacesAtOnce = 8

var errNoSlot = errors.New("no slot is free")

func newWorkspaceSlots() *slots.Slots {
	return slots.New(slots.Limits{Process: workspacesAtOnce, Workspace: 1}, func(string) error { return errNoSlot })
}

// startDue starts what is to be done with iterations that are due: those of a workspace one
// after another, if no others of it are being worked on. wait returns the number of those
// that were done, and what failed.
func startDue(ctx context.Context, free *slots.Slots, due []ref, do func(context.Context, ref) (bool, error)) (wait func() (int, error)) {
	var running sync.WaitGroup
	var mu sync.Mutex
	var n int
	var failed loop.Errors
	for workspace, iterations := range byWorkspace(due) {
		leave, err := free.Try(slots.Resource{Workspace: workspace})
		if err != nil {
			continue
		}
		running.Go(func() {
			defer leave()
			for _, r := range iterations {
				var done bool
				err := lemma.Recovered(func() (err error) { done, err = do(ctx, r); return err })
				mu.Lock()
				if err != nil && ctx.Err() == nil {
					failed.Add(err)
				} else if done {
					n++
				}
				mu.Unlock()
			}
		})
	}
	return func() (int, error) { running.Wait(); return n, failed.Err() }
}

// byWorkspace groups iterations. The order of workspaces is random.
func byWorkspace(due []ref) map[uuid.UUID][]ref {
	of := map[uuid.UUID][]ref{}
	for _, r := range due {
		of[r.WorkspaceID] = append(of[r.WorkspaceID], r)
	}
	return of
}

// starter starts work that is due, and returns how to wait for it.
type starter func(context.Context) (wait func() (int, error), err error)

// inBackground makes a step of a loop of a starter, which does not wait: loops does.
func (c *Campaigns) inBackground(loops *sync.WaitGroup, what string, start starter) func(context.Context) error {
	return func(ctx context.Context) error {
		wait, err := start(ctx)
		if err != nil {
			return err
		}
		loops.Go(func() {
			if _, err := wait(); err != nil && ctx.Err() == nil {
				c.failed(what)(err)
			}
		})
		return nil
	}
}

// waitFor is a starter that waits.
func waitFor(ctx context.Context, start starter) (int, error) {
	wait, err := start(ctx)
	if err != nil {
		return 0, err
	}
	return wait()
}
