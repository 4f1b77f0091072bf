package sender

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/loop"
	"lemma/notifications"
)

// A process has Config.Workers slots to work batches, and Config.DirectWorkers for those of
// direct notifications, which never wait for the slots of campaigns and flows. A slow provider holds each of its
// slots for long, so slots are limited: by provider, by workspace, for all slow
// providers together, and for these with the providers that this process does not know
// yet. One workspace has three quarters of the last two, so that its slow providers leave
// slots to those of others. The rest is for quick providers, and soon becomes free. A slow data
// source whose audience is read again before the calls counts as a slow provider.

const (
	slowAfter     = time.Second            // a window that lasts longer makes a provider slow
	slowMost      = 8 * time.Second        // so long a window counts at most: four short ones make the provider quick again
	slowRate      = 300 * time.Millisecond // so does a longer wait for its rate
	slotWait      = 250 * time.Millisecond // how long a job waits for a slot of a provider that is not slow
	slotRetry     = 200 * time.Millisecond // when it is due again, growing with the number that wait
	slotRetryMost = 30 * time.Second
	throttledOnce = 5 * time.Second // how often it is recorded that a provider's batches wait
)

// The limits, as named in metrics and in the API.
const (
	limitProvider  = "provider"
	limitWorkspace = "workspace"
	limitSlow      = "slow_providers"
	limitAudience  = "audience" // reads of it
	limitMemory    = "memory"   // of a window's messages
)

// slots are the slots that are held, of most.
type slots struct {
	most struct{ workers, ofProvider, ofWorkspace int }

	mu       sync.Mutex
	held     map[*slot]struct{}
	freed    chan struct{}           // see next
	waiting  map[uuid.UUID]int       // by provider, and by origin for its reads: batches without a slot since one had one
	recorded map[uuid.UUID]time.Time // by provider: when that was recorded
	singles  map[uuid.UUID]time.Time // by provider: when a batch of single requests was last refused a slot
	refused  map[uuid.UUID]struct{}  // batches that were claimed and found no read
}

// slot is a slot that is held.
type slot struct {
	of                  *slots
	workspace, provider uuid.UUID // provider is Nil until it is known
	origin              uuid.UUID // whose audience is read again now; otherwise Nil
	since               time.Time // begin of the current window or read; zero between them
	claimed             bool      // a batch was claimed
	bulk                bool      // a batch of a bulk, unless it is being given back
}

// acquire returns a slot for a batch, or nil and how long to wait when a limit leaves
// none.
func (s *Sender) acquire(ctx context.Context, ref notifications.Ref) (*slot, time.Duration, error) {
	l := s.slotsOf(ref)
	if limit := s.waitsForRead(l, ref); limit != "" {
		return nil, s.readLater(l, ref.OriginID, limit), nil
	}
	if p := l.first(ref.WorkspaceID); p != nil {
		return p, 0, nil
	}
	provider, bulk, err := s.providerOf(ctx, ref)
	if provider == uuid.Nil || err != nil {
		return nil, 0, err
	}
	timer := time.NewTimer(slotWait)
	defer timer.Stop()
	for {
		p, limit, freed := s.tryAcquire(l, ref.WorkspaceID, provider, bulk)
		if p != nil {
			return p, 0, nil
		}
		if s.knownSlow(l, provider) {
			return nil, s.throttled(ctx, ref, provider, bulk, limit), nil
		}
		select {
		case <-freed:
		case <-timer.C:
			return nil, s.throttled(ctx, ref, provider, bulk, limit), nil
		case <-s.draining:
			return nil, time.Second, nil
		case <-ctx.Done():
			return nil, time.Second, nil
		}
	}
}

// acquireNow returns a slot without waiting, or nil.
func (s *Sender) acquireNow(ctx context.Context, ref notifications.Ref) *slot {
	l := s.slotsOf(ref)
	if p := l.first(ref.WorkspaceID); p != nil {
		return p
	}
	provider, bulk, err := s.providerOf(ctx, ref)
	if provider == uuid.Nil || err != nil {
		return nil // its own job reports the error
	}
	p, _, _ := s.tryAcquire(l, ref.WorkspaceID, provider, bulk)
	return p
}

// slotsOf are the slots for a batch.
func (s *Sender) slotsOf(ref notifications.Ref) *slots {
	if notifications.IsDirect(ref.OriginID) {
		return &s.direct
	}
	return &s.slots
}

// limit sets the limits.
func (l *slots) limit(workers, ofProvider, ofWorkspace int) {
	l.most.workers, l.most.ofProvider, l.most.ofWorkspace = workers, ofProvider, ofWorkspace
}

// fewest is a number of held slots at which no limit is reached, also not that of a bulk.
func (l *slots) fewest() int {
	return min(ofBulk(slow, l.slowShare()), l.most.ofWorkspace, l.slowTogether())
}

func (l *slots) slowTogether() int { return max(1, l.most.workers/2) }

// notQuick is for slow providers together with those whose speed is unknown.
func (l *slots) notQuick() int { return threeQuarters(l.most.workers) }

// ofOne is how many of n slots one workspace has, so that one is left.
func ofOne(n int) int { return max(1, min(n-1, threeQuarters(n))) }

func (l *slots) slowShare() int { return max(1, l.most.ofProvider/3) }

func (s *Sender) providerOf(ctx context.Context, ref notifications.Ref) (id uuid.UUID, bulk bool, err error) {
	err = s.pool.QueryRow(ctx, `
		select provider_id, bulk from batches where workspace_id = $1 and origin_id = $2 and id = $3 and `+isReady,
		ref.WorkspaceID, ref.OriginID, ref.BatchID).Scan(&id, &bulk)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return uuid.Nil, false, fmt.Errorf("find provider of batch %s: %w", ref.BatchID, err)
	}
	return id, bulk, nil
}

func (s *Sender) tryAcquire(l *slots, workspace, provider uuid.UUID, bulk bool) (p *slot, limit string, freed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	speed, most := s.ofProvider(l, provider)
	held := s.tally(l, workspace, provider, nil)
	switch {
	case held.ofProvider >= most, bulk && l.bulks(provider) >= ofBulk(speed, most):
		limit = limitProvider
	case held.ofWorkspace >= l.most.ofWorkspace:
		limit = limitWorkspace
	default:
		limit = held.slow(l, speed)
	}
	if limit == "" {
		delete(l.waiting, waitsAs(provider, bulk))
		p = l.hold(workspace, provider)
		p.bulk = bulk
		return p, "", nil
	}
	if !bulk {
		l.refusedSingle(provider)
	}
	return nil, limit, l.next()
}

// ofProvider is how many slots a provider may have, with its speed; l is locked.
func (s *Sender) ofProvider(l *slots, provider uuid.UUID) (speed, int) {
	if speed := s.speed(l, provider); speed != quick {
		return speed, l.slowShare()
	}
	return quick, l.most.ofProvider
}

// heldSlots are the slots that are held, as limits count them.
type heldSlots struct {
	ofProvider, ofWorkspace, slowOfWorkspace int
	of                                       [3]int // by speed
}

// tally counts the slots that are held, except one; l is locked. A slot has the speed of its
// provider, or of the audience that is read again, if that is worse.
func (s *Sender) tally(l *slots, workspace, provider uuid.UUID, except *slot) (t heldSlots) {
	for h := range l.held {
		if h == except {
			continue
		}
		if h.provider == provider {
			t.ofProvider++
		}
		if h.workspace == workspace {
			t.ofWorkspace++
		}
		speed := s.speed(l, h.provider)
		if h.origin != uuid.Nil {
			speed = worse(speed, s.speed(l, h.origin))
		}
		if t.of[speed]++; h.workspace == workspace && speed != quick {
			t.slowOfWorkspace++
		}
	}
	return t
}

// slow returns the limit that leaves no slot of that speed, or "".
func (t heldSlots) slow(l *slots, speed speed) string {
	switch {
	case speed == slow && t.slowOfWorkspace >= ofOne(l.slowTogether()),
		speed == unknownSpeed && t.slowOfWorkspace >= ofOne(l.notQuick()):
		return limitWorkspace
	case speed == slow && t.of[slow] >= l.slowTogether(),
		speed == unknownSpeed && t.of[slow]+t.of[unknownSpeed] >= l.notQuick():
		return limitSlow
	}
	return ""
}

// speed of a provider, or of reading an origin's audience again, as known to this process.
type speed int

const (
	quick        speed = iota
	unknownSpeed       // no window or read of it has ended here
	slow               // its last one was, or a current one is
)

func worse(a, b speed) speed { return max(a, b) }

// speed requires the lock of slots.
func (s *Sender) speed(l *slots, of uuid.UUID) speed {
	if of == uuid.Nil {
		return unknownSpeed
	}
	took := s.paceOf(of).took.Load()
	switch {
	case took > int64(slowAfter) || l.overdue(of):
		return slow
	case took == 0:
		return unknownSpeed
	}
	return quick
}

func (s *Sender) knownSlow(l *slots, provider uuid.UUID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.speed(l, provider) == slow
}

// ended records how long a window took, and how much of it was the wait for the
// provider's rate. After a long one it takes several short ones until the provider is quick: the last
// rows of a batch are a short window also of a slow provider, which would take all slots of its workspace.
func (p *pace) ended(took, waited time.Duration) {
	if waited > slowRate {
		took = max(took, slowAfter+1)
	}
	took = max(1, took, min(time.Duration(p.took.Load())/2, slowMost))
	p.took.Store(int64(took))
}

func (l *slots) overdue(of uuid.UUID) bool {
	for h := range l.held {
		what := h.provider
		if h.origin != uuid.Nil {
			what = h.origin
		}
		if what == of && !h.since.IsZero() && time.Since(h.since) > slowAfter {
			return true
		}
	}
	return false
}

// next returns a channel that is closed when a slot becomes free, or ends a read; l is locked.
func (l *slots) next() <-chan struct{} {
	if l.freed == nil {
		l.freed = make(chan struct{})
	}
	return l.freed
}

// signal closes that channel; l is locked.
func (l *slots) signal() {
	if l.freed != nil {
		close(l.freed)
		l.freed = nil
	}
}

// first returns a slot without a check while so few are held that no limit is reached.
func (l *slots) first(workspace uuid.UUID) *slot {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.held) >= l.fewest() {
		return nil
	}
	return l.hold(workspace, uuid.Nil)
}

func (l *slots) hold(workspace, provider uuid.UUID) *slot {
	if l.held == nil {
		l.held = map[*slot]struct{}{}
	}
	p := &slot{of: l, workspace: workspace, provider: provider}
	l.held[p] = struct{}{}
	return p
}

func (p *slot) release() {
	l := p.of
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, p)
	l.signal()
}

func (p *slot) claim(provider uuid.UUID, bulk bool) {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.provider, p.claimed, p.bulk = provider, true, bulk
}

func (p *slot) busy(since time.Time) {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.since = since
}

// throttled returns how long a batch without a slot waits. Now and then it records for
// which limit the provider's batches wait.
func (s *Sender) throttled(ctx context.Context, ref notifications.Ref, provider uuid.UUID, bulk bool, limit string) time.Duration {
	s.metrics.throttled(limit)
	l := s.slotsOf(ref)
	l.mu.Lock()
	if l.recorded == nil {
		l.recorded = map[uuid.UUID]time.Time{}
	}
	later := l.later(waitsAs(provider, bulk))
	write := time.Since(l.recorded[provider]) > throttledOnce
	if write {
		maps.DeleteFunc(l.recorded, func(_ uuid.UUID, at time.Time) bool { return time.Since(at) > throttledOnce })
		l.recorded[provider] = time.Now()
	}
	l.mu.Unlock()
	if write {
		_, err := s.pool.Exec(ctx, `
			update provider_meters set throttled_at = now(), throttled_by = $3
			where workspace_id = $1 and provider_id = $2`, ref.WorkspaceID, provider, limit)
		if err != nil {
			s.log.Error("waiting batches not recorded", "provider_id", provider, "error", err)
		}
	}
	return loop.Jitter(later)
}

// later is when a batch that found no slot is due again. It grows with the number of those of its
// provider, or that wait for the same audience; l is locked.
func (l *slots) later(of uuid.UUID) time.Duration {
	if l.waiting == nil || len(l.waiting) >= mostWaiting {
		l.waiting = map[uuid.UUID]int{}
	}
	l.waiting[of]++
	return min(slotRetry+time.Duration(l.waiting[of])*slotRetry/20, slotRetryMost)
}

// mostWaiting bounds the providers and audiences whose waiting batches are counted.
const mostWaiting = 10_000
