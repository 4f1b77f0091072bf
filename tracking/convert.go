package tracking

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// committed is the age at which trigger events are queued. Transactions that write
	// events, and those that write that a message was sent, have ended by then.
	committed    = time.Minute
	convertEvery = 5 * time.Second
	convertChunk = 5000 // trigger events of one transaction, besides those of the same time
)

// queueDue queues all trigger events that are old enough, unless that was done lately.
func (t *Tracking) queueDue(ctx context.Context) error {
	t.mu.Lock()
	due := time.Now().After(t.queueAt)
	if due {
		t.queueAt = time.Now().Add(convertEvery)
	}
	t.mu.Unlock()
	for due {
		n, err := t.QueueEvents(ctx, committed)
		if n < convertChunk || err != nil {
			return err
		}
	}
	return nil
}

// QueueEvents queues trigger events that may be conversions. It reads a chunk of events
// that are older than age, and returns how many it read. One transaction stores the queue
// and how far events were read.
func (t *Tracking) QueueEvents(ctx context.Context, age time.Duration) (read int, err error) {
	err = pgx.BeginFunc(ctx, t.Pool, func(tx pgx.Tx) error {
		from, to, n, err := nextEvents(ctx, tx, age)
		if n == 0 || err != nil {
			return err
		}
		read = n
		_, err = tx.Exec(ctx, `
			insert into conversion_queue (workspace_id, received_at, key)
			select v.workspace_id, v.received_at, v.key from trigger_events v
			where v.received_at > $1 and v.received_at <= $2
			  and exists (select from contents x where x.workspace_id = v.workspace_id and x.conversion_event = v.name offset 0)
			on conflict (workspace_id, received_at, key) do nothing`, from, to)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("queue trigger events: %w", err)
	}
	return read, nil
}

// nextEvents advances the position, and returns between which times events are to be
// queued, and how many. Another process that does so is not waited for. If no content
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
