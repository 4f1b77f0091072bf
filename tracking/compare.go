package tracking

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// mostCompared is how many events of a notification a click is compared with, besides
// those of its chunk. Where there are more, clicks are a flood.
const mostCompared = 500

// compare reads what the rules compare events with: the notification, when it was sent,
// and its other events, whether they are queued or applied.
func (a *application) compare(ctx context.Context) error {
	if err := a.match(ctx); err != nil {
		return fmt.Errorf("match %d opens and clicks: %w", len(a.events), err)
	}
	return lemma.Wrap(a.compareAll(ctx), "compare %d opens and clicks", len(a.events))
}

// match finds the notification of each event, and whether it is fast.
func (a *application) match(ctx context.Context) error {
	var origins, keys []uuid.UUID
	var clicks []bool
	var times []time.Time
	for _, e := range a.events {
		origins, keys = append(origins, e.of.origin), append(keys, e.of.key)
		clicks, times = append(clicks, e.isPersons()), append(times, e.at)
	}
	rows, _ := a.tx.Query(ctx, matching, a.ws, origins, keys, clicks, times, fast)
	var at int
	var e applied
	_, err := pgx.ForEachRow(rows, []any{&at, &e.content, &e.isFast}, func() error {
		of := a.events[at]
		of.isMatched, of.content, of.isFast = true, e.content, e.isFast
		return nil
	})
	return err
}

// matching: a click is fast only if the time of the acceptance is known. That of an attempt
// with an unknown outcome is not: it may have been accepted long before the second.
const matching = `
	select r.i::int - 1, b.content_id, coalesce(r.at < sent.at + $6::interval, false)
	from unnest($2::uuid[], $3::uuid[], $4::boolean[], $5::timestamptz[]) with ordinality as r (origin_id, key, click, at, i)
	cross join lateral (
		select n.batch_id, n.ordinal from notifications n
		where n.workspace_id = $1 and n.origin_id = r.origin_id and n.key = r.key offset 0
	) n
	cross join lateral (
		select b.content_id from batches b where b.workspace_id = $1 and b.origin_id = r.origin_id and b.id = n.batch_id offset 0
	) b
	left join lateral (
		select min(a.at) as at from attempts a
		where r.click and a.workspace_id = $1 and a.batch_id = n.batch_id and a.ordinal = n.ordinal
		having bool_and(a.outcome = 'accepted' and a.basis = 'response')
	) sent on true`

// isPersons reports whether it is a click that does not show by itself to be a machine's.
func (e *applied) isPersons() bool { return e.kind == clicked && e.machine == "" }

// notification of an event.
func (e *event) notification() [2]uuid.UUID { return [2]uuid.UUID{e.of.origin, e.of.key} }

// window is a minute of a notification. All events of it are compared with the same others.
type window struct {
	of     [2]uuid.UUID
	minute time.Time
}

// compareAll compares the clicks of the chunk with each other and with those that are
// stored. The others of each minute are read once, and at most mostCompared of them.
func (a *application) compareAll(ctx context.Context) error {
	own, asked := map[window][]*applied{}, map[window]bool{}
	all := map[[2]uuid.UUID][]moment{}
	for _, e := range a.events {
		if e.machine == flood || e.kind != clicked && e.kind != probed {
			continue
		}
		w := window{e.notification(), e.at.Truncate(time.Minute).UTC()}
		own[w] = append(own[w], e)
		asked[w] = asked[w] || e.isPersons()
		all[w.of] = append(all[w.of], moment{e.at, e.kind, e.of.link, e})
	}
	others, err := a.readOthers(ctx, asked)
	if err != nil {
		return err
	}
	for w, read := range others {
		if len(read)+len(own[w]) > mostCompared {
			for _, e := range own[w] {
				e.isFlood = true
			}
			continue
		}
		all[w.of] = append(all[w.of], read...)
	}
	for _, of := range all {
		compareMoments(of)
	}
	return nil
}

// readOthers reads the stored events with which those of each minute are compared.
func (a *application) readOthers(ctx context.Context, asked map[window]bool) (map[window][]moment, error) {
	var windows []window
	var origins, keys, first, last []uuid.UUID
	for w, is := range asked {
		if !is {
			continue
		}
		windows, origins, keys = append(windows, w), append(origins, w.of[0]), append(keys, w.of[1])
		first = append(first, idAt(w.minute.Add(-before-time.Second)))
		last = append(last, idAt(w.minute.Add(time.Minute+beside+time.Second)))
	}
	others := make(map[window][]moment, len(windows))
	if len(windows) == 0 {
		return others, nil
	}
	for _, w := range windows {
		others[w] = nil
	}
	rows, _ := a.tx.Query(ctx, readOthers, a.ws, origins, keys, first, last, mostCompared)
	var at int
	var m moment
	_, err := pgx.ForEachRow(rows, []any{&at, &m.kind, &m.link, &m.at}, func() error {
		others[windows[at]] = append(others[windows[at]], m)
		return nil
	})
	return others, err
}

const readOthers = `
	select w.i::int - 1, e.type, e.link, e.at
	from unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[]) with ordinality as w (origin_id, key, first, last, i)
	cross join lateral (
		(select case when q.machine = '` + flood + `' then '` + flood + `' else q.type end as type, q.link, q.occurred_at as at
		from tracking_queue q
		where q.workspace_id = $1 and q.origin_id = w.origin_id and q.key = w.key and q.id between w.first and w.last limit $6)
		union all
		(select case when t.machine = '` + flood + `' then '` + flood + `' else t.type end, t.link, t.occurred_at
		from tracking_events t
		where t.workspace_id = $1 and t.origin_id = w.origin_id and t.key = w.key and t.id between w.first and w.last limit $6)
	) e`

// idAt is lower than the ids that are made from a time on: they begin with their
// milliseconds (RFC 9562, 5.7). It bounds how many events of a notification are read.
func idAt(t time.Time) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[:8], uint64(t.UnixMilli())<<16)
	return id
}

// madeAt is an id with the time at which it was made.
func madeAt(t time.Time, id uuid.UUID) uuid.UUID {
	made := idAt(t)
	copy(id[:6], made[:6])
	return id
}

// moment is an event of a notification with which others are compared.
type moment struct {
	at   time.Time
	kind string
	link int
	of   *applied // the event, if it is of the chunk
}

// compareMoments finds the clicks beside one on another link, and those that a HEAD
// request precedes. Each moment is compared a few times, however many there are.
func compareMoments(all []moment) {
	slices.SortFunc(all, func(a, b moment) int {
		return cmp.Or(a.at.Compare(b.at), -cmp.Compare(a.kind, b.kind)) // a HEAD request first
	})
	probes := map[int]time.Time{}
	var clicks []moment
	for _, m := range all {
		switch m.kind {
		case probed:
			probes[m.link] = m.at
		case clicked:
			at, ok := probes[m.link]
			if m.of != nil {
				m.of.isProbed = ok && m.at.Sub(at) <= before
			}
			clicks = append(clicks, m)
		}
	}
	first, end, near := 0, 0, map[int]int{} // clicks[first:end] are beside m; near has how many of each link
	for _, m := range clicks {
		for ; end < len(clicks) && clicks[end].at.Sub(m.at) <= beside; end++ {
			near[clicks[end].link]++
		}
		for ; m.at.Sub(clicks[first].at) > beside; first++ {
			near[clicks[first].link]--
		}
		if m.of != nil {
			m.of.isBeside = end-first > near[m.link]
		}
	}
}
