package admission

import (
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

// retryEvery is the least time between two retries of a failing source.
const retryEvery = 3 * time.Second

// Remember records which enrollments a breaker delays.
func (b *Breakers) Remember(source uuid.UUID, about Blocked) {
	s := b.of(source)
	b.mu.Lock()
	defer b.mu.Unlock()
	s.about = about
}

// ToRetry returns what sources have recovered, and which failing ones were not queried for
// a while and may be retried.
func (b *Breakers) ToRetry(now time.Time) (back, try []Blocked) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.states {
		switch {
		case s.about == (Blocked{}):
		case s.recovered:
			s.recovered = false
			back = append(back, s.about)
		case s.failures > 0 && now.After(s.closedTo) && now.Sub(s.tried) > retryEvery:
			s.tried = now
			try = append(try, s.about)
		}
	}
	return back, try
}

// StillFailing reports whether a source has failed again.
func (b *Breakers) StillFailing(about Blocked) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.states {
		if s.about == about && s.failures > 0 {
			return true
		}
	}
	return false
}
