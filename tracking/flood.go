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

// gatherFloods makes one event for each hour, link and type of the events of notifications that have
// mostStored of the type already. HEAD requests about them are left out. The first open and click of a
// person stays one.
func (a *application) gatherFloods(ctx context.Context) error {
	full, err := a.full(ctx)
	if err != nil || len(full) == 0 {
		return err
	}
	gathered := map[uuid.UUID]*applied{}
	a.events = slices.DeleteFunc(a.events, func(e *applied) bool {
		by, is := full[series{e.notification(), e.kind}]
		switch {
		case !is || e.machine == "" && !by.person && e.kind != probed:
			return false
		case e.kind == probed:
			return true
		}
		hour := e.at.Truncate(time.Hour)
		e.machine, e.id = flood, madeAt(hour, lemma.Key("flood/2", e.of.origin.String(), e.of.key.String(), e.kind, strconv.Itoa(e.of.link),
			hour.UTC().Format(time.RFC3339)))
		first := gathered[e.id]
		if first == nil {
			gathered[e.id] = e
			return false
		}
		first.times += e.times
		if e.at.Before(first.at) {
			first.at = e.at
		}
		return true
	})
	return nil
}

// series are the events of one type of a notification.
type series struct {
	of   [2]uuid.UUID
	kind string
}

// fullSeries is a series that has mostStored events.
type fullSeries struct{ person bool } // one of them was a person's

func (a *application) full(ctx context.Context) (map[series]fullSeries, error) {
	asked := map[series]bool{}
	var origins, keys []uuid.UUID
	var kinds []string
	for _, e := range a.events {
		s := series{e.notification(), e.kind}
		if asked[s] || e.kind != opened && e.kind != clicked && e.kind != probed {
			continue
		}
		asked[s] = true
		origins, keys, kinds = append(origins, s.of[0]), append(keys, s.of[1]), append(kinds, s.kind)
	}
	rows, _ := a.tx.Query(ctx, `
		select r.origin_id, r.key, r.type, coalesce((select case r.type when 'opened' then e.opens else e.clicks end > 0 from engagements e
			where e.workspace_id = $1 and e.origin_id = r.origin_id and e.key = r.key limit 1), false)
		from unnest($2::uuid[], $3::uuid[], $4::text[]) as r (origin_id, key, type)
		where exists (select from tracking_events t
			where t.workspace_id = $1 and t.origin_id = r.origin_id and t.key = r.key and t.type = r.type offset $5)`,
		a.ws, origins, keys, kinds, mostStored-1)
	full := map[series]fullSeries{}
	var s series
	var by fullSeries
	_, err := pgx.ForEachRow(rows, []any{&s.of[0], &s.of[1], &s.kind, &by.person}, func() error {
		full[s] = by
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find notifications with %d opens or clicks: %w", mostStored, err)
	}
	return full, nil
}

// onceOf is the id of the only event of a type that a notification has.
func onceOf(e event) uuid.UUID {
	id := lemma.Key("once/1", e.of.origin.String(), e.of.key.String(), e.kind)
	copy(id[:6], e.of.origin[:6])
	return id
}
