package webhooks

import (
	"math/rand/v2"
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
	of           map[uuid.UUID]int       // the same by workspace
	all          int                     // their sum
	unresponsive map[uuid.UUID]time.Time // endpoints whose last call had no answer, since when
}

func newLimiter(workers, perEndpoint int) *limiter {
	return &limiter{workers: workers, perEndpoint: perEndpoint, busy: map[uuid.UUID]int{}, of: map[uuid.UUID]int{},
		unresponsive: map[uuid.UUID]time.Time{}}
}

// unresponsiveFor is when an uncalled endpoint stops to count as unresponsive: it
// may have been deleted, or may answer another process.
const unresponsiveFor = 2 * time.Hour

// capacity is how many messages may be claimed: in all, and of each of some endpoints, with
// its current calls and those of its workspace.
type capacity struct {
	all                   int
	workspaces, endpoints []pgtype.UUID
	free, busy, calls     []int
}

// free is how many more calls there may be.
func (l *limiter) free() int {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.workers - l.all
}

// capacity is that of the endpoints that may be called.
func (l *limiter) capacity(some []readyEndpoint) capacity {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for id, since := range l.unresponsive {
		if l.busy[id] == 0 && time.Since(since) > unresponsiveFor {
			delete(l.unresponsive, id)
		}
	}
	c := capacity{all: l.workers - l.all}
	left := l.unresponsiveLeft()
	for _, i := range rand.Perm(len(some)) { // each unresponsive endpoint has its chance
		e := some[i]
		free := l.perEndpoint - l.busy[e.endpoint]
		if _, unresponsive := l.unresponsive[e.endpoint]; unresponsive {
			if free = 0; l.busy[e.endpoint] == 0 && left > 0 {
				free, left = 1, left-1
			}
		}
		if free > 0 {
			c.workspaces, c.endpoints = append(c.workspaces, pgUUID(e.workspace)), append(c.endpoints, pgUUID(e.endpoint))
			c.free, c.busy, c.calls = append(c.free, free), append(c.busy, l.busy[e.endpoint]), append(c.calls, l.of[e.workspace])
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

func (l *limiter) acquire(workspace, endpoint uuid.UUID) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.add(workspace, endpoint)
}

func (l *limiter) add(workspace, endpoint uuid.UUID) {
	l.busy[endpoint]++
	l.of[workspace]++
	l.all++
}

// spare is how many calls an endpoint may have at once, while the process has half of its
// calls left.
func (l *limiter) spare(endpoint uuid.UUID) int {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if _, unresponsive := l.unresponsive[endpoint]; unresponsive || 2*l.all > l.workers {
		return 0
	}
	return l.perEndpoint - l.busy[endpoint]
}

// tryAcquire acquires a call within the limits, of an endpoint that answers.
func (l *limiter) tryAcquire(workspace, endpoint uuid.UUID) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if _, unresponsive := l.unresponsive[endpoint]; unresponsive || l.all >= l.workers || l.busy[endpoint] >= l.perEndpoint {
		return false
	}
	l.add(workspace, endpoint)
	return true
}

func (l *limiter) release(workspace, endpoint uuid.UUID) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.all--
	if l.busy[endpoint]--; l.busy[endpoint] == 0 {
		delete(l.busy, endpoint)
	}
	if l.of[workspace]--; l.of[workspace] == 0 {
		delete(l.of, workspace)
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
