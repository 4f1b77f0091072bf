package tracking

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

const (
	// mostPerMinute is how many requests about one notification a process stores one by
	// one, per minute. The others are a flood.
	mostPerMinute = 100

	// mostStored is how many events of a notification are stored one by one, however long they take.
	mostStored = 1_000

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

// gatherFloods makes one event for each hour of those of notifications that have mostStored already. HEAD
// requests about them are left out.
func (a *application) gatherFloods(ctx context.Context) error {
	full, err := a.full(ctx)
	if err != nil || len(full) == 0 {
		return err
	}
	gathered := map[uuid.UUID]*applied{}
	a.events = slices.DeleteFunc(a.events, func(e *applied) bool {
		switch {
		case !full[e.notification()] || e.kind != opened && e.kind != clicked && e.kind != probed:
			return false
		case e.kind == probed:
			return true
		}
		e.at, e.machine = e.at.Truncate(time.Hour), flood
		e.id = madeAt(e.at, lemma.Key("flood/2", e.of.origin.String(), e.of.key.String(), e.kind, strconv.Itoa(e.of.link),
			e.at.UTC().Format(time.RFC3339)))
		if first := gathered[e.id]; first != nil {
			first.times += e.times
			return true
		}
		gathered[e.id] = e
		return false
	})
	return nil
}

// full are the notifications that have mostStored events.
func (a *application) full(ctx context.Context) (map[[2]uuid.UUID]bool, error) {
	full := map[[2]uuid.UUID]bool{}
	for _, e := range a.events {
		full[e.notification()] = false
	}
	origins, keys := make([]uuid.UUID, 0, len(full)), make([]uuid.UUID, 0, len(full))
	for of := range full {
		origins, keys = append(origins, of[0]), append(keys, of[1])
	}
	clear(full)
	rows, _ := a.tx.Query(ctx, `
		select r.origin_id, r.key from unnest($2::uuid[], $3::uuid[]) as r (origin_id, key)
		where exists (select from tracking_events t
			where t.workspace_id = $1 and t.origin_id = r.origin_id and t.key = r.key offset $4)`,
		a.ws, origins, keys, mostStored-1)
	var of [2]uuid.UUID
	_, err := pgx.ForEachRow(rows, []any{&of[0], &of[1]}, func() error {
		full[of] = true
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find notifications with %d opens and clicks: %w", mostStored, err)
	}
	return full, nil
}

// onceOf is the id of the only event of a type that a notification has.
func onceOf(e event) uuid.UUID {
	id := lemma.Key("once/1", e.of.origin.String(), e.of.key.String(), e.kind)
	copy(id[:6], e.of.origin[:6])
	return id
}
