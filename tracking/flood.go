package tracking

import (
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"

	"lemma"
)

const (
	// mostPerMinute is how many requests about one notification a process stores one by
	// one, per minute. The others are a flood.
	mostPerMinute = 100

	mostWatched = 200_000 // notifications in memory
)

// watch counts the requests of the current minute about each notification.
type watch struct {
	mu     sync.Mutex
	minute time.Time
	counts map[[2]uuid.UUID]int
}

// isFlood counts a request, and reports whether there were too many.
func (w *watch) isFlood(of [2]uuid.UUID, at time.Time) bool {
	minute := at.Truncate(time.Minute)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.counts == nil || !minute.Equal(w.minute) || len(w.counts) >= mostWatched {
		w.minute, w.counts = minute, map[[2]uuid.UUID]int{}
	}
	w.counts[of]++
	return w.counts[of] > mostPerMinute
}

// flooded is the event that stands for all of a flood: those of one type, link and minute
// of a notification. It occurs at the end of the minute, so that it is applied after all
// of them.
func flooded(e event) event {
	end := e.at.Truncate(time.Minute).Add(time.Minute)
	id := lemma.Key("flood/1", e.of.origin.String(), e.of.key.String(), e.kind, strconv.Itoa(e.of.link), end.UTC().Format(time.RFC3339))
	e.id, e.at, e.machine = madeAt(end, id), end, flood
	return e
}

// onceOf is the id of the only event of a type that a notification has.
func onceOf(e event) uuid.UUID {
	id := lemma.Key("once/1", e.of.origin.String(), e.of.key.String(), e.kind)
	copy(id[:6], e.of.origin[:6])
	return id
}
