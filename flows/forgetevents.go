package flows

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma/flows/enrollment"
)

// agedEvent is an event past its retention.
type agedEvent struct {
	ws, key       pgtype.UUID
	profile, name string
	at            pgtype.Timestamptz // when it was received
}

// findEvents is the finder of events.
func (f *Flows) findEvents(ctx context.Context, after *pgtype.Timestamptz) (a aged, read int, err error) {
	return f.findEventsBy(ctx, f.pool, after)
}

// findEventsBy is findEvents in a transaction of the caller. What keeps an event is read once for each profile and
// each name of a page, and not for each event: a profile may have very many enrollments, and
// a name very many experiments.
func (f *Flows) findEventsBy(ctx context.Context, q enrollment.Querier, after *pgtype.Timestamptz) (a aged, read int, err error) {
	rows, _ := q.Query(ctx, `
		select workspace_id, key, profile_key, name, received_at from trigger_events
		where received_at > $2 and received_at < now() - `+keptFor+`
		order by received_at fetch first ($3::int) rows with ties`, f.cfg.Retention, *after, f.forgetPage)
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e agedEvent, err error) {
		err = row.Scan(&e.ws, &e.key, &e.profile, &e.name, &e.at)
		return e, err
	})
	if err != nil || len(events) == 0 {
		return a, 0, err
	}
	*after = events[len(events)-1].at
	needed, err := readNeeds(ctx, q, events)
	if err != nil {
		return a, 0, err
	}
	for _, e := range events {
		if !needed.has(e) {
			a.add(e.ws, e.key, e.key)
		}
	}
	return a, len(events), nil
}

// owned is a profile or the name of an event, of a workspace.
type owned struct {
	ws   pgtype.UUID
	text string
}

// span is the time from which on, and until which, received events stay.
type span struct{ from, until pgtype.Timestamptz }

// needs are the spans of the profiles and names of events.
type needs struct{ profiles, names map[owned]span }

func (n needs) has(e agedEvent) bool {
	return n.profiles[owned{e.ws, e.profile}].has(e) || n.names[owned{e.ws, e.name}].has(e)
}

func (s span) has(e agedEvent) bool {
	return s.from.Valid && !e.at.Time.Before(s.from.Time) && (s.until.InfinityModifier == pgtype.Infinity || e.at.Time.Before(s.until.Time))
}

// readNeeds reads what needs events: active enrollments that began before them, since a later
// branch may read the profile's events, or that have not entered, and experiments that have no
// verdict yet and count them. An experiment lasts 28 days, so that a paused campaign keeps a
// bounded number of events. Events between two experiments on one name stay as well.
func readNeeds(ctx context.Context, q enrollment.Querier, events []agedEvent) (n needs, err error) {
	profiles, names := map[owned]span{}, map[owned]span{}
	for _, e := range events {
		profiles[owned{e.ws, e.profile}], names[owned{e.ws, e.name}] = span{}, span{}
	}
	// Of the indexes of active enrollments, only enrollments_active has the order: see "order
	// by the index" in enrollment/plans.go.
	err = readSpans(ctx, q, profiles, `
		select r.i::int, case when h.enters then '-infinity' else h.since end, 'infinity'::timestamptz
		from unnest($1::uuid[], $2::text[]) with ordinality as r (workspace_id, profile_key, i)
		cross join lateral (
			select min(enrolled_at) as since, bool_or(node = '') as enters from (
				select enrolled_at, node from enrollments e
				where e.workspace_id = r.workspace_id and e.profile_key = r.profile_key and e.status = 'active'
				order by e.flow_id, e.overlap_key offset 0
			) e
		) h where h.since is not null`)
	if err != nil {
		return n, fmt.Errorf("read active enrollments of the profiles: %w", err)
	}
	err = readSpans(ctx, q, names, `
		select r.i::int, h.since, h.until
		from unnest($1::uuid[], $2::text[]) with ordinality as r (workspace_id, event_name, i)
		cross join lateral (
			select min(started_at) as since, max(cut_off_at) as until from iterations i
			where i.workspace_id = r.workspace_id and i.event_name = r.event_name and i.status in ('sampling', 'running', 'evaluating')
		) h where h.since is not null and h.until is not null`)
	if err != nil {
		return n, fmt.Errorf("read experiments on the events: %w", err)
	}
	return needs{profiles, names}, nil
}

// needsAtOnce is how many profiles or names one statement has.
const needsAtOnce = 5_000

// readSpans fills in the spans of all keys.
func readSpans(ctx context.Context, q enrollment.Querier, of map[owned]span, sql string) error {
	ask := make([]owned, 0, min(len(of), needsAtOnce))
	read := func() error {
		if len(ask) == 0 {
			return nil
		}
		ws, texts := make([]pgtype.UUID, len(ask)), make([]string, len(ask))
		for i, o := range ask {
			ws[i], texts[i] = o.ws, o.text
		}
		rows, _ := q.Query(ctx, sql, ws, texts)
		var i int
		var s span
		_, err := pgx.ForEachRow(rows, []any{&i, &s.from, &s.until}, func() error {
			of[ask[i-1]] = s
			return nil
		})
		ask = ask[:0]
		return err
	}
	for o := range of {
		if ask = append(ask, o); len(ask) == needsAtOnce {
			if err := read(); err != nil {
				return err
			}
		}
	}
	return read()
}
