package webhooks

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// A worker whose endpoint answers quickly calls it with further messages for up to
// stayFor. They are claimed in advance by the hundred instead of one by one. The
// limits of concurrent calls stay the same.
const (
	stayFor     = 100 * time.Millisecond
	fastCall    = 25 * time.Millisecond // the slowest mean call for which messages are claimed in advance
	maxPrefetch = 256                   // messages that are claimed in advance at a time
)

// Bytes of the bodies of messages that are claimed in advance. A claim takes at most a
// quarter of what the process has left, so that one endpoint leaves some to the others.
const (
	maxPrefetchBytes = 4 << 20  // of one claim
	minPrefetchBytes = 64 << 10 // with less left, nothing is claimed in advance
	maxBuffered      = 32 << 20 // of a process
)

// buffers are the buffers of the endpoints that workers of this process call.
type buffers struct {
	mu    sync.Mutex
	of    map[uuid.UUID]*buffer
	means map[uuid.UUID]time.Duration // meanCall of buffers that were removed
	bytes int                         // of messages that wait or are called, and those that claims or publications may take

	ofWorkspace map[uuid.UUID]int // bytes by workspace
}

// maxMeans is how many endpoints without a buffer have a mean.
const maxMeans = 1000

// buffer contains the messages of an endpoint that are claimed and not called yet.
type buffer struct {
	workers     int
	meanCall    time.Duration // of calls with an answer; 0: there was none
	waiting     []claimed
	bytes       int           // of waiting
	prefetching chan struct{} // closed when a claim ends; nil: none runs
	exhausted   bool          // no other message was due at the last claim
}

// acquire adds a worker to the buffer of an endpoint.
func (s *buffers) acquire(endpoint uuid.UUID) *buffer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[uuid.UUID]*buffer{}
	}
	b := s.of[endpoint]
	if b == nil {
		b = &buffer{meanCall: s.means[endpoint], exhausted: true}
		s.of[endpoint] = b
	}
	b.workers++
	return b
}

// acquireMore adds a worker to the buffer of an endpoint that may have more messages due.
func (s *buffers) acquireMore(endpoint uuid.UUID) *buffer {
	b := s.acquire(endpoint)
	s.mu.Lock()
	defer s.mu.Unlock()
	b.exhausted = false
	return b
}

// remove removes a buffer that is not used any more, but not its mean. The caller has locked s.
func (s *buffers) remove(endpoint uuid.UUID, b *buffer) {
	delete(s.of, endpoint)
	if s.means == nil || len(s.means) >= maxMeans {
		s.means = map[uuid.UUID]time.Duration{}
	}
	s.means[endpoint] = b.meanCall
}

// release removes a worker from a buffer, and reports whether none is left.
func (s *buffers) release(endpoint uuid.UUID, b *buffer) (unused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.workers--; b.workers > 0 || b.prefetching != nil {
		return false
	}
	s.remove(endpoint, b)
	return true
}

// releaseBuffer releases a worker's buffer. Two workers that end together may each
// expect the other to continue, so the last one gives the rest back.
func (w *Webhooks) releaseBuffer(ctx context.Context, endpoint uuid.UUID, b *buffer) {
	if w.buffers.release(endpoint, b) {
		w.giveBackWaiting(ctx, b)
	}
}

// ended records how long a call took that had an answer, and that its body is forgotten.
func (s *buffers) ended(b *buffer, m claimed, v result, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(m.WorkspaceID, -m.counted)
	if v.status == 0 {
		return
	}
	if b.meanCall == 0 {
		b.meanCall = d
	}
	b.meanCall = (3*b.meanCall + d) / 4
}

// serve calls a message, and then others of its endpoint until next returns false. b is the
// buffer of the endpoint, and has this worker.
func (w *Webhooks) serve(ctx context.Context, calls *sync.WaitGroup, m claimed, b *buffer) {
	endpoint := m.EndpointID
	defer w.limiter.release(m.WorkspaceID, endpoint)
	defer w.releaseBuffer(ctx, endpoint, b)
	until := time.Now().Add(stayFor)
	for more := true; more; m, more = w.next(ctx, m, b, until) {
		settled, may := w.settler.begin(m.WorkspaceID)
		if may && w.mayOutlast(m) { // it has waited for the settlements of others
			settled()
			may = false
		}
		if !may {
			w.giveBackAll(ctx, m, b)
			return
		}
		begun := time.Now()
		v := w.callOnce(ctx, m)
		w.buffers.ended(b, m, v, time.Since(begun))
		m.forget()
		w.settleCall(ctx, calls, m, v, settled)
	}
}

// settleCall settles a call together with others. It waits only in a goroutine of its own,
// if the settlement must be tried again.
func (w *Webhooks) settleCall(ctx context.Context, calls *sync.WaitGroup, m claimed, v result, settled func()) {
	calls.Add(1)
	ended := func() { settled(); calls.Done() }
	w.settleSoon(m, v, func(one *settlement) {
		if one.err == nil {
			defer ended()
			w.logSettled(ctx, one)
			return
		}
		go func() {
			defer ended()
			w.finish(ctx, m, v, one.err)
		}()
	})
}

// take removes the first message from a buffer. The caller has locked the buffers.
func (b *buffer) take() claimed {
	m := b.waiting[0]
	b.waiting[0] = claimed{}
	b.waiting, b.bytes = b.waiting[1:], b.bytes-m.counted
	return m
}

// next returns the next message for a worker that has called last; false ends its
// stay. The last worker of an endpoint stays until no claimed message is left.
func (w *Webhooks) next(ctx context.Context, last claimed, b *buffer, until time.Time) (claimed, bool) {
	s := &w.buffers
	for {
		s.mu.Lock()
		late, prefetching := time.Now().After(until), b.prefetching
		switch {
		case ctx.Err() != nil || w.limiter.isUnresponsive(last.EndpointID) || len(b.waiting) > 0 && w.tooOld(b.waiting[0]):
			s.mu.Unlock()
			w.giveBackWaiting(ctx, b)
			return claimed{}, false
		case len(b.waiting) > 0 && (!late || b.workers == 1):
			m := b.take()
			if prefetching == nil && !late && !b.exhausted && len(b.waiting) < w.prefetchSize(b.meanCall)/2 && b.bytes < maxPrefetchBytes/2 {
				w.prefetch(ctx, last, b)
			}
			s.mu.Unlock()
			return m, true
		case len(b.waiting) > 0 || prefetching == nil && (late || b.exhausted || b.meanCall == 0 || b.meanCall > fastCall):
			s.mu.Unlock()
			return claimed{}, false
		case prefetching == nil:
			prefetching = w.prefetch(ctx, last, b)
		}
		s.mu.Unlock()
		if prefetching == nil {
			return claimed{}, false
		}
		<-prefetching
	}
}

// claimedFor is how long a message that was claimed in advance may wait for its call. The endpoint may have been disabled,
// changed or deleted since.
const claimedFor = 2 * time.Second

func (w *Webhooks) tooOld(m claimed) bool { return time.Since(m.since) > claimedFor || w.mayOutlast(m) }

// mayOutlast reports whether a call might outlast the lease of a message.
func (w *Webhooks) mayOutlast(m claimed) bool {
	return time.Since(m.since) > w.options.Lease-2*w.options.Timeout
}

// prefetchSize is how many messages can be called within stayFor.
func (w *Webhooks) prefetchSize(meanCall time.Duration) int {
	n := w.options.PerEndpoint * int(stayFor/max(meanCall, time.Millisecond/4))
	return min(max(n, w.options.PerEndpoint), maxPrefetch)
}

// prefetch starts to claim more messages of an endpoint, unless the process or the workspace
// has too few bytes left: then it returns nil. The caller has locked w.buffers.
func (w *Webhooks) prefetch(ctx context.Context, last claimed, b *buffer) chan struct{} {
	s := &w.buffers
	bytes := s.reserve(last.WorkspaceID)
	if bytes == 0 {
		return nil
	}
	filled, n := make(chan struct{}), w.prefetchSize(b.meanCall)
	b.prefetching = filled
	go func() {
		more, err := w.claimMore(ctx, last.WorkspaceID, last.EndpointID, n, bytes)
		if err != nil && ctx.Err() == nil {
			w.log.ErrorContext(ctx, "webhooks not claimed", "error", err)
		}
		s.mu.Lock()
		s.count(last.WorkspaceID, -bytes)
		taken := s.add(b, last.WorkspaceID, more)
		b.exhausted, b.prefetching = len(more) == 0 || len(more) < n && taken+MaxBody <= bytes, nil
		unused := b.workers == 0
		if unused {
			s.remove(last.EndpointID, b)
		}
		s.mu.Unlock()
		close(filled)
		if unused {
			w.giveBackWaiting(ctx, b)
		}
	}()
	return filled
}

// add adds messages of a workspace to a buffer, and returns their bytes. The caller has
// locked s.
func (s *buffers) add(b *buffer, workspace uuid.UUID, more []claimed) (bytes int) {
	for i := range more {
		more[i].counted = more[i].size()
		bytes += more[i].counted
	}
	s.count(workspace, bytes)
	b.waiting, b.bytes = append(b.waiting, more...), b.bytes+bytes
	return bytes
}

// giveBackAll gives back a message that is not called, and those of its buffer.
func (w *Webhooks) giveBackAll(ctx context.Context, m claimed, b *buffer) {
	w.buffers.mu.Lock()
	b.waiting, b.bytes = append([]claimed{m}, b.waiting...), b.bytes+m.counted
	w.buffers.mu.Unlock()
	w.giveBackWaiting(ctx, b)
}

// giveBackWaiting gives back messages that were claimed and not called: the endpoint
// does not answer any more, answers of its workspace cannot be settled, the leases expire soon, or the process shuts down.
func (w *Webhooks) giveBackWaiting(ctx context.Context, b *buffer) {
	w.buffers.mu.Lock()
	left := slices.Clone(b.waiting)
	if len(left) > 0 {
		w.buffers.count(left[0].WorkspaceID, -b.bytes)
	}
	b.waiting, b.bytes = nil, 0
	w.buffers.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	if err := w.giveBack(ctx, left); err != nil {
		w.log.ErrorContext(ctx, "webhooks not given back: they are due when their lease expires", "messages", len(left), "error", err)
	}
}
