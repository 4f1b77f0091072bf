package admission

import (
	"context"
	"fmt"
	"sync"

	"github.com/google/uuid"
)

// Bulks bounds the bulks that are recorded at a time: each holds a connection to the
// database, and one workspace must not use them all. Waiting bulks are bounded too, since
// each holds its request in memory.
type Bulks struct {
	mu     sync.Mutex
	places chan struct{}
	of     map[uuid.UUID]chan struct{}
	using  map[uuid.UUID]here // being recorded or waiting
	all    here
}

// here counts the requests that are being recorded or wait, and the bulks among them: many
// small ones weigh as little as single events.
type here struct{ requests, bulks int }

func (h *here) add(bulk bool, n int) {
	h.requests += n
	if bulk {
		h.bulks += n
	}
}

func (h here) full(bulk bool, mostRequests, mostBulks int) bool {
	return h.requests >= mostRequests || bulk && h.bulks >= mostBulks
}

const (
	bulksAtOnce      = 6 // of all workspaces together
	bulksOfWorkspace = 4 // of one

	mostBulks            = 64 // being recorded or waiting, of all workspaces together
	mostBulksOfWorkspace = 16 // of one
)

// Place is a slot among those of the workspace and one among all.
type Place struct {
	bulks    *Bulks
	ws       uuid.UUID
	bulk     bool
	own, all chan struct{}
	taken    bool
}

// Acquire waits for a slot for n items: first among the workspace's own, then among all.
// It refuses the request if too many are waiting.
func (b *Bulks) Acquire(ctx context.Context, ws uuid.UUID, n int) (*Place, error) {
	bulk := n > 1
	own, all, err := b.placesOf(ws, bulk)
	if err != nil {
		return nil, err
	}
	p := &Place{bulks: b, ws: ws, bulk: bulk, own: own, all: all}
	if err := p.take(ctx); err != nil {
		b.forget(ws, bulk)
		return nil, err
	}
	return p, nil
}

func (p *Place) take(ctx context.Context) error {
	for _, places := range []chan struct{}{p.own, p.all} {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			if places == p.all {
				<-p.own
			}
			return fmt.Errorf("wait for other bulks: %w", ctx.Err())
		}
	}
	p.taken = true
	return nil
}

func (p *Place) release() {
	if p.taken {
		<-p.all
		<-p.own
		p.taken = false
	}
}

// Leave releases the slot.
func (p *Place) Leave() {
	p.release()
	p.bulks.forget(p.ws, p.bulk)
}

// Aside does work without the slot, which others use meanwhile, and waits for one again.
// The request still counts as one that waits.
func (p *Place) Aside(ctx context.Context, work func() error) error {
	p.release()
	if err := work(); err != nil {
		return err
	}
	return p.take(ctx)
}

func (b *Bulks) placesOf(ws uuid.UUID, bulk bool) (own, all chan struct{}, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	mine := b.using[ws]
	if b.all.full(bulk, mostWaiting, mostBulks) || mine.full(bulk, mostOfWorkspace, mostBulksOfWorkspace) {
		return nil, nil, overloaded("too many requests are waiting to be recorded")
	}
	if b.places == nil {
		b.places, b.of, b.using = make(chan struct{}, bulksAtOnce), map[uuid.UUID]chan struct{}{}, map[uuid.UUID]here{}
	}
	if b.of[ws] == nil {
		b.of[ws] = make(chan struct{}, bulksOfWorkspace)
	}
	mine.add(bulk, 1)
	b.using[ws] = mine
	b.all.add(bulk, 1)
	return b.of[ws], b.places, nil
}

// forget deletes workspaces without slots in use.
func (b *Bulks) forget(ws uuid.UUID, bulk bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	mine := b.using[ws]
	mine.add(bulk, -1)
	b.all.add(bulk, -1)
	if b.using[ws] = mine; mine.requests == 0 {
		delete(b.using, ws)
		delete(b.of, ws)
	}
}

// Waiting is the number of bulks of a workspace that are being recorded or wait.
func (b *Bulks) Waiting(ws uuid.UUID) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.using[ws].bulks
}
