package sender

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/loop"
	"lemma/notifications"
)

// A read of an audience holds the slot of its batch. So the slots of the audience of one origin are limited, and
// those whose audience is slow, or new to this process, count with those of slow and new
// providers: see tally.

const (
	readsAtOnce = 4                      // reads of one origin at a time
	readWait    = 100 * time.Millisecond // how long another read waits
	readRetry   = 2 * time.Second        // how much later a batch is due than a pause ends, give or take a half
	firstPause  = 5 * time.Second        // after a failure, doubled for each
	mostPause   = time.Minute
	mostOrigins = 1_000 // whose reads are remembered before those that have ended are forgotten
)

// readAgain reads the audience, if a limit leaves a slot for it. It ends before the claim
// could not make a call any more.
func (s *Sender) readAgain(ctx context.Context, c *claim, channel lemma.Channel, profiles []string, yield func(string, AudienceRow)) (
	known bool, wait time.Duration, err error,
) {
	a := s.rechecks.of(c.OriginID)
	defer s.rechecks.forget(c.OriginID, a)
	wait = a.pause()
	if wait > 0 {
		wait += loop.Jitter(readRetry)
	} else {
		wait = s.beginRead(c)
	}
	if wait > 0 {
		c.detail = "waits for its audience to be read again"
		return false, wait, nil
	}
	ctx, cancel := context.WithDeadline(ctx, c.until.Add(-s.cfg.CallTimeout))
	defer cancel()
	defer s.whenDraining(ctx, cancel)()
	begun := time.Now()
	known, err = s.again(ctx, c.WorkspaceID, c.OriginID, c.contentID, channel, profiles, yield)
	s.paceOf(c.OriginID).ended(time.Since(begun), 0)
	c.slot.readEnded()
	wait = a.ended(err)
	if err == nil {
		return known, 0, nil
	}
	s.metrics.recheckFailed()
	c.detail = "its audience cannot be read again: " + lemma.Public(err)
	s.log.Warn("audience not read again, batch waits",
		"batch_id", c.BatchID, "origin_id", c.OriginID, "rows", len(profiles), "wait", wait, "error", err)
	if lemma.KindOf(err) != lemma.Internal || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = nil // of the data source, which may work later
	}
	return false, wait, err
}

// whenDraining cancels a read when this process shuts down.
func (s *Sender) whenDraining(ctx context.Context, cancel context.CancelFunc) (stop func()) {
	over := make(chan struct{})
	go func() {
		select {
		case <-s.draining:
			cancel()
		case <-over:
		case <-ctx.Done():
		}
	}()
	return func() { close(over) }
}

// beginRead makes the slot of a claim one of a read, or returns how long to wait.
func (s *Sender) beginRead(c *claim) (wait time.Duration) {
	timer := time.NewTimer(readWait)
	defer timer.Stop()
	for {
		limit, freed := s.tryRead(c.slot, c.Ref)
		if limit == "" {
			return 0
		}
		if !s.knownSlow(c.slot.of, c.OriginID) {
			select {
			case <-freed:
				continue
			case <-timer.C:
			}
		}
		c.slot.of.readRefused(c.BatchID)
		return s.readLater(c.slot.of, c.OriginID, limit)
	}
}

// readRefused remembers that a batch was claimed and found no read.
func (l *slots) readRefused(batch uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused == nil || len(l.refused) >= mostWaiting {
		l.refused = map[uuid.UUID]struct{}{}
	}
	l.refused[batch] = struct{}{}
}

// readLater returns when a batch whose audience cannot be read now is due again.
func (s *Sender) readLater(l *slots, origin uuid.UUID, limit string) time.Duration {
	s.metrics.throttled(limit)
	l.mu.Lock()
	defer l.mu.Unlock()
	return loop.Jitter(l.later(origin))
}

// waitsForRead is the limit for which a batch would find no read again, or "": it would hold a slot,
// and be claimed, for nothing. Other batches of its origin may need no read.
func (s *Sender) waitsForRead(l *slots, ref notifications.Ref) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, refused := l.refused[ref.BatchID]; !refused {
		return ""
	}
	return s.readLimit(l, &slot{of: l, workspace: ref.WorkspaceID}, ref.OriginID, quick)
}

func (s *Sender) tryRead(p *slot, ref notifications.Ref) (limit string, freed <-chan struct{}) {
	l := p.of
	l.mu.Lock()
	defer l.mu.Unlock()
	if limit := s.readLimit(l, p, ref.OriginID, s.speed(l, p.provider)); limit != "" {
		return limit, l.next()
	}
	delete(l.waiting, ref.OriginID)
	delete(l.refused, ref.BatchID)
	p.origin, p.since = ref.OriginID, time.Now()
	return "", nil
}

// readLimit is the limit that leaves no read to a slot of a provider of that speed, or "".
func (s *Sender) readLimit(l *slots, p *slot, origin uuid.UUID, speed speed) string {
	if l.reads(origin) >= readsAtOnce {
		return limitAudience
	}
	return s.tally(l, p.workspace, p.provider, p).slow(l, worse(speed, s.speed(l, origin)))
}

// reads are the reads of an origin's audience; l is locked.
func (l *slots) reads(origin uuid.UUID) (n int) {
	for h := range l.held {
		if h.origin == origin {
			n++
		}
	}
	return n
}

func (p *slot) readEnded() {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.origin, p.since = uuid.Nil, time.Time{}
	p.of.signal()
}

// audienceReads are the reads of one origin's audience.
type audienceReads struct {
	mu          sync.Mutex // guards what follows
	failures    int        // in a row
	pausedUntil time.Time

	users int // guarded by rechecks
}

func (r *rechecks) of(origin uuid.UUID) *audienceReads {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reads == nil {
		r.reads = map[uuid.UUID]*audienceReads{}
	}
	a := r.reads[origin]
	if a == nil {
		if len(r.reads) >= mostOrigins { // those whose last read failed, and that have ended
			maps.DeleteFunc(r.reads, func(_ uuid.UUID, a *audienceReads) bool { return a.users == 0 && a.pause() == 0 })
		}
		a = &audienceReads{}
		r.reads[origin] = a
	}
	a.users++
	return a
}

// forget removes an origin without reads and without a pause.
func (r *rechecks) forget(origin uuid.UUID, a *audienceReads) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.users--; a.users == 0 && a.pause() == 0 {
		delete(r.reads, origin)
	}
}

// pause is how long no read begins.
func (a *audienceReads) pause() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(0, time.Until(a.pausedUntil))
}

// ended returns how long to wait after a failure.
func (a *audienceReads) ended(err error) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.failures, a.pausedUntil = 0, time.Time{}
		return 0
	}
	wait := min(firstPause<<min(a.failures, 10), mostPause)
	if now := time.Now(); now.After(a.pausedUntil) { // concurrent failures count as one
		a.failures++
		a.pausedUntil = now.Add(wait)
	}
	return wait + loop.Jitter(readRetry)
}
