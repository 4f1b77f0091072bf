package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"lemma"
)

// Limits on the requests that wait in one process. Above them a client must try again
// later, before memory runs out and before one workspace displaces the others.
const (
	mostWaiting     = 10_000 // of all workspaces together
	mostOfWorkspace = 2_000  // of one
)

// CodeOverloaded is the code of the error for a request that is refused because
// too many are waiting.
const CodeOverloaded = "overloaded"

func overloaded(message string) error {
	return &lemma.Error{Kind: lemma.Unavailable, Code: CodeOverloaded, Message: message + "; try again in a moment"}
}

// IsOverloaded reports whether an error has this code.
func IsOverloaded(err error) bool {
	var e *lemma.Error
	return errors.As(err, &e) && e.Code == CodeOverloaded
}

// Gatherer processes single requests that arrive together in one transaction or by one
// statement. The first is processed at once; those that arrive meanwhile are the next
// chunk. No request waits for others to arrive, and none is in a chunk that began before.
type Gatherer[In, Out any] struct {
	do   func(ctx context.Context, ws uuid.UUID, all []In) ([]Out, error)
	most int // requests in one transaction

	mu     sync.Mutex
	queues map[uuid.UUID]*queue[In, Out] // by workspace
	length int                           // of all queues
}

// NewGatherer makes a Gatherer that processes at most so many requests together by do,
// which returns one result for each.
func NewGatherer[In, Out any](most int, do func(ctx context.Context, ws uuid.UUID, all []In) ([]Out, error)) *Gatherer[In, Out] {
	return &Gatherer[In, Out]{do: do, most: most, queues: map[uuid.UUID]*queue[In, Out]{}}
}

type queue[In, Out any] struct {
	waiting []*waiting[In, Out]
	writers int
}

type waiting[In, Out any] struct {
	in     In
	caller context.Context //nolint:containedctx // of the request, which may end before its chunk
	done   chan struct{}
	out    Out
	err    error
}

// left reports that the caller has gone before the request was processed: it has no
// effect.
func (w *waiting[In, Out]) left() bool {
	if w.caller.Err() == nil {
		return false
	}
	w.err = fmt.Errorf("wait for other requests: %w", w.caller.Err())
	close(w.done)
	return true
}

// writers is the number of chunks of one workspace that are processed at a time.
const writers = 2

// Do queues a request and waits for its result. A caller that stops waiting does not stop
// a request that is being processed.
func (g *Gatherer[In, Out]) Do(ctx context.Context, ws uuid.UUID, in In) (out Out, err error) {
	w := &waiting[In, Out]{in: in, done: make(chan struct{}), caller: ctx}
	g.mu.Lock()
	q := g.queues[ws]
	if g.length >= mostWaiting || q != nil && len(q.waiting) >= mostOfWorkspace {
		g.mu.Unlock()
		return out, overloaded("too many requests are waiting")
	}
	g.length++
	if q == nil {
		q = &queue[In, Out]{}
		g.queues[ws] = q
	}
	q.waiting = append(q.waiting, w)
	start := q.writers < writers
	if start {
		q.writers++
	}
	g.mu.Unlock()
	if start {
		go g.write(ws, q)
	}
	select {
	case <-w.done:
		return w.out, w.err
	case <-ctx.Done():
		return out, fmt.Errorf("wait for other requests: %w", ctx.Err())
	}
}

// write processes the waiting requests, chunk by chunk.
func (g *Gatherer[In, Out]) write(ws uuid.UUID, q *queue[In, Out]) {
	for {
		g.mu.Lock()
		n := min(len(q.waiting), g.most)
		if n == 0 {
			if q.writers--; q.writers == 0 {
				delete(g.queues, ws)
			}
			g.mu.Unlock()
			return
		}
		chunk := slices.Clone(q.waiting[:n])
		q.waiting = slices.Delete(q.waiting, 0, n)
		g.length -= n
		g.mu.Unlock()
		g.doTogether(ws, slices.DeleteFunc(chunk, (*waiting[In, Out]).left))
	}
}

// gatherFor bounds the transaction of a gathered chunk.
const gatherFor = 30 * time.Second

// doTogether processes a chunk. If it fails each request is processed by itself, so that
// none fails because of another.
func (g *Gatherer[In, Out]) doTogether(ws uuid.UUID, chunk []*waiting[In, Out]) {
	if len(chunk) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), gatherFor)
	defer cancel()
	all := make([]In, len(chunk))
	for i, w := range chunk {
		all[i] = w.in
	}
	done, err := g.do(ctx, ws, all)
	for i, w := range chunk {
		switch {
		case err == nil:
			w.out = done[i]
		case len(chunk) == 1 || ctx.Err() != nil || IsOverloaded(err):
			w.err = err
		default:
			w.out, w.err = g.doOne(ctx, ws, w.in)
		}
		close(w.done)
	}
}

func (g *Gatherer[In, Out]) doOne(ctx context.Context, ws uuid.UUID, in In) (out Out, err error) {
	done, err := g.do(ctx, ws, []In{in})
	if err != nil {
		return out, err
	}
	return done[0], nil
}
