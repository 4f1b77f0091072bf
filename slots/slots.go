// Package slots bounds how much work runs at the same time: in one process,
// for one workspace, and on one resource of a workspace. Work that finds no
// slot waits at most Wait and is then refused, so that one workspace cannot use
// the time, the memory and the connections of the others.
package slots

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Limits are how many pieces of work run at a time, or how many bytes they have in
// memory. Without a limit of Resource or Process, the others alone count.
type Limits struct{ Process, Workspace, Resource int }

// Wait is how long work waits for a slot before it is refused.
const Wait = 2 * time.Second

// Resource is what work of a workspace runs on, such as a data source.
type Resource struct{ Workspace, ID uuid.UUID }

// Slots are what Limits leave free. Workspaces whose work waits are served round robin, and
// the work of one in the order in which it came. Work with a free slot does not wait for
// work without one.
type Slots struct {
	limits  Limits
	refused func(limit string) error

	mutex      sync.Mutex
	taken      int
	workspaces map[uuid.UUID]int
	resources  map[Resource]int
	queues     []*queue // the one to serve first is the first
}

// queue is the work of a workspace that waits. It is never empty.
type queue struct {
	workspace uuid.UUID
	waiters   []*waiter // the oldest is the first
}

// waiter is work that waits for slots.
type waiter struct {
	of      Resource
	n       int
	limit   string        // that is reached
	entered chan struct{} // closed when it has them
}

// New returns Slots of which none is taken. refused returns the error for a limit
// that is reached: "resource", "workspace" or "process".
func New(l Limits, refused func(limit string) error) *Slots {
	return &Slots{limits: l, refused: refused, workspaces: map[uuid.UUID]int{}, resources: map[Resource]int{}}
}

// Enter takes a slot, or returns the error of refused after Wait. leave releases the slot.
func (s *Slots) Enter(ctx context.Context, r Resource) (leave func(), err error) {
	return s.EnterN(ctx, r, 1)
}

// EnterN is Enter for work that takes n slots.
func (s *Slots) EnterN(ctx context.Context, r Resource, n int) (leave func(), err error) {
	return s.enter(ctx, r, n, Wait)
}

// EnterWithin is Enter for work that waits for at most so long, and for no time if it is not
// positive.
func (s *Slots) EnterWithin(ctx context.Context, r Resource, most time.Duration) (leave func(), err error) {
	if most <= 0 {
		return s.Try(r)
	}
	return s.enter(ctx, r, 1, most)
}

// Await is Enter for work that waits for as long as ctx lasts.
func (s *Slots) Await(ctx context.Context, r Resource) (leave func(), err error) {
	return s.enter(ctx, r, 1, math.MaxInt64)
}

func (s *Slots) enter(ctx context.Context, r Resource, n int, most time.Duration) (leave func(), err error) {
	leave = func() { s.leave(r, n) }
	s.mutex.Lock()
	limit := s.take(r, n)
	if limit == "" {
		s.mutex.Unlock()
		return leave, nil
	}
	w := &waiter{of: r, n: n, limit: limit, entered: make(chan struct{})}
	s.wait(w)
	s.mutex.Unlock()

	timeout := time.NewTimer(most)
	defer timeout.Stop()
	select {
	case <-w.entered:
		return leave, nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timeout.C:
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if w.limit == "" { // it entered at the same instant
		return leave, nil
	}
	s.remove(w)
	if err == nil {
		err = s.refused(w.limit)
	}
	return nil, err
}

// Resize changes the number of slots that work has taken. More are taken only if they
// are free and no work waits for them.
func (s *Slots) Resize(r Resource, from, to int) bool {
	if to <= from {
		s.leave(r, from-to)
		return true
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, q := range s.queues {
		if q.workspace == r.Workspace || slices.ContainsFunc(q.waiters, func(w *waiter) bool { return w.limit == "process" }) {
			return false
		}
	}
	return s.take(r, to-from) == ""
}

// Try is Enter that refuses at once.
func (s *Slots) Try(r Resource) (leave func(), err error) { return s.TryN(r, 1) }

// TryN is EnterN that refuses at once.
func (s *Slots) TryN(r Resource, n int) (leave func(), err error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if limit := s.take(r, n); limit != "" {
		return nil, s.refused(limit)
	}
	return func() { s.leave(r, n) }, nil
}

// Taken returns how many slots of a resource are taken.
func (s *Slots) Taken(r Resource) int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.resources[r]
}

// take takes n slots, or returns the limit that leaves too few. The caller holds
// the lock.
func (s *Slots) take(r Resource, n int) (limit string) {
	switch {
	case s.limits.Resource > 0 && s.resources[r]+n > s.limits.Resource:
		return "resource"
	case s.workspaces[r.Workspace]+n > s.limits.Workspace:
		return "workspace"
	case s.limits.Process > 0 && s.taken+n > s.limits.Process:
		return "process"
	}
	s.resources[r] += n
	s.workspaces[r.Workspace] += n
	s.taken += n
	return ""
}

// leave releases n slots, and gives them to work that waits. A workspace that gets some is
// the last one from then on.
func (s *Slots) leave(r Resource, n int) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.taken -= n
	if s.workspaces[r.Workspace] -= n; s.workspaces[r.Workspace] == 0 {
		delete(s.workspaces, r.Workspace)
	}
	if s.resources[r] -= n; s.resources[r] == 0 {
		delete(s.resources, r)
	}
	for i := 0; i < len(s.queues); {
		q := s.queues[i]
		w := s.serve(q, r.Workspace)
		if w == nil {
			i++
			continue
		}
		s.queues = append(slices.Delete(s.queues, i, i+1), q)
		s.remove(w)
		close(w.entered)
	}
}

// serve takes slots for the first of a queue for which those that a workspace released
// suffice. The caller holds the lock.
func (s *Slots) serve(q *queue, released uuid.UUID) *waiter {
	for _, w := range q.waiters {
		if q.workspace != released && w.limit != "process" {
			continue
		}
		if w.limit = s.take(w.of, w.n); w.limit == "" {
			return w
		}
	}
	return nil
}

// wait queues work. The caller holds the lock.
func (s *Slots) wait(w *waiter) {
	i := slices.IndexFunc(s.queues, func(q *queue) bool { return q.workspace == w.of.Workspace })
	if i < 0 {
		i, s.queues = len(s.queues), append(s.queues, &queue{workspace: w.of.Workspace})
	}
	s.queues[i].waiters = append(s.queues[i].waiters, w)
}

// remove ends the waiting of work. The caller holds the lock.
func (s *Slots) remove(w *waiter) {
	i := slices.IndexFunc(s.queues, func(q *queue) bool { return q.workspace == w.of.Workspace })
	q := s.queues[i]
	j := slices.Index(q.waiters, w)
	if q.waiters = slices.Delete(q.waiters, j, j+1); len(q.waiters) == 0 {
		s.queues = slices.Delete(s.queues, i, i+1)
	}
}
