package webhooks

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// A worker that has called an endpoint which answers quickly stays with it for a
// while, instead of claiming message by message: its next ones are claimed by
// the hundred. How many calls an endpoint has at a time, and how often others
// get the place, is as without it: no worker stays for longer than stayFor.
const (
	stayFor  = 100 * time.Millisecond
	quick    = 25 * time.Millisecond // slower than that, and nobody stays
	mostMore = 256                   // messages that are claimed at a time for those who stay
)

// lines are the endpoints that workers of this node are with.
type lines struct {
	mu sync.Mutex
	of map[uuid.UUID]*line
}

// line is one of these endpoints, and what was claimed for it and is not called yet.
type line struct {
	workers int
	pace    time.Duration // of a call that was answered, on average; 0: none was
	waiting []claimed
	filling chan struct{} // closed when more have been claimed; nil: nobody does
	dry     bool          // the last time there were fewer than asked for
}

// enter adds a worker to an endpoint.
func (s *lines) enter(endpoint uuid.UUID) *line {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[uuid.UUID]*line{}
	}
	l := s.of[endpoint]
	if l == nil {
		l = &line{}
		s.of[endpoint] = l
	}
	l.workers++
	return l
}

// leave takes a worker from an endpoint. It answers true when nobody is with it
// any more.
func (s *lines) leave(endpoint uuid.UUID, l *line) (deserted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.workers--; l.workers > 0 || l.filling != nil {
		return false
	}
	delete(s.of, endpoint)
	return true
}

// part ends a worker's stay. Two that end theirs at once each take the other for
// the one that stays until nothing is left: what is left then is given back.
func (w *Webhooks) part(ctx context.Context, endpoint uuid.UUID, l *line) {
	if w.lines.leave(endpoint, l) {
		w.abandon(ctx, l)
	}
}

// took notes how long a call took that was answered.
func (s *lines) took(l *line, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.pace == 0 {
		l.pace = d
	}
	l.pace = (3*l.pace + d) / 4
}

// serve calls a message, and then others of its endpoint for as long as it may.
func (w *Webhooks) serve(ctx context.Context, calls *sync.WaitGroup, m claimed) {
	endpoint := m.EndpointID
	defer w.lanes.leave(endpoint)
	l := w.lines.enter(endpoint)
	defer w.part(ctx, endpoint, l)
	until := time.Now().Add(stayFor)
	for more := true; more; m, more = w.next(ctx, m, l, until) {
		w.settler.open <- struct{}{}
		begun, called := time.Now(), m
		v := w.callOnce(ctx, called)
		if v.status != 0 {
			w.lines.took(l, time.Since(begun))
		}
		calls.Go(func() {
			defer func() { <-w.settler.open }()
			w.finish(ctx, called, v)
		})
	}
}

// next is the next message for a worker that has called last; false: it is to
// leave. The last one of an endpoint stays until nothing is left that was claimed.
func (w *Webhooks) next(ctx context.Context, last claimed, l *line, until time.Time) (claimed, bool) {
	s := &w.lines
	for {
		s.mu.Lock()
		late, filling := time.Now().After(until), l.filling
		switch {
		case ctx.Err() != nil || w.lanes.isSilent(last.EndpointID) || len(l.waiting) > 0 && w.tooOld(l.waiting[0]):
			s.mu.Unlock()
			w.abandon(ctx, l)
			return claimed{}, false
		case len(l.waiting) > 0 && (!late || l.workers == 1):
			m := l.waiting[0]
			l.waiting = l.waiting[1:]
			if filling == nil && !late && !l.dry && len(l.waiting) < w.more(l)/2 {
				w.fill(ctx, last, l)
			}
			s.mu.Unlock()
			return m, true
		case len(l.waiting) > 0 || filling == nil && (late || l.dry || l.pace == 0 || l.pace > quick):
			s.mu.Unlock()
			return claimed{}, false
		case filling == nil:
			filling = w.fill(ctx, last, l)
		}
		s.mu.Unlock()
		<-filling
	}
}

// tooOld says that a message waits for so long that a call might outlast its lease.
func (w *Webhooks) tooOld(m claimed) bool {
	return time.Since(m.since) > w.options.Lease-2*w.options.Timeout
}

// more is how many messages an endpoint of this pace can be called with while
// its workers stay.
func (w *Webhooks) more(l *line) int {
	n := w.options.PerEndpoint * int(stayFor/max(l.pace, time.Millisecond/4))
	return min(max(n, w.options.PerEndpoint), mostMore)
}

// fill begins to claim more for an endpoint. The caller has locked the lines.
func (w *Webhooks) fill(ctx context.Context, last claimed, l *line) chan struct{} {
	filled, n := make(chan struct{}), w.more(l)
	l.filling = filled
	go func() {
		more, err := w.claimMore(ctx, last.WorkspaceID, last.EndpointID, n)
		if err != nil && ctx.Err() == nil {
			w.log.ErrorContext(ctx, "webhooks not claimed", "error", err)
		}
		s := &w.lines
		s.mu.Lock()
		l.waiting, l.dry, l.filling = append(l.waiting, more...), len(more) < n, nil
		deserted := l.workers == 0
		if deserted {
			delete(s.of, last.EndpointID)
		}
		s.mu.Unlock()
		close(filled)
		if deserted {
			w.abandon(ctx, l)
		}
	}()
	return filled
}

// abandon gives back what was claimed for an endpoint and not called: the
// endpoint does not answer any more, its lease is running out, or the process is
// told to stop.
func (w *Webhooks) abandon(ctx context.Context, l *line) {
	w.lines.mu.Lock()
	left := slices.Clone(l.waiting)
	l.waiting = nil
	w.lines.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	if err := w.giveBack(ctx, left); err != nil {
		w.log.ErrorContext(ctx, "webhooks are not given back: they are due when their lease ends", "messages", len(left), "error", err)
	}
}
