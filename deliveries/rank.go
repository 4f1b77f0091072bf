package deliveries

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"

	"lemma"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/events"
)

// States are the delivery states, by rank from 1. The schema has the same list.
var States = []string{"delayed", "rejected", "undelivered", "delivered", "bounced", "complained"}

// stateOf is the state that an event gives; empty for none.
func stateOf(t events.Type) string {
	switch t {
	case events.TypeDelayed, events.TypeRejected, events.TypeUndelivered, events.TypeDelivered, events.TypeBounced,
		events.TypeComplained:
		return string(t)
	case events.TypeSoftBounced:
		return "undelivered"
	case events.TypeOpened, events.TypeClicked:
		return "delivered"
	}
	return ""
}

func rankOf(state string) int16 { return int16(slices.Index(States, state) + 1) }

// notification identifies one.
type notification struct{ origin, key uuid.UUID }

func (n notification) compare(o notification) int {
	return cmp.Or(bytes.Compare(n.origin[:], o.origin[:]), bytes.Compare(n.key[:], o.key[:]))
}

// change raises a notification to a state.
type change struct {
	notification
	state string
	rank  int16
	at    time.Time
	old   string // the state before; empty for none
}

// exceeds reports whether a change wins over a state: by rank, and among equals the
// earlier, so that the order of events changes nothing.
func (c *change) exceeds(rank int16, at time.Time) bool {
	return c.rank > rank || c.rank == rank && c.at.Before(at)
}

// changesOf are the highest changes of each notification, in the order of the primary
// key, in which all transactions lock them.
func changesOf(queued []events.Queued) []*change {
	best := map[notification]*change{}
	for _, q := range queued {
		state := stateOf(q.Type)
		if state == "" || !q.Key.Valid || !q.OriginID.Valid {
			continue
		}
		c := &change{notification: notification{q.OriginID.UUID, q.Key.UUID}, state: state, rank: rankOf(state), at: q.OccurredAt}
		if have := best[c.notification]; have == nil || c.exceeds(have.rank, have.at) {
			best[c.notification] = c
		}
	}
	all := make([]*change, 0, len(best))
	for _, c := range best {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *change) int { return a.compare(b.notification) })
	return all
}

// raise writes the changes that exceed the stored states, and returns those whose state
// changed, with the state before (ProviderEvents!RankOnlyRises). Stored rows are locked
// before they are read, so that two transactions do not count a state twice.
func (t *transaction) raise(ctx context.Context, changes []*change) (raised []*change, err error) {
	if len(changes) == 0 {
		return nil, nil
	}
	inserted, err := t.insert(ctx, changes)
	if err != nil {
		return nil, err
	}
	var rest []*change
	for _, c := range changes {
		if inserted[c.notification] {
			raised = append(raised, c)
		} else {
			rest = append(rest, c)
		}
	}
	higher, err := t.exceeding(ctx, rest)
	if err != nil {
		return nil, err
	}
	if err := t.update(ctx, higher); err != nil {
		return nil, err
	}
	for _, c := range higher {
		if c.old != c.state {
			raised = append(raised, c)
		}
	}
	return raised, nil
}

func columnsOf(changes []*change) (origins, keys []uuid.UUID, states []string, ranks []int16, times []time.Time) {
	origins, keys = keysOf(changes)
	for _, c := range changes {
		states, ranks, times = append(states, c.state), append(ranks, c.rank), append(times, c.at)
	}
	return origins, keys, states, ranks, times
}

func keysOf(changes []*change) (origins, keys []uuid.UUID) {
	for _, c := range changes {
		origins, keys = append(origins, c.origin), append(keys, c.key)
	}
	return origins, keys
}

func (t *transaction) insert(ctx context.Context, changes []*change) (map[notification]bool, error) {
	origins, keys, states, ranks, times := columnsOf(changes)
	rows, _ := t.tx.Query(ctx, `
		insert into deliveries (workspace_id, origin_id, key, state, rank, at)
		select $1, r.origin_id, r.key, r.state, r.rank, r.at
		from unnest($2::uuid[], $3::uuid[], $4::text[], $5::smallint[], $6::timestamptz[]) as r (origin_id, key, state, rank, at)
		on conflict (workspace_id, origin_id, key) do nothing
		returning origin_id, key`, t.ws, origins, keys, states, ranks, times)
	inserted := make(map[notification]bool, len(changes))
	var n notification
	_, err := pgx.ForEachRow(rows, []any{&n.origin, &n.key}, func() error { inserted[n] = true; return nil })
	return inserted, lemma.Wrap(err, "write %d deliveries", len(changes))
}

// exceeding locks stored rows and returns the changes that exceed them.
func (t *transaction) exceeding(ctx context.Context, changes []*change) (higher []*change, err error) {
	if len(changes) == 0 {
		return nil, nil
	}
	origins, keys := keysOf(changes)
	rows, _ := t.tx.Query(ctx, `
		select d.origin_id, d.key, d.state, d.rank, d.at
		from unnest($2::uuid[], $3::uuid[]) with ordinality as r (origin_id, key, i)
		cross join lateral (
			select d.origin_id, d.key, d.state, d.rank, d.at from deliveries d
			where d.workspace_id = $1 and d.origin_id = r.origin_id and d.key = r.key
			for update
		) d`, t.ws, origins, keys)
	by := make(map[notification]*change, len(changes))
	for _, c := range changes {
		by[c.notification] = c
	}
	var n notification
	var old string
	var rank int16
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&n.origin, &n.key, &old, &rank, &at}, func() error {
		if c := by[n]; c.exceeds(rank, at) {
			c.old = old
			higher = append(higher, c)
		}
		return nil
	})
	return higher, lemma.Wrap(err, "lock %d deliveries", len(changes))
}

func (t *transaction) update(ctx context.Context, changes []*change) error {
	if len(changes) == 0 {
		return nil
	}
	origins, keys, states, ranks, times := columnsOf(changes)
	_, err := t.tx.Exec(ctx, `
		update deliveries d set state = r.state, rank = r.rank, at = r.at
		from (
			select $1::uuid as workspace_id, r.*
			from unnest($2::uuid[], $3::uuid[], $4::text[], $5::smallint[], $6::timestamptz[]) as r (origin_id, key, state, rank, at) limit $7
		) r
		where d.workspace_id = r.workspace_id and d.origin_id = r.origin_id and d.key = r.key and d.rank <= r.rank`,
		t.ws, origins, keys, states, ranks, times, len(changes))
	return lemma.Wrap(err, "raise %d deliveries", len(changes))
}
