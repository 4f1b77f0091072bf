package webhooks

import (
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// lanes shares a node's calls among endpoints. No endpoint has more than its
// part. One that does not answer has a single call, and all of those together
// have half of the calls at most: however many are dead, there is always room
// for the living.
type lanes struct {
	workers, each int

	mutex  sync.Mutex
	busy   map[uuid.UUID]int       // calls that are being made
	all    int                     // their sum
	silent map[uuid.UUID]time.Time // endpoints whose last call had no answer, since when
}

func newLanes(workers, each int) *lanes {
	return &lanes{workers: workers, each: each, busy: map[uuid.UUID]int{}, silent: map[uuid.UUID]time.Time{}}
}

// forget is after how long a silent endpoint is taken for a living one: it may
// have been deleted, or answer another node.
const forget = 2 * time.Hour

// room is how much may be claimed: in all, and of the endpoints that may not
// have their whole part, with the calls that each of those has already.
type room struct {
	all       int
	endpoints []pgtype.UUID
	free      []int
	busy      []int
}

func (l *lanes) room() room {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	r := room{all: l.workers - l.all}
	for id, n := range l.busy {
		if _, silent := l.silent[id]; !silent {
			r.add(id, l.each-n, n)
		}
	}
	left := l.silentLeft()
	for id, since := range l.silent { // in an order that changes: each has its turn
		switch n := l.busy[id]; {
		case n == 0 && time.Since(since) > forget:
			delete(l.silent, id)
		case n == 0 && left > 0:
			left--
			r.add(id, 1, n)
		default:
			r.add(id, 0, n)
		}
	}
	return r
}

// silentLeft is how many more calls silent endpoints may have.
func (l *lanes) silentLeft() int {
	left := max(1, l.workers/2)
	for id := range l.silent {
		left -= l.busy[id]
	}
	return left
}

func (r *room) add(id uuid.UUID, free, busy int) {
	r.endpoints = append(r.endpoints, given(id))
	r.free = append(r.free, max(0, free))
	r.busy = append(r.busy, busy)
}

func (l *lanes) enter(id uuid.UUID) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.busy[id]++
	l.all++
}

func (l *lanes) leave(id uuid.UUID) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.all--
	if l.busy[id]--; l.busy[id] == 0 {
		delete(l.busy, id)
	}
}

// heard notes whether an endpoint answered.
func (l *lanes) heard(id uuid.UUID, answered bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	_, known := l.silent[id]
	switch {
	case answered:
		delete(l.silent, id)
	case !known:
		l.silent[id] = time.Now()
	}
}

// isSilent says whether the last call of an endpoint had no answer.
func (l *lanes) isSilent(id uuid.UUID) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	_, silent := l.silent[id]
	return silent
}
