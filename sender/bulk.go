package sender

import (
	"github.com/google/uuid"

	"lemma"
)

// Batches of a bulk of direct notifications make room for single requests: their jobs come later, one
// slot of the provider is left, and their calls do not run as far ahead of its rate.

// ofBulk is how many of a provider's slots batches of bulks may have: one is left to single requests.
func ofBulk(most int) int { return max(1, most-1) }

// makeRoom reports whether a batch of a bulk is to be given back, since bulks have more slots than they may,
// as when their provider has become slow. The slot does not count any more then.
func (s *Sender) makeRoom(c *claim) bool {
	if !c.bulk {
		return false
	}
	l := c.slot.of
	l.mu.Lock()
	defer l.mu.Unlock()
	held := 0
	for h := range l.held {
		if h.bulk && h.provider == c.providerID {
			held++
		}
	}
	_, most := s.ofProvider(l, c.providerID)
	if held <= ofBulk(most) {
		return false
	}
	c.slot.bulk = false
	return true
}

// waitsAs is what the batches of a provider are counted by while they wait: single requests do not wait
// longer for the batches of a bulk.
func waitsAs(provider uuid.UUID, bulk bool) uuid.UUID {
	if bulk {
		return lemma.Key("bulk/1", string(provider[:]))
	}
	return provider
}
