package tracking

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	// committed is the age at which trigger events are matched. Transactions that write
	// events, and those that write that a message was sent, have ended by then.
	committed    = time.Minute
	convertEvery = 5 * time.Second
	convertChunk = 5000 // trigger events of one transaction, besides those of the same time
)

// convertDue matches all trigger events that are old enough, unless that was done lately.
func (t *Tracking) convertDue(ctx context.Context) error {
	t.mu.Lock()
	due := time.Now().After(t.convertAt)
	if due {
		t.convertAt = time.Now().Add(convertEvery)
	}
	t.mu.Unlock()
	for due {
		n, err := t.Convert(ctx, committed)
		if n < convertChunk || err != nil {
			return err
		}
	}
	return nil
}

// Convert finds the notifications that trigger events convert, and queues these
// conversions. It reads a chunk of events that are older than age, and returns how many
// it read. One transaction stores the conversions and how far events were read.
func (t *Tracking) Convert(ctx context.Context, age time.Duration) (read int, err error) {
	err = pgx.BeginFunc(ctx, t.Pool, func(tx pgx.Tx) error {
		from, to, n, err := nextEvents(ctx, tx, age)
		if n == 0 || err != nil {
			return err
		}
		read = n
		return convert(ctx, tx, from, to)
	})
	if err != nil {
		return 0, fmt.Errorf("find conversions: %w", err)
	}
	return read, nil
}

// nextEvents advances the position, and returns between which times events are to be
// matched, and how many. Another process that does so is not waited for. If no content
// has a conversion there is nothing to match.
func nextEvents(ctx context.Context, tx pgx.Tx, age time.Duration) (from, to time.Time, n int, err error) {
	err = tx.QueryRow(ctx, `
		with position as (
			select one, received_until as before from conversion_position for update skip locked
		), events as (
			select v.received_at from position p, trigger_events v
			where v.received_at > p.before and v.received_at <= now() - $1::interval
			  and exists (select from contents where conversion_event is not null)
			order by v.received_at limit $2
		), upto as (
			select count(*) as n, case when count(*) < $2 then now() - $1::interval else max(received_at) end as at from events
		)
		update conversion_position c set received_until = greatest(u.at, p.before)
		from position p, upto u where c.one = p.one
		returning p.before, c.received_until, u.n`, age, convertChunk).Scan(&from, &to, &n)
	if errors.Is(err, pgx.ErrNoRows) {
		return from, to, 0, nil
	}
	return from, to, n, err
}

// convert queues the conversions of the events that were received in a time. An event
// converts each notification of its profile that was accepted before it, and not too long
// before.
func convert(ctx context.Context, tx pgx.Tx, from, to time.Time) error {
	rows, err := tx.Query(ctx, `
		select v.workspace_id, n.origin_id, n.key, v.occurred_at
		from trigger_events v
		cross join lateral (
			select n.origin_id, n.key, n.batch_id, n.ordinal from notifications n
			where n.workspace_id = v.workspace_id and n.profile_key = v.profile_key and n.converts and n.batch_id is not null offset 0
		) n
		cross join lateral (
			select b.content_id from batches b where b.workspace_id = v.workspace_id and b.origin_id = n.origin_id and b.id = n.batch_id offset 0
		) b
		cross join lateral (
			select c.conversion_event, c.conversion_within from contents c where c.workspace_id = v.workspace_id and c.id = b.content_id offset 0
		) c
		cross join lateral (
			select min(a.at) as at from attempts a
			where a.workspace_id = v.workspace_id and a.batch_id = n.batch_id and a.ordinal = n.ordinal and a.outcome = 'accepted'
		) sent
		where v.received_at > $1 and v.received_at <= $2
		  and exists (select from contents x where x.workspace_id = v.workspace_id and x.conversion_event = v.name offset 0)
		  and c.conversion_event = v.name and v.occurred_at >= sent.at and v.occurred_at < sent.at + c.conversion_within`, from, to)
	if err != nil {
		return err
	}
	all := map[uuid.UUID][]event{}
	var ws uuid.UUID
	e := event{kind: converted}
	_, err = pgx.ForEachRow(rows, []any{&ws, &e.of.origin, &e.of.key, &e.at}, func() error {
		e.id = onceOf(e)
		all[ws] = append(all[ws], e)
		return nil
	})
	if err != nil {
		return err
	}
	for ws, found := range all {
		slices.SortFunc(found, func(a, b event) int { return cmp.Or(a.at.Compare(b.at), bytes.Compare(a.id[:], b.id[:])) })
		if err := enqueue(ctx, tx, ws, found); err != nil {
			return err
		}
	}
	return nil
}
