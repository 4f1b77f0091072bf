package flows

import (
	"context"
	"fmt"
	"sync"

	"github.com/google/uuid"
)

// bulks bound how many bulks are recorded at a time: each holds a connection to
// the database, and one sender's must not leave none for everybody else. Those
// that wait are bounded too, since each holds all that it says.
type bulks struct {
	mu     sync.Mutex
	places chan struct{}
	of     map[uuid.UUID]chan struct{}
	using  map[uuid.UUID]int // how many are here, recorded or waiting
	here   int               // of all workspaces
}

const (
	bulksAtOnce      = 6 // of all workspaces together
	bulksOfWorkspace = 4 // of one

	mostBulks            = 64 // recorded or waiting, of all workspaces together
	mostBulksOfWorkspace = 16 // of one
)

// enter waits for a place: first among the workspace's own, then among all. Who
// would be one too many to wait is turned away.
func (b *bulks) enter(ctx context.Context, ws uuid.UUID) (leave func(), err error) {
	own, all, err := b.placesOf(ws)
	if err != nil {
		return nil, err
	}
	for _, places := range []chan struct{}{own, all} {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			if places == all {
				<-own
			}
			b.forget(ws)
			return nil, fmt.Errorf("wait for other bulks: %w", ctx.Err())
		}
	}
	return func() {
		<-all
		<-own
		b.forget(ws)
	}, nil
}

func (b *bulks) placesOf(ws uuid.UUID) (own, all chan struct{}, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.here >= mostBulks || b.using[ws] >= mostBulksOfWorkspace {
		return nil, nil, overloaded("too many bulks are waiting to be recorded")
	}
	if b.places == nil {
		b.places, b.of, b.using = make(chan struct{}, bulksAtOnce), map[uuid.UUID]chan struct{}{}, map[uuid.UUID]int{}
	}
	if b.of[ws] == nil {
		b.of[ws] = make(chan struct{}, bulksOfWorkspace)
	}
	b.using[ws]++
	b.here++
	return b.of[ws], b.places, nil
}

// forget keeps no places of workspaces that have none in use.
func (b *bulks) forget(ws uuid.UUID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.here--
	if b.using[ws]--; b.using[ws] == 0 {
		delete(b.using, ws)
		delete(b.of, ws)
	}
}
