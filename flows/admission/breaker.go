package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/slots"
)

// Breakers keep data sources that fail or are slow from delaying enrollments that do not
// need them. Such a source is not queried for a while, and then by one caller. The callers
// that wait for one source are bounded. Those that wait for any are bounded to half of a
// process's workers for one workspace and to three quarters for all, so that the slow sources of
// one workspace leave places to the others.
type Breakers struct {
	mu     sync.Mutex
	states map[uuid.UUID]*breaker
	tidyAt int    // the number of states at which those that nothing hangs on are forgotten
	all    *share // workers with a query to any source
	risky  *share // of these, those whose source was slow or failed recently

	refused func(limit string)
}

type breaker struct {
	failures int       // in a row; a slow answer counts as one
	closedTo time.Time // no query before
	used     time.Time // for the last time
	running  *gate

	about       Blocked   // the enrollments that it delays, or would
	recovered   bool      // it answers again, and these enrollments are not released yet
	assumed     bool      // it may have failed before this process: see Assume
	tried       time.Time // when one of them last retried
	noneWaits   bool      // no such enrollment was found since its last query
	noneRetried int       // retries since then that found none to retry
}

const (
	leastStates = 1000            // states of sources and branches that a process keeps in any case
	keepFor     = time.Minute     // after its last use, a state of which enrollments may wait is kept
	queryAtOnce = 2               // callers that may wait for one source
	slotWait    = time.Second     // how long a caller waits for a slot
	slowAfter   = 2 * time.Second // an answer that takes longer counts as a failure, though it is used
	shutFor     = 2 * time.Second // after a failure, doubled each time
	shutMost    = time.Minute
	shutFast    = 5 * time.Second // at most, after a failure that took no time: another query costs little
	shutSlow    = 4               // at most so many times as long as a slow answer took: a source that is always slow is still queried
)

// NewBreakers makes the breakers of a process with so many workers. refused counts the queries
// for which a limit left no place: LimitSource, or "workspace" or "process".
func NewBreakers(workers int, refused func(limit string)) *Breakers {
	return &Breakers{states: map[uuid.UUID]*breaker{}, refused: refused,
		all:   newShare(slots.Limits{Process: max(1, workers*3/4), Workspace: max(1, workers/2)}, refused),
		risky: newShare(slots.Limits{Process: max(1, workers/2), Workspace: max(1, workers/4)}, refused)}
}

// Query queries a source unless its breaker is open.
func (b *Breakers) Query(ctx context.Context, source uuid.UUID, question func() error) error {
	return b.admit(ctx, uuid.Nil, source, question)
}

// QueryForWorker is Query for workers: it also keeps to the limits of the process and of the
// workspace, so that some workers are always free for enrollments that need no source, and
// others for those of other workspaces. See Later for an error of these limits.
func (b *Breakers) QueryForWorker(ctx context.Context, workspace, source uuid.UUID, question func() error) error {
	return b.admit(ctx, workspace, source, question)
}

// Failing reports whether a source was slow or failed at its last query.
func (b *Breakers) Failing(source uuid.UUID) bool {
	failing, _ := b.state(b.of(source))
	return failing
}

// Failures counts the failures in a row of all sources.
func (b *Breakers) Failures() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.states {
		n += s.failures
	}
	return n
}

// Reopen lets every source be queried at once, as if its delay had passed.
func (b *Breakers) Reopen() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.states {
		s.closedTo, s.tried = time.Time{}, time.Time{}
	}
}

// admit queries a source within its limit and, for a worker, within those of its workspace. That
// is uuid.Nil for others.
func (b *Breakers) admit(ctx context.Context, workspace, source uuid.UUID, question func() error) error {
	s := b.of(source)
	blocked, closed := b.state(s)
	if closed {
		return leftAlone()
	}
	until := time.Now() // not later for a failing source: a request that waits for it occupies a worker
	if !blocked {
		until = until.Add(slotWait)
	}
	if err := s.running.enter(ctx, until); err != nil {
		if ctx.Err() == nil {
			b.refused(LimitSource)
		}
		return err
	}
	defer s.running.leave()
	for _, limit := range b.limits(workspace, blocked) {
		leave, err := limit.enter(ctx, workspace, until)
		if err != nil {
			return err
		}
		defer leave()
	}
	if !b.mayQuery(s) {
		return leftAlone()
	}
	begun := time.Now()
	err := question()
	if !IsOverloaded(err) { // otherwise the source was not queried
		b.recordAnswer(s, err, time.Since(begun))
	}
	return err
}

func (b *Breakers) limits(workspace uuid.UUID, blocked bool) []*share {
	switch {
	case workspace == uuid.Nil:
		return nil
	case blocked:
		return []*share{b.risky, b.all}
	}
	return []*share{b.all}
}

func leftAlone() error {
	return &lemma.Error{Kind: lemma.Unavailable, Code: "source_unavailable", Message: "the data source failed or was slow a moment ago"}
}

func (b *Breakers) of(source uuid.UUID) *breaker {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.states[source]
	if s == nil {
		if len(b.states) >= b.tidyAt {
			b.tidy()
		}
		s = &breaker{running: newGate(queryAtOnce)}
		b.states[source] = s
	}
	s.used = time.Now()
	return s
}

// tidy removes the states of sources that answer, or that no enrollment waits for, and that are
// not being queried. A caller that has such a state goes on with it.
func (b *Breakers) tidy() {
	maps.DeleteFunc(b.states, func(_ uuid.UUID, s *breaker) bool {
		return (s.failures == 0 && !s.assumed || s.noneWaits) && !s.recovered && len(s.running.places) == 0
	})
	b.tidyAt = max(leastStates, 2*len(b.states))
}

func (b *Breakers) state(s *breaker) (blocked, closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return s.failures > 0, time.Now().Before(s.closedTo)
}

// mayQuery reports whether the source may be queried. After the delay one caller queries it,
// and the others wait for that result.
func (b *Breakers) mayQuery(s *breaker) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if now.Before(s.closedTo) {
		return false
	}
	if s.failures > 0 {
		s.closedTo = now.Add(shutFor)
	}
	return true
}

func (b *Breakers) recordAnswer(s *breaker, err error, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.used = time.Now()
	shut := min(shutFor<<min(s.failures, 10), shutMost)
	switch {
	case isOfSource(err) && took < slowAfter:
		shut = min(shut, shutFast)
	case isOfSource(err):
	case took > slowAfter:
		shut = min(shut, shutSlow*took)
	default:
		s.recovered = s.recovered || s.failures > 0 || s.assumed
		s.failures, s.closedTo, s.assumed = 0, time.Time{}, false
		return
	}
	s.closedTo = time.Now().Add(shut)
	s.failures++
}

// isOfSource reports that a source has answered no query: it is unavailable, or refuses the connection.
func isOfSource(err error) bool {
	refused, ok := errors.AsType[*lemma.Error](err)
	return err != nil && lemma.KindOf(err) == lemma.Unavailable || ok && refused.Code == "source_refused"
}

// gate admits a bounded number of callers to one source. Others wait for a while; once one has
// timed out, no other waits until a slot becomes free, so that a source that hangs costs one
// wait and not one for each caller.
type gate struct {
	places chan struct{}
	stuck  atomic.Bool
}

func newGate(places int) *gate { return &gate{places: make(chan struct{}, places)} }

func (g *gate) enter(ctx context.Context, until time.Time) error {
	select {
	case g.places <- struct{}{}:
		return nil
	default:
	}
	patience := time.Until(until)
	if patience <= 0 || g.stuck.Load() {
		return Busy()
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case g.places <- struct{}{}:
		return nil
	case <-timer.C:
		g.stuck.Store(true)
		return Busy()
	case <-ctx.Done():
		return fmt.Errorf("wait for data source: %w", ctx.Err())
	}
}

func (g *gate) leave() {
	<-g.places
	g.stuck.Store(false)
}

// CodeSourceBusy is the code of the error for a query that waits for others.
const CodeSourceBusy = "source_busy"

// Busy is that error for a source that is slow. See Later for one whose place others have.
func Busy() error { return busy(nil) }

func busy(cause error) error {
	return &lemma.Error{Kind: lemma.Unavailable, Code: CodeSourceBusy, Message: "too many queries to data sources are running: retry later",
		Cause: cause}
}
