package flows

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"lemma"
)

// share is a share of a flow's people: what a turn is the right to advance. The
// zero value stands for all shares of all flows.
type share struct {
	ws, flow uuid.UUID
	turn     int16
}

// bell tells the workers of this node that somebody has become due: on a share,
// which is cheap to look at however many flows there are, or anywhere. It is a
// hint. What another node did, or time alone, is found by looking everywhere.
type bell struct {
	rung       chan struct{}
	mu         sync.Mutex
	everywhere bool
	shares     map[uuid.UUID][]share // by workspace, each in the order in which they were rung for
	workspaces []uuid.UUID           // that have any, in the order in which they come
	known      map[share]bool
}

// mostShares is how many shares are remembered; beyond it everywhere is looked.
const mostShares = 10_000

func newBell() *bell {
	return &bell{rung: make(chan struct{}, 1), shares: map[uuid.UUID][]share{}, known: map[share]bool{}}
}

// ring says that somebody is due anywhere.
func (b *bell) ring() {
	b.mu.Lock()
	b.everywhere = true
	b.mu.Unlock()
	b.wake()
}

// ringFor says on which shares somebody is due.
func (b *bell) ringFor(shares map[share]bool) {
	if len(shares) == 0 {
		return
	}
	b.mu.Lock()
	for s := range shares {
		b.add(s)
	}
	b.mu.Unlock()
	b.wake()
}

func (b *bell) add(s share) {
	switch {
	case b.known[s]:
		return
	case len(b.known) >= mostShares:
		b.everywhere = true
		return
	case len(b.shares[s.ws]) == 0:
		b.workspaces = append(b.workspaces, s.ws)
	}
	b.shares[s.ws], b.known[s] = append(b.shares[s.ws], s), true
}

// next is where to look, if there is anything to look for. Everywhere comes
// first, since it finds whoever is due and is fair to all; of the shares each
// workspace has one in turn. While there is more, another worker is woken.
func (b *bell) next() (where share, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.everywhere:
		b.everywhere, ok = false, true
	case len(b.workspaces) > 0:
		ws := b.workspaces[0]
		where, ok = b.shares[ws][0], true
		delete(b.known, where)
		b.workspaces, b.shares[ws] = b.workspaces[1:], b.shares[ws][1:]
		if len(b.shares[ws]) > 0 {
			b.workspaces = append(b.workspaces, ws)
		} else {
			delete(b.shares, ws)
		}
	}
	if len(b.workspaces) > 0 {
		b.wake()
	}
	return where, ok
}

func (b *bell) wake() {
	select {
	case b.rung <- struct{}{}:
	default:
	}
}

// look rings now and then: somebody may have become due by time alone, or by
// what another node did. One worker looks for all; if it finds work it wakes
// the next.
func (f *Flows) look(ctx context.Context) {
	next := time.NewTimer(f.cfg.Poll)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
			f.bell.ring()
			next.Reset(max(f.cfg.Poll, min(idleShare*time.Duration(f.idleLook.Load()), idleMost)))
		}
	}
}

// idleShare keeps looking in vain, which costs something for every flow, to a
// twentieth of one processor; idleMost keeps a look that only waited, for a lock
// or a connection, from putting the next one off for long.
const (
	idleShare = 20
	idleMost  = 20 * time.Second
)

// work advances lots for as long as there are any, and then waits for the bell.
func (f *Flows) work(ctx context.Context) {
	for ctx.Err() == nil {
		where, ok := f.bell.next()
		if !ok {
			select {
			case <-ctx.Done():
			case <-f.bell.rung:
			}
			continue
		}
		f.workAt(ctx, where)
	}
}

// workAt advances lots where somebody is due. On one share it is one lot, after
// which it is rung for once more: who came in meanwhile may have been looked for
// in vain, while we had the turn. Where a whole lot was due there is a backlog,
// and everywhere is looked, so that it takes its turn among the others.
func (f *Flows) workAt(ctx context.Context, where share) {
	for ctx.Err() == nil {
		var n int
		var claimed bool
		err := lemma.Recovered(func() (err error) { n, claimed, err = f.runOnce(ctx, where); return err })
		if err != nil && ctx.Err() == nil {
			f.log.Error("advance enrollments", "error", err)
		}
		switch {
		case !claimed || err != nil || n == 0 && where == (share{}):
			return
		case where != (share{}) && n < f.cfg.Lot:
			f.bell.ringFor(map[share]bool{where: true})
			return
		}
		where = share{}
		f.bell.ring() // there may be work for another worker as well
	}
}
