package hooks

import (
	"sync"
	"time"

	"github.com/google/uuid"

	"lemma/cache"
)

// mostKnown is how many ids are remembered at least, of at most twice as many.
const mostKnown = 100_000

// known are ids of reports that are stored: a carrier that repeats one is answered
// without the database, as long as the same server of the database answers.
type known struct {
	most    int
	history *cache.History

	mu          sync.Mutex
	new, before map[uuid.UUID]struct{}
	read        cache.Moment // of all ids
}

func newKnown(most int) *known { return &known{most: most, new: map[uuid.UUID]struct{}{}} }

func (k *known) has(id uuid.UUID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.follow()
	if _, ok := k.new[id]; ok {
		return true
	}
	_, ok := k.before[id]
	return ok
}

// follow forgets all ids when another server answers, which may not have the reports.
func (k *known) follow() {
	if now := k.history.Now(); now != k.read {
		k.read, k.new, k.before = now, map[uuid.UUID]struct{}{}, nil
	}
}

// add keeps ids, after the commit of their reports, which began at a moment or later.
func (k *known) add(begun cache.Moment, ids []uuid.UUID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.follow(); begun != k.read {
		return
	}
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
