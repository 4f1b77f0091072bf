package webhooks

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"lemma"
)

// reservation has the messages that a process may call as soon as it has published them. The
// transaction that writes them leases them too, so that no claim is needed.
type reservation struct {
	token string
	since time.Time // before the start of the lease
	of    map[uuid.UUID]*reserved
	left  bool // some messages were written without a lease
}

// reserved is what one endpoint has of a reservation.
type reserved struct {
	workspace       uuid.UUID
	messages, bytes int // that it may still take
	buffered        int // bytes that the buffers count for it
	taken           []claimed
}

func (w *Webhooks) newReservation() *reservation {
	return &reservation{token: lemma.NewID().String(), since: time.Now(), of: map[uuid.UUID]*reserved{}}
}

// reserve reserves messages of an endpoint: as many as a claim would take, if the endpoint
// answers and is being called, or the process has half of its calls left. So messages that
// wait for a call are not delayed by new ones.
func (w *Webhooks) reserve(r *reservation, workspace, endpoint uuid.UUID) {
	s := &w.buffers
	s.mu.Lock()
	defer s.mu.Unlock()
	n, mean := w.limiter.spare(workspace, endpoint), s.means[endpoint]
	b := s.of[endpoint]
	if b != nil {
		mean = b.meanCall
	}
	if mean > 0 && mean <= fastCall && (n > 0 || b != nil && b.workers > 0) && !w.limiter.isUnresponsive(endpoint) {
		n = w.prefetchSize(mean)
	}
	if b != nil {
		n -= len(b.waiting)
	}
	if n <= 0 {
		return
	}
	if bytes := s.reserve(workspace); bytes > 0 {
		r.of[endpoint] = &reserved{workspace: workspace, messages: n, bytes: bytes, buffered: bytes}
	}
}

// take adds a message, and reports whether it fits.
func (r *reservation) take(m claimed) bool {
	of, size := r.of[m.EndpointID], m.size()
	if of == nil || of.messages == 0 || of.bytes < size {
		r.left = true
		return false
	}
	of.messages, of.bytes = of.messages-1, of.bytes-size
	m.Attempts, m.LeasedBy, m.since = 1, r.token, r.since
	of.taken = append(of.taken, m)
	return true
}

// startPublished adds published messages to the buffers of their endpoints, and starts to
// call them within the limits. Those of an endpoint without a worker are given back.
func (w *Webhooks) startPublished(ctx context.Context, calls *sync.WaitGroup, r *reservation, after func()) {
	for endpoint, of := range r.of {
		s, b := &w.buffers, w.buffers.acquire(endpoint)
		s.mu.Lock()
		s.count(of.workspace, -of.buffered)
		s.add(b, of.workspace, of.taken)
		b.exhausted = b.exhausted && !r.left
		s.mu.Unlock()
		for _, m := range of.taken {
			if !w.startNext(ctx, calls, m, b, after) {
				break
			}
		}
		w.releaseBuffer(ctx, endpoint, b)
	}
}

// startNext starts one more worker for a buffer with waiting messages, if the limits allow it.
func (w *Webhooks) startNext(ctx context.Context, calls *sync.WaitGroup, of claimed, b *buffer, after func()) bool {
	if !w.limiter.tryAcquire(of.WorkspaceID, of.EndpointID) {
		return false
	}
	w.buffers.mu.Lock()
	defer w.buffers.mu.Unlock()
	if len(b.waiting) == 0 {
		w.limiter.release(of.WorkspaceID, of.EndpointID)
		return false
	}
	m := b.take()
	b.workers++
	calls.Go(func() {
		defer after()
		w.serve(ctx, calls, m, b)
	})
	return true
}

// dropReservation gives the messages of a reservation back.
func (w *Webhooks) dropReservation(ctx context.Context, r *reservation) {
	for endpoint, of := range r.of {
		b := w.buffers.acquire(endpoint)
		w.buffers.mu.Lock()
		w.buffers.count(of.workspace, -of.buffered)
		w.buffers.add(b, of.workspace, of.taken)
		w.buffers.mu.Unlock()
		w.releaseBuffer(ctx, endpoint, b)
	}
}

// cancelReservation ends a reservation whose messages were not written.
func (w *Webhooks) cancelReservation(r *reservation) {
	w.buffers.mu.Lock()
	defer w.buffers.mu.Unlock()
	for _, of := range r.of {
		w.buffers.count(of.workspace, -of.buffered)
	}
}
