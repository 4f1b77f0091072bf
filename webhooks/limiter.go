package webhooks

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// limiter limits a process's concurrent calls for each endpoint and for each workspace, so that
// endpoints of one workspace that answer slowly leave capacity to the others. An unresponsive
// endpoint has one call, and all of them together have at most half of the calls, in the same
// shares: however many do not answer, the others have capacity left.
type limiter struct {
	workers, perEndpoint, perWorkspace int
	isFull                             func(workspace uuid.UUID) bool // its answers cannot be settled

	mutex        sync.Mutex
	busy         map[uuid.UUID]int    // current calls by endpoint
	of           map[uuid.UUID]int    // the same by workspace
	all          int                  // their sum
	unresponsive map[uuid.UUID]silent // endpoints whose last call had no answer
}

// silent is an endpoint that does not answer.
type silent struct {
	workspace uuid.UUID
	since     time.Time
}

func newLimiter(workers, perEndpoint, perWorkspace int, isFull func(workspace uuid.UUID) bool) *limiter {
	return &limiter{workers: workers, perEndpoint: perEndpoint, perWorkspace: perWorkspace, isFull: isFull, busy: map[uuid.UUID]int{},
		of: map[uuid.UUID]int{}, unresponsive: map[uuid.UUID]silent{}}
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
	deferred              int // workspaces with due messages that may begin no call
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
	for id, s := range l.unresponsive {
		if l.busy[id] == 0 && time.Since(s.since) > unresponsiveFor {
			delete(l.unresponsive, id)
		}
	}
	c := capacity{all: l.workers - l.all}
	probes, full := l.probes(), map[uuid.UUID]bool{}
	for _, i := range rand.Perm(len(some)) { // each unresponsive endpoint has its chance
		e := some[i]
		if l.of[e.workspace] >= l.perWorkspace || full[e.workspace] || l.isFull(e.workspace) {
			full[e.workspace] = true
			continue
		}
		free := l.perEndpoint - l.busy[e.endpoint]
		if _, unresponsive := l.unresponsive[e.endpoint]; unresponsive {
			if free = 0; l.busy[e.endpoint] == 0 && probes.take(e.workspace) {
				free = 1
			}
		}
		if free > 0 {
			c.workspaces, c.endpoints = append(c.workspaces, pgUUID(e.workspace)), append(c.endpoints, pgUUID(e.endpoint))
			c.free, c.busy, c.calls = append(c.free, free), append(c.busy, l.busy[e.endpoint]), append(c.calls, l.of[e.workspace])
		}
	}
	c.deferred = len(full)
	return c
}

// probes are how many more calls unresponsive endpoints may have.
type probes struct {
	left, perWorkspace int
	of                 map[uuid.UUID]int // by workspace
}

func (l *limiter) probes() probes {
	most := max(1, l.workers/2)
	p := probes{most, max(1, most*l.perWorkspace/l.workers), map[uuid.UUID]int{}}
	for id, s := range l.unresponsive {
		p.left -= l.busy[id]
		p.of[s.workspace] += l.busy[id]
	}
	return p
}

func (p *probes) take(workspace uuid.UUID) bool {
	if p.left <= 0 || p.of[workspace] >= p.perWorkspace {
		return false
	}
	p.left--
	p.of[workspace]++
	return true
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
func (l *limiter) spare(workspace, endpoint uuid.UUID) int {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if _, unresponsive := l.unresponsive[endpoint]; unresponsive || 2*l.all > l.workers || l.isFull(workspace) {
		return 0
	}
	return min(l.perEndpoint-l.busy[endpoint], l.perWorkspace-l.of[workspace])
}

// tryAcquire acquires a call within the limits, of an endpoint that answers.
func (l *limiter) tryAcquire(workspace, endpoint uuid.UUID) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if _, unresponsive := l.unresponsive[endpoint]; unresponsive || l.all >= l.workers || l.busy[endpoint] >= l.perEndpoint ||
		l.of[workspace] >= l.perWorkspace || l.isFull(workspace) {
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
func (l *limiter) recordAnswer(workspace, id uuid.UUID, answered bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	_, known := l.unresponsive[id]
	switch {
	case answered:
		delete(l.unresponsive, id)
	case !known:
		l.unresponsive[id] = silent{workspace, time.Now()}
	}
}

// isUnresponsive reports whether the last call of an endpoint had no answer.
func (l *limiter) isUnresponsive(id uuid.UUID) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	_, unresponsive := l.unresponsive[id]
	return unresponsive
}
