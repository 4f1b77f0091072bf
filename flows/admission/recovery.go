package admission

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// Blocked names the enrollments that a breaker delays: those of all flows that read
// profiles from a source, or those at one branch.
type Blocked struct {
	Workspace uuid.UUID
	Source    uuid.UUID
	Flow      uuid.UUID // of a branch
	Node      string
}

// Retry is what is to be retried: all that a breaker delays if it has recovered, otherwise one
// enrollment.
type Retry struct {
	Blocked
	Recovered bool

	id    uuid.UUID // of the breaker
	tried time.Time // before
}

// retryEvery is the least time between two retries of a failing source. It doubles up to sixteen times
// as long while they find no enrollment.
const retryEvery = 3 * time.Second

// Remember records which enrollments a breaker delays.
func (b *Breakers) Remember(source uuid.UUID, about Blocked) {
	s := b.of(source)
	b.mu.Lock()
	defer b.mu.Unlock()
	s.about, s.noneWaits, s.noneRetried = about, false, 0
}

// Assume records that enrollments wait for a source, of which this process knows no failure: another
// has queried it, or this one before a restart. The first answer is a recovery. The source is queried
// as one that has not failed.
func (b *Breakers) Assume(about Blocked) {
	s := b.of(about.Source)
	b.mu.Lock()
	defer b.mu.Unlock()
	s.about, s.assumed = about, true
}

// Answered records that a source has answered a query of a branch.
func (b *Breakers) Answered(source uuid.UUID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.states[source]; s != nil && s.assumed {
		s.recovered, s.assumed = true, false
	}
}

// ToRetry returns, by workspace, the sources and branches that have recovered, and then those that
// fail, or may, and were not queried for a while, the one first that was tried longest ago. Take each
// before it is retried.
func (b *Breakers) ToRetry(now time.Time) map[uuid.UUID][]Retry {
	b.mu.Lock()
	defer b.mu.Unlock()
	of := map[uuid.UUID][]Retry{}
	for id, s := range b.states {
		if s.about != (Blocked{}) && (s.recovered || s.mayTry(now)) {
			of[s.about.Workspace] = append(of[s.about.Workspace], Retry{s.about, s.recovered, id, s.tried})
		}
	}
	for _, all := range of {
		slices.SortFunc(all, func(a, b Retry) int {
			switch {
			case a.Recovered == b.Recovered:
				return a.tried.Compare(b.tried)
			case a.Recovered:
				return -1
			}
			return 1
		})
	}
	return of
}

func (s *breaker) mayTry(now time.Time) bool {
	return (s.failures > 0 || s.assumed) && !s.noneWaits && now.After(s.closedTo) && now.Sub(s.tried) > retryEvery<<min(s.noneRetried, 4)
}

// Take reports whether a retry is still to be made, and leaves it to the caller.
func (b *Breakers) Take(r Retry, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.states[r.id]
	switch {
	case s == nil:
		return false
	case r.Recovered:
		taken := s.recovered
		s.recovered = false
		return taken
	case !s.mayTry(now):
		return false
	}
	s.tried = now
	return true
}

// PutBack leaves a retry after a recovery that has failed to the next caller of Take, also if the
// state was forgotten meanwhile.
func (b *Breakers) PutBack(r Retry) {
	if !r.Recovered {
		return
	}
	s := b.of(r.id)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.states[r.id], s.about, s.recovered = s, r.Blocked, true
}

// NoneRetried records that a retry found no enrollment to retry, and whether any waits. If none does, the
// source or branch is not tried any more before its next query. One that was used in the last
// minute is: an enrollment whose query has just failed may not have been committed yet.
func (b *Breakers) NoneRetried(r Retry, now time.Time, waits bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.states[r.id]
	if s == nil {
		return
	}
	s.noneRetried++
	s.noneWaits = !waits && now.Sub(s.used) > keepFor && len(s.running.places) == 0
}

// StillFailing reports whether the source or branch of a retry has failed again.
func (b *Breakers) StillFailing(r Retry) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.states[r.id]
	return s != nil && s.failures > 0
}
