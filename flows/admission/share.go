package admission

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"lemma/loop"
	"lemma/slots"
)

// LimitSource is the limit of one source. The others are "workspace" and "process".
const LimitSource = "source"

// A query that finds no place in its workspace or its process is tried again soon, since its
// source may be idle. The more of a workspace wait, the later: each try costs a transaction.
const (
	laterLeast = time.Second
	laterEach  = 50 * time.Millisecond // for each that was refused since one of the workspace had a place
	laterMost  = 10 * time.Second
)

// share are the places for queries of workers, with a part of them for each workspace.
type share struct {
	slots   *slots.Slots
	refused func(limit string)

	mu     sync.Mutex
	inVain map[uuid.UUID]*inVain // by workspace
}

// inVain are the callers of a workspace that found no place.
type inVain struct {
	n     int    // since one had a place
	stuck string // the limit for which one has waited; empty: a place became free since
}

func newShare(l slots.Limits, refused func(limit string)) *share {
	return &share{slots: slots.New(l, func(limit string) error { return full(limit) }), refused: refused, inVain: map[uuid.UUID]*inVain{}}
}

// enter takes a place. Once a caller of a workspace has waited in vain, no other of it waits
// until a place becomes free, so that sources that hang cost one wait and not one for each.
func (s *share) enter(ctx context.Context, workspace uuid.UUID, until time.Time) (leave func(), err error) {
	if s.isStuck(workspace) {
		until = time.Time{} // at once
	}
	left, err := s.slots.EnterWithin(ctx, slots.Resource{Workspace: workspace}, time.Until(until))
	switch limit, isFull := errors.AsType[full](err); {
	case isFull:
		s.refused(string(limit))
		return nil, busy(later(s.countInVain(workspace, string(limit))))
	case err != nil:
		return nil, fmt.Errorf("wait for other queries to data sources: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.inVain, workspace)
	return func() { left(); s.freed(workspace) }, nil
}

func (s *share) isStuck(workspace uuid.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.inVain[workspace]
	return v != nil && v.stuck != ""
}

// countInVain counts a caller without a place, and returns when it is to try again.
func (s *share) countInVain(workspace uuid.UUID, limit string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.inVain[workspace]
	if v == nil {
		v = &inVain{}
		s.inVain[workspace] = v
	}
	v.stuck = limit
	after := min(laterLeast+time.Duration(v.n)*laterEach, laterMost)
	v.n++
	return loop.Jitter(after)
}

// freed lets callers wait again that the place of a workspace may serve.
func (s *share) freed(workspace uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w, v := range s.inVain {
		if w == workspace || v.stuck == "process" {
			v.stuck = ""
		}
	}
}

// full is the limit that left no place.
type full string

func (f full) Error() string { return "the limit of the " + string(f) + " is reached" }

// later is when a query that found no place is to be tried again.
type later time.Duration

func (l later) Error() string { return "try again in " + time.Duration(l).String() }

// Later returns when to try a query again that found no place, since others of its workspace or
// of the process have them. That is no failure of its source. For other errors it is 0.
func Later(err error) time.Duration {
	l, _ := errors.AsType[later](err)
	return time.Duration(l)
}
