package hooks

import (
	"sync"
	"time"

	"github.com/google/uuid"
)

// mostKnown is how many ids are remembered at least, of at most twice as many.
const mostKnown = 100_000

// known are ids of reports that are stored: a carrier that repeats one is answered
// without the database.
type known struct {
	most int

	mu          sync.Mutex
	new, before map[uuid.UUID]struct{}
}

func newKnown(most int) *known { return &known{most: most, new: map[uuid.UUID]struct{}{}} }

func (k *known) has(id uuid.UUID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.new[id]; ok {
		return true
	}
	_, ok := k.before[id]
	return ok
}

// add keeps ids, after the commit of their reports.
func (k *known) add(ids []uuid.UUID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range ids {
		if len(k.new) >= k.most {
			k.before, k.new = k.new, make(map[uuid.UUID]struct{}, k.most)
		}
		k.new[id] = struct{}{}
	}
}

// rare allows one log line a minute.
type rare struct {
	mu   sync.Mutex
	last time.Time
}

func (r *rare) now() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.last) < time.Minute {
		return false
	}
	r.last = time.Now()
	return true
}
