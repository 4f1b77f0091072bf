package webhooks

import (
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// limiter limits a process's concurrent calls for each endpoint. An unresponsive
// endpoint has one call, and all of them together have at most half of the calls:
// however many do not answer, the others have capacity left.
type limiter struct {
	workers, perEndpoint int

	mutex        sync.Mutex
	busy         map[uuid.UUID]int       // current calls by endpoint
	all          int                     // their sum
	unresponsive map[uuid.UUID]time.Time // endpoints whose last call had no answer, since when
}

func newLimiter(workers, perEndpoint int) *limiter {
	return &limiter{workers: workers, perEndpoint: perEndpoint, busy: map[uuid.UUID]int{}, unresponsive: map[uuid.UUID]time.Time{}}
}

// unresponsiveFor is when an uncalled endpoint stops to count as unresponsive: it
// may have been deleted, or may answer another process.
const unresponsiveFor = 2 * time.Hour

// capacity is how many messages may be claimed: in all, and of the endpoints with
// fewer free calls than the limit, with their current calls.
type capacity struct {
	all       int
	endpoints []pgtype.UUID
	free      []int
	busy      []int
}

func (l *limiter) capacity() capacity {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	c := capacity{all: l.workers - l.all}
	for id, n := range l.busy {
		if _, unresponsive := l.unresponsive[id]; !unresponsive {
			c.add(id, l.perEndpoint-n, n)
		}
	}
	left := l.unresponsiveLeft()
	for id, since := range l.unresponsive { // Go's random order gives each endpoint its chance
		switch n := l.busy[id]; {
		case n == 0 && time.Since(since) > unresponsiveFor:
			delete(l.unresponsive, id)
		case n == 0 && left > 0:
			left--
			c.add(id, 1, n)
		default:
			c.add(id, 0, n)
		}
	}
	return c
}

// unresponsiveLeft is how many more calls unresponsive endpoints may have.
func (l *limiter) unresponsiveLeft() int {
	left := max(1, l.workers/2)
	for id := range l.unresponsive {
		left -= l.busy[id]
	}
	return left
}

func (c *capacity) add(id uuid.UUID, free, busy int) {
	c.endpoints = append(c.endpoints, pgUUID(id))
	c.free = append(c.free, max(0, free))
	c.busy = append(c.busy, busy)
}

func (l *limiter) acquire(id uuid.UUID) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.busy[id]++
	l.all++
}

func (l *limiter) release(id uuid.UUID) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.all--
	if l.busy[id]--; l.busy[id] == 0 {
		delete(l.busy, id)
	}
}

// recordAnswer records whether an endpoint answered.
func (l *limiter) recordAnswer(id uuid.UUID, answered bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	_, known := l.unresponsive[id]
	switch {
	case answered:
		delete(l.unresponsive, id)
	case !known:
		l.unresponsive[id] = time.Now()
	}
}

// isUnresponsive reports whether the last call of an endpoint had no answer.
func (l *limiter) isUnresponsive(id uuid.UUID) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	_, unresponsive := l.unresponsive[id]
	return unresponsive
}
