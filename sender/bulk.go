package sender

import (
	"time"

	"github.com/google/uuid"

	"lemma"
)

// Batches of a bulk of direct notifications make room for single requests: their jobs come later, one
// slot of the provider is left, and their calls do not run as far ahead of its rate.

// ofBulk is how many of a provider's slots batches of bulks may have: one is left to single requests, but
// not of two of a quick provider.
func ofBulk(of speed, most int) int {
	if of == quick && most <= 2 {
		return most
	}
	return max(1, most-1)
}

// bulks is how many slots of a provider batches of bulks have; l is locked.
func (l *slots) bulks(provider uuid.UUID) (n int) {
	for h := range l.held {
		if h.bulk && h.provider == provider {
			n++
		}
	}
	return n
}

// refusedSingle records that single requests of a provider found no slot; l is locked.
func (l *slots) refusedSingle(provider uuid.UUID) {
	if l.singles == nil || len(l.singles) >= mostWaiting {
		l.singles = map[uuid.UUID]time.Time{}
	}
	l.singles[provider] = time.Now()
}

// makeRoom reports whether a batch of a bulk is to be given back: since bulks have more slots than they may,
// as when their provider has become slow; or after a window, if it has the only slot of its provider and
// single requests have found none. The slot does not count any more then.
func (s *Sender) makeRoom(c *claim, afterWindow bool) bool {
	if !c.bulk {
		return false
	}
	l := c.slot.of
	l.mu.Lock()
	defer l.mu.Unlock()
	speed, most := s.ofProvider(l, c.providerID)
	if l.bulks(c.providerID) <= ofBulk(speed, most) {
		if most > 1 || !afterWindow || time.Since(l.singles[c.providerID]) > singleWaits {
			return false
		}
		delete(l.singles, c.providerID)
	} else if speed == quick && !afterWindow {
		return false // it soon becomes free
	}
	c.slot.bulk = false
	return true
}

const (
	singleWaits = 5 * time.Second // for so long a single request that found no slot counts
	bulkRetry   = 3 * slotRetry   // when a batch of a bulk is due again, later than single requests without a slot
)

// waitsAs is what the batches of a provider are counted by while they wait: single requests do not wait
// longer for the batches of a bulk.
func waitsAs(provider uuid.UUID, bulk bool) uuid.UUID {
	if bulk {
		return lemma.Key("bulk/1", string(provider[:]))
	}
	return provider
}
