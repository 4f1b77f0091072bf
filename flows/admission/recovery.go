package admission

import (
	"time"

	"github.com/google/uuid"
)

// Blocked is whom a breaker puts off: those of all flows that read profiles
// from a source, or those that stand at one branch.
type Blocked struct {
	Workspace uuid.UUID
	Source    uuid.UUID
	Flow      uuid.UUID // of a branch
	Node      string
}

// retryEvery is how often at most one of them tries a source that fails.
const retryEvery = 3 * time.Second

// Remember keeps whom a breaker puts off.
func (b *Breakers) Remember(source uuid.UUID, about Blocked) {
	s := b.of(source)
	b.mu.Lock()
	defer b.mu.Unlock()
	s.about = about
}

// ToRetry takes down which sources have recovered, and which fail and could be
// asked again: nobody has for a while.
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
