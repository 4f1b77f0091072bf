package flows

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"lemma"
)

// breakers keep data sources that fail or are slow from holding up those who do
// not need them: for a while nobody asks such a source, then one does; of one
// source only some wait at a time, and of all together half of a node's workers.
type breakers struct {
	mu     sync.Mutex
	states map[uuid.UUID]*breaker
	all    *gate // workers with a question to any source
	risky  *gate // of these, with one to a source that was slow or failed of late
}

type breaker struct {
	failures int       // in a row; an answer that was slow is one
	closedTo time.Time // nobody asks before
	asking   *gate

	about     waitingFor // whom it has put off, or would
	recovered bool       // it answers again, and those have yet to be let go on
	tried     time.Time  // when one of them was last let try
}

const (
	askAtOnce   = 2               // who may wait for one source
	askPatience = time.Second     // how long another one waits for a place
	slowAfter   = 2 * time.Second // an answer that takes longer is a failure, though it is used
	shutFor     = 2 * time.Second // after a failure, doubled each time
	shutMost    = time.Minute
	shutFast    = 5 * time.Second // at most, after a failure that took no time: to ask again costs little
	shutSlow    = 4               // times as long as it took at most, after a slow answer: a source that always is goes on being asked
)

// ask is for workers: besides the source's own limits it keeps to the node's,
// so that there are always workers for those who need no source.
func (f *Flows) ask(ctx context.Context, source uuid.UUID, question func() error) error {
	all, risky := f.sources.node(f.cfg.Workers)
	return f.sources.pass(ctx, source, question, all, risky)
}

// ask lets a question through to a source that answers.
func (b *breakers) ask(ctx context.Context, source uuid.UUID, question func() error) error {
	return b.pass(ctx, source, question, nil, nil)
}

func (b *breakers) pass(ctx context.Context, source uuid.UUID, question func() error, all, risky *gate) error {
	s := b.of(source)
	troubled, closed := b.look(s)
	if closed {
		return leftAlone()
	}
	gates := []*gate{s.asking, all}
	var patience <-chan time.Time // none with a source in trouble: who waits for it is a worker less
	if troubled {
		gates = []*gate{s.asking, risky, all}
	} else {
		timer := time.NewTimer(askPatience)
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
	if !b.mayAsk(s) {
		return leftAlone()
	}
	begun := time.Now()
	err := question()
	b.learn(s, err, time.Since(begun))
	return err
}

func leftAlone() error {
	return &lemma.Error{Kind: lemma.Unavailable, Code: "source_unavailable", Message: "the data source failed or was slow a moment ago"}
}

func (b *breakers) of(source uuid.UUID) *breaker {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.states == nil {
		b.states = map[uuid.UUID]*breaker{}
	}
	s := b.states[source]
	if s == nil {
		s = &breaker{asking: newGate(askAtOnce)}
		b.states[source] = s
	}
	return s
}

// node are the gates of a node with so many workers.
func (b *breakers) node(workers int) (all, risky *gate) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all == nil {
		b.all, b.risky = newGate(max(1, workers/2)), newGate(max(1, workers/4))
	}
	return b.all, b.risky
}

func (b *breakers) look(s *breaker) (troubled, closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return s.failures > 0, time.Now().Before(s.closedTo)
}

// mayAsk answers false while the source is left alone; when that is over, one
// asks and the others go on leaving it alone until that one knows.
func (b *breakers) mayAsk(s *breaker) bool {
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

func (b *breakers) learn(s *breaker, err error, took time.Duration) {
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

// gate lets some in at a time. Others wait for a while; once somebody has
// waited in vain nobody else does until a place becomes free, so that what
// hangs inside costs those outside one wait and not one each.
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
		return busy()
	}
	select {
	case g.places <- struct{}{}:
		return nil
	case <-patience:
		g.stuck.Store(true)
		return busy()
	case <-ctx.Done():
		return fmt.Errorf("wait for data source: %w", ctx.Err())
	}
}

func (g *gate) leave() {
	<-g.places
	g.stuck.Store(false)
}

const codeSourceBusy = "source_busy"

func busy() error {
	return &lemma.Error{Kind: lemma.Unavailable, Code: codeSourceBusy, Message: "other questions to data sources have not been answered yet"}
}
