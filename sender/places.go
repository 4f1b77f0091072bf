package sender

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/notifications"
)

// A node has Config.Workers places to work batches at. A provider that is slow
// holds each of its places for long, so there are limits: of one provider, of
// one workspace, of all that are slow together, and of these with those that
// this node does not know yet. What is left is for providers that are quick,
// and soon becomes free.

const (
	slowAfter     = time.Second            // a window that lasts longer makes a provider slow
	slowRate      = 300 * time.Millisecond // and so does a longer wait for its rate: such a place mostly sleeps
	placeWait     = 250 * time.Millisecond // how long a batch waits at hand for a place of a provider that is not slow
	placeLater    = 200 * time.Millisecond // when it comes again, growing with the number that wait
	placeLatest   = 30 * time.Second
	throttledOnce = 5 * time.Second // how often it is written down that a provider's batches wait
)

// The limits, as they are named in metrics and in the API.
const (
	limitProvider  = "provider"
	limitWorkspace = "workspace"
	limitSlow      = "slow_providers"
)

// places are those that are held. The zero value is ready.
type places struct {
	mu      sync.Mutex
	held    map[*place]struct{}
	freed   chan struct{}           // closed when a place becomes free, and then another
	waiting map[uuid.UUID]int       // by provider: batches that found no place since one did
	noted   map[uuid.UUID]time.Time // by provider: when that was written down
}

// place is one that is held.
type place struct {
	workspace, provider uuid.UUID // provider is Nil until it is known
	since               time.Time // when the window in work began; zero between windows
	claimed             bool      // a batch was
}

// enter finds a place for a batch. It answers nil, and when to come again, when
// a limit leaves none.
func (s *Sender) enter(ctx context.Context, ref notifications.Ref) (*place, time.Duration, error) {
	if p := s.places.first(ref.WorkspaceID, s.fewest()); p != nil {
		return p, 0, nil
	}
	provider, err := s.providerOf(ctx, ref)
	if provider == uuid.Nil || err != nil {
		return nil, 0, err
	}
	patience := time.NewTimer(placeWait)
	defer patience.Stop()
	for {
		p, limit, freed := s.tryEnter(ref.WorkspaceID, provider)
		if p != nil {
			return p, 0, nil
		}
		if s.knownSlow(provider) {
			return nil, s.crowded(ctx, ref, provider, limit), nil
		}
		select {
		case <-freed:
		case <-patience.C:
			return nil, s.crowded(ctx, ref, provider, limit), nil
		case <-s.draining:
			return nil, time.Second, nil
		case <-ctx.Done():
			return nil, time.Second, nil
		}
	}
}

// enterNow finds a place without waiting; nil when there is none.
func (s *Sender) enterNow(ctx context.Context, ref notifications.Ref) *place {
	if p := s.places.first(ref.WorkspaceID, s.fewest()); p != nil {
		return p
	}
	provider, err := s.providerOf(ctx, ref)
	if provider == uuid.Nil || err != nil {
		return nil // its own bell reports the error
	}
	p, _, _ := s.tryEnter(ref.WorkspaceID, provider)
	return p
}

// fewest is a number of held places at which no limit can have been reached.
func (s *Sender) fewest() int { return min(s.slowShare(), s.cfg.PerWorkspace, s.slowTogether()) }

func (s *Sender) slowTogether() int { return max(1, s.cfg.Workers/2) }

func (s *Sender) slowShare() int { return max(1, s.cfg.PerProvider/3) }

func (s *Sender) providerOf(ctx context.Context, ref notifications.Ref) (id uuid.UUID, err error) {
	err = s.pool.QueryRow(ctx, `
		select provider_id from batches where workspace_id = $1 and origin_id = $2 and id = $3 and `+isReady,
		ref.WorkspaceID, ref.OriginID, ref.BatchID).Scan(&id)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return uuid.Nil, fmt.Errorf("find provider of batch %s: %w", ref.BatchID, err)
	}
	return id, nil
}

func (s *Sender) tryEnter(workspace, provider uuid.UUID) (p *place, limit string, freed <-chan struct{}) {
	l := &s.places
	l.mu.Lock()
	defer l.mu.Unlock()
	speed, most := s.speed(provider), s.cfg.PerProvider
	if speed != quick {
		most = s.slowShare()
	}
	var ofProvider, ofWorkspace int
	var of [3]int // by speed
	for h := range l.held {
		if h.provider == provider {
			ofProvider++
		}
		if h.workspace == workspace {
			ofWorkspace++
		}
		of[s.speed(h.provider)]++
	}
	switch {
	case ofProvider >= most:
		limit = limitProvider
	case ofWorkspace >= s.cfg.PerWorkspace:
		limit = limitWorkspace
	case speed == slow && of[slow] >= s.slowTogether(), speed == unknownSpeed && of[slow]+of[unknownSpeed] >= threeQuarters(s.cfg.Workers):
		limit = limitSlow
	default:
		delete(l.waiting, provider)
		return l.hold(workspace, provider), "", nil
	}
	if l.freed == nil {
		l.freed = make(chan struct{})
	}
	return nil, limit, l.freed
}

// speed of a provider, as this node knows it.
type speed int

const (
	unknownSpeed speed = iota // no window of it has ended here
	quick
	slow // its last window was, or one that is in work is
)

// speed needs the places to be locked.
func (s *Sender) speed(provider uuid.UUID) speed {
	if provider == uuid.Nil {
		return unknownSpeed
	}
	took := s.paceOf(provider).took.Load()
	switch {
	case took > int64(slowAfter) || s.places.overdue(provider):
		return slow
	case took == 0:
		return unknownSpeed
	}
	return quick
}

func (s *Sender) knownSlow(provider uuid.UUID) bool {
	s.places.mu.Lock()
	defer s.places.mu.Unlock()
	return s.speed(provider) == slow
}

// ended takes note of how long a window was worked, and how much of that was
// spent waiting for the provider's rate.
func (p *pace) ended(took, waited time.Duration) {
	if waited > slowRate {
		took = max(took, slowAfter+1)
	}
	p.took.Store(max(1, int64(took)))
}

func (l *places) overdue(provider uuid.UUID) bool {
	for h := range l.held {
		if h.provider == provider && !h.since.IsZero() && time.Since(h.since) > slowAfter {
			return true
		}
	}
	return false
}

// first gives a place without a further look while fewer than n are held.
func (l *places) first(workspace uuid.UUID, n int) *place {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.held) >= n {
		return nil
	}
	return l.hold(workspace, uuid.Nil)
}

func (l *places) hold(workspace, provider uuid.UUID) *place {
	if l.held == nil {
		l.held = map[*place]struct{}{}
	}
	p := &place{workspace: workspace, provider: provider}
	l.held[p] = struct{}{}
	return p
}

func (l *places) leave(p *place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, p)
	if l.freed != nil {
		close(l.freed)
		l.freed = nil
	}
}

func (l *places) claimed(p *place, provider uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.provider, p.claimed = provider, true
}

func (l *places) busy(p *place, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.since = since
}

// crowded says when a batch that found no place comes again, and writes down,
// now and then, that batches of its provider wait and for which limit.
func (s *Sender) crowded(ctx context.Context, ref notifications.Ref, provider uuid.UUID, limit string) time.Duration {
	s.metrics.crowded(limit)
	l := &s.places
	l.mu.Lock()
	if l.waiting == nil {
		l.waiting, l.noted = map[uuid.UUID]int{}, map[uuid.UUID]time.Time{}
	}
	l.waiting[provider]++
	later := min(placeLater+time.Duration(l.waiting[provider])*placeLater/20, placeLatest)
	write := time.Since(l.noted[provider]) > throttledOnce
	if write {
		l.noted[provider] = time.Now()
	}
	l.mu.Unlock()
	if write {
		_, err := s.pool.Exec(ctx, `
			update provider_meters set throttled_at = now(), throttled_by = $3 where workspace_id = $1 and provider_id = $2`, ref.WorkspaceID, provider, limit)
		if err != nil {
			s.log.Error("waiting batches not recorded", "provider_id", provider, "error", err)
		}
	}
	return later/2 + rand.N(later)
}
