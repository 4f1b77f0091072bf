package api

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"lemma"
)

// How many requests of this process read data sources at a time. A count of
// millions of addresses takes some 50 MB and up to the time of a request, so
// that without a bound one workspace could take all memory and connections.
const (
	readsAtOnce       = 16
	readsPerWorkspace = 4
)

// readers bounds the requests that read data sources. A workspace never has all
// places.
type readers struct {
	wait    time.Duration // for a place
	refused func()        // is called for each request that has found none
	all     chan struct{}

	mutex sync.Mutex
	lines map[uuid.UUID]*line // of workspaces that read or wait
}

// line is a workspace's part of the places.
type line struct {
	places chan struct{}
	users  int
}

func newReaders(wait time.Duration, refused func()) *readers {
	return &readers{wait: wait, refused: refused, all: make(chan struct{}, readsAtOnce), lines: map[uuid.UUID]*line{}}
}

// reading is an action that reads a data source.
func (s *server) reading(a action) action {
	handle := a.handle
	a.handle = func(ctx context.Context, c *call) (any, error) {
		leave, err := s.readers.enter(ctx, c.workspace())
		if err != nil {
			return nil, err
		}
		defer leave()
		return handle(ctx, c)
	}
	return a
}

// enter waits for a place, first among those of the workspace, and returns what
// gives it back.
func (r *readers) enter(ctx context.Context, ws uuid.UUID) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, r.wait)
	defer cancel()
	own := r.join(ws)
	for i, places := range []chan struct{}{own.places, r.all} {
		select {
		case places <- struct{}{}:
			continue
		case <-ctx.Done():
		}
		if i > 0 {
			<-own.places
		}
		r.quit(ws)
		r.refused()
		return nil, &lemma.Error{Kind: lemma.Unavailable, Code: "too_many_reads", Message: "too many requests read data sources now; try again later"}
	}
	return func() {
		<-r.all
		<-own.places
		r.quit(ws)
	}, nil
}

func (r *readers) join(ws uuid.UUID) *line {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.lines[ws] == nil {
		r.lines[ws] = &line{places: make(chan struct{}, readsPerWorkspace)}
	}
	r.lines[ws].users++
	return r.lines[ws]
}

func (r *readers) quit(ws uuid.UUID) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.lines[ws].users--; r.lines[ws].users == 0 {
		delete(r.lines, ws)
	}
}
