// Package slots bounds how much work runs at the same time: in one process,
// for one workspace, and on one resource of a workspace. Work that finds no
// slot waits a moment and is then refused, so that one workspace does not take
// the time, the memory and the connections of the others.
package slots

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Limits are how many pieces of work run at a time. Without a limit of Resource,
// that of Workspace alone counts.
type Limits struct{ Process, Workspace, Resource int }

// Wait is how long work waits for a slot before it is refused.
const Wait = 2 * time.Second

// Resource is what work of a workspace runs on, such as a data source.
type Resource struct{ Workspace, ID uuid.UUID }

// Slots are what Limits leave free.
type Slots struct {
	limits  Limits
	refused func(limit string) error

	mutex      sync.Mutex
	taken      int
	workspaces map[uuid.UUID]int
	resources  map[Resource]int
	freed      chan struct{} // closed, and replaced, when a slot is given back
}

// New returns free slots. refused makes the error of work that is refused because
// of a limit: "resource", "workspace" or "process".
func New(l Limits, refused func(limit string) error) *Slots {
	return &Slots{limits: l, refused: refused, workspaces: map[uuid.UUID]int{}, resources: map[Resource]int{}, freed: make(chan struct{})}
}

// Enter takes a slot, or refuses after Wait. leave gives the slot back.
func (s *Slots) Enter(ctx context.Context, r Resource) (leave func(), err error) {
	patience := time.NewTimer(Wait)
	defer patience.Stop()
	for {
		limit, freed := s.take(r)
		if limit == "" {
			return func() { s.leave(r) }, nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-patience.C:
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

// take returns the limit that leaves no slot, and when to try again.
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
