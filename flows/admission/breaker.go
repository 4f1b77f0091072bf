package admission

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"lemma"
)

// Breakers keep data sources that fail or are slow from delaying enrollments that do not
// need them. Such a source is not queried for a while, and then by one caller. The callers
// that wait for one source are bounded, and those that wait for any to half of a process's
// workers.
type Breakers struct {
	mu     sync.Mutex
	states map[uuid.UUID]*breaker
	tidyAt int   // the number of states at which those that nothing hangs on are forgotten
	all    *gate // workers with a query to any source
	risky  *gate // of these, those whose source was slow or failed recently
}

type breaker struct {
	failures int       // in a row; a slow answer counts as one
	closedTo time.Time // no query before
	used     time.Time // for the last time
	running  *gate

	about     Blocked   // the enrollments that it delays, or would
	recovered bool      // it answers again, and these enrollments are not released yet
	tried     time.Time // when one of them last retried
}

const (
	leastStates = 1000            // states of sources and branches that a process keeps in any case
	keepFor     = time.Minute     // after its last use, a state is kept
	queryAtOnce = 2               // callers that may wait for one source
	slotWait    = time.Second     // how long a caller waits for a slot
	slowAfter   = 2 * time.Second // an answer that takes longer counts as a failure, though it is used
	shutFor     = 2 * time.Second // after a failure, doubled each time
	shutMost    = time.Minute
	shutFast    = 5 * time.Second // at most, after a failure that took no time: another query costs little
	shutSlow    = 4               // at most so many times as long as a slow answer took: a source that is always slow is still queried
)

// NewBreakers makes the breakers of a process with so many workers.
func NewBreakers(workers int) *Breakers {
	return &Breakers{states: map[uuid.UUID]*breaker{}, all: newGate(max(1, workers/2)), risky: newGate(max(1, workers/4))}
}

// Query queries a source unless its breaker is open.
func (b *Breakers) Query(ctx context.Context, source uuid.UUID, question func() error) error {
	return b.admit(ctx, source, question, nil, nil)
}

// QueryForWorker is Query for workers: it also keeps to the process's limits, so that some
// workers are always free for enrollments that need no source.
func (b *Breakers) QueryForWorker(ctx context.Context, source uuid.UUID, question func() error) error {
	return b.admit(ctx, source, question, b.all, b.risky)
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

func (b *Breakers) admit(ctx context.Context, source uuid.UUID, question func() error, all, risky *gate) error {
	s := b.of(source)
	blocked, closed := b.state(s)
	if closed {
		return leftAlone()
	}
	gates := []*gate{s.running, all}
	var patience <-chan time.Time // none for a failing source: a request that waits for it occupies a worker
	if blocked {
		gates = []*gate{s.running, risky, all}
	} else {
		timer := time.NewTimer(slotWait)
		defer timer.Stop()
		patience = timer.C
	}
	for _, g := range gates {
		if g == nil {
			continue
		}
		if err := g.enter(ctx, patience); err != nil {
			return err
		}
		defer g.leave()
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

// tidy removes the states of sources that answer and are not being queried. A caller that
// has such a state goes on with it.
func (b *Breakers) tidy() {
	maps.DeleteFunc(b.states, func(_ uuid.UUID, s *breaker) bool {
		return s.failures == 0 && !s.recovered && len(s.running.places) == 0
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
	shut := min(shutFor<<min(s.failures, 10), shutMost)
	switch {
	case err != nil && lemma.KindOf(err) == lemma.Unavailable && took < slowAfter:
		shut = min(shut, shutFast)
	case err != nil && lemma.KindOf(err) == lemma.Unavailable:
	case took > slowAfter:
		shut = min(shut, shutSlow*took)
	default:
		s.recovered = s.recovered || s.failures > 0
		s.failures, s.closedTo = 0, time.Time{}
		return
	}
	s.closedTo = time.Now().Add(shut)
	s.failures++
}

// gate admits a bounded number of callers. Others wait for a while; once one has timed
// out, no other waits until a slot becomes free, so that a source that hangs costs one
// wait and not one for each caller.
type gate struct {
	places chan struct{}
	stuck  atomic.Bool
}

func newGate(places int) *gate { return &gate{places: make(chan struct{}, places)} }

func (g *gate) enter(ctx context.Context, patience <-chan time.Time) error {
	select {
	case g.places <- struct{}{}:
		return nil
	default:
	}
	if patience == nil || g.stuck.Load() {
		return Busy()
	}
	select {
	case g.places <- struct{}{}:
		return nil
	case <-patience:
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

// Busy is that error.
func Busy() error {
	return &lemma.Error{Kind: lemma.Unavailable, Code: CodeSourceBusy, Message: "too many queries to data sources are running: retry later"}
}
