package flows

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"lemma"
)

// breakers keep a data source that fails from holding up those that do not:
// for a while nobody asks it, then one does; and of a source that is slow only
// some workers wait at a time.
type breakers struct {
	mu     sync.Mutex
	states map[uuid.UUID]*breaker
}

type breaker struct {
	failures int
	closedTo time.Time // nobody asks before
	asking   chan struct{}
}

const (
	askAtOnce   = 2               // workers that may wait for one source
	askPatience = time.Second     // how long another one waits for its turn
	shutFor     = 2 * time.Second // after a failure, doubled each time
	shutMost    = time.Minute
)

func (b *breakers) of(source uuid.UUID) *breaker {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.states == nil {
		b.states = map[uuid.UUID]*breaker{}
	}
	s := b.states[source]
	if s == nil {
		s = &breaker{asking: make(chan struct{}, askAtOnce)}
		b.states[source] = s
	}
	return s
}

// ask lets a question through to a source that answers.
func (b *breakers) ask(ctx context.Context, source uuid.UUID, question func() error) error {
	s := b.of(source)
	patience := time.NewTimer(askPatience)
	defer patience.Stop()
	select {
	case s.asking <- struct{}{}:
		defer func() { <-s.asking }()
	case <-patience.C:
		return &lemma.Error{Kind: lemma.Unavailable, Code: "source_busy", Message: "other questions to the data source have not been answered yet"}
	case <-ctx.Done():
		return fmt.Errorf("wait for data source: %w", ctx.Err())
	}
	if !b.mayAsk(s) {
		return &lemma.Error{Kind: lemma.Unavailable, Code: "source_unavailable", Message: "the data source failed a moment ago"}
	}
	err := question()
	b.learn(s, err)
	return err
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

func (b *breakers) learn(s *breaker, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if lemma.KindOf(err) != lemma.Unavailable || err == nil {
		s.failures, s.closedTo = 0, time.Time{}
		return
	}
	s.closedTo = time.Now().Add(min(shutFor<<min(s.failures, 10), shutMost))
	s.failures++
}
