// Package slots bounds how much work runs at the same time: in one process, for
// one workspace, and on one resource of a workspace. Work that finds no slot waits
// at most Wait and is then refused, so that one workspace cannot use the time,
// the memory and the connections of the others.
package slots

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Limits are the numbers of pieces of work that run at a time. Resource is
// optional.
type Limits struct{ Process, Workspace, Resource int }

// Wait is how long work waits for a slot before it is refused.
const Wait = 2 * time.Second

// Resource is what work of a workspace runs on, such as a data source.
type Resource struct{ Workspace, ID uuid.UUID }

// Slots counts the slots that are taken.
type Slots struct {
	limits  Limits
	refused func(limit string) error

	mutex      sync.Mutex
	taken      int
	workspaces map[uuid.UUID]int
	resources  map[Resource]int
	freed      chan struct{} // closed, and replaced, when a slot is released
}

// New returns Slots of which none is taken. refused returns the error for a limit
// that is reached: "resource", "workspace" or "process".
func New(l Limits, refused func(limit string) error) *Slots {
	return &Slots{limits: l, refused: refused, workspaces: map[uuid.UUID]int{}, resources: map[Resource]int{}, freed: make(chan struct{})}
}

// Enter takes a slot, or returns the error of refused after Wait. leave releases the slot.
func (s *Slots) Enter(ctx context.Context, r Resource) (leave func(), err error) {
	timeout := time.NewTimer(Wait)
	defer timeout.Stop()
	for {
		limit, freed := s.take(r)
		if limit == "" {
			return func() { s.leave(r) }, nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-timeout.C:
			return nil, s.refused(limit)
		}
	}
}

// Taken returns how many slots of a resource are taken.
func (s *Slots) Taken(r Resource) int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.resources[r]
}

// take takes a slot, or returns the limit that is reached and a channel that closes when a slot is released.
func (s *Slots) take(r Resource) (limit string, freed <-chan struct{}) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	switch {
	case s.limits.Resource > 0 && s.resources[r] >= s.limits.Resource:
		return "resource", s.freed
	case s.workspaces[r.Workspace] >= s.limits.Workspace:
		return "workspace", s.freed
	case s.taken >= s.limits.Process:
		return "process", s.freed
	}
	s.resources[r]++
	s.workspaces[r.Workspace]++
	s.taken++
	return "", nil
}

func (s *Slots) leave(r Resource) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.taken--
	if s.workspaces[r.Workspace]--; s.workspaces[r.Workspace] == 0 {
		delete(s.workspaces, r.Workspace)
	}
	if s.resources[r]--; s.resources[r] == 0 {
		delete(s.resources, r)
	}
	close(s.freed)
	s.freed = make(chan struct{})
}
