package tracking

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma"
)

const (
	// committed is the age at which trigger events are queued. Transactions that write
	// events, and those that write that a message was sent, have ended by then.
	committed    = time.Minute
	convertEvery = 5 * time.Second
	convertChunk = 5000 // trigger events of one transaction, besides those of the same time
)

// queueDue queues all trigger events and settled notifications that are old enough, unless
// that was done lately. A queue that fails does not stop the other.
func (t *Tracking) queueDue(ctx context.Context) error {
	t.mu.Lock()
	due := time.Now().After(t.queueAt)
	if due {
		t.queueAt = time.Now().Add(convertEvery)
	}
	t.mu.Unlock()
	if !due {
		return nil
	}
	var failed error
	for _, queue := range []func(context.Context, time.Duration) (int, error){t.QueueEvents, t.QueueSettled, t.QueueResolved} {
		for n := convertChunk; n >= convertChunk; {
			var err error
			n, err = queue(ctx, committed)
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// QueueEvents queues trigger events that may be conversions. It reads a chunk of events
// that are older than age, and returns how many it read. One transaction stores the queue
// and how far events were read.
func (t *Tracking) QueueEvents(ctx context.Context, age time.Duration) (read int, err error) {
	read, err = t.queue(ctx, age, nextEvents, `
		insert into conversion_queue (workspace_id, received_at, key)
		select v.workspace_id, v.received_at, v.key from trigger_events v
		where v.received_at > $1 and v.received_at <= $2
		  and exists (select from contents x where x.workspace_id = v.workspace_id and x.conversion_event = v.name offset 0)
		on conflict (workspace_id, received_at, key) do nothing`)
	return read, lemma.Wrap(err, "queue trigger events")
}

// QueueSettled queues notifications that evidence has settled as accepted, if their
// workspace has conversions. It reads them as QueueEvents reads events, and none of their
// events: a profile may have any number.
func (t *Tracking) QueueSettled(ctx context.Context, age time.Duration) (read int, err error) {
	read, err = t.queue(ctx, age, nextSettled, `
		insert into settlement_queue (workspace_id, settled_at, batch_id, ordinal)
		select a.workspace_id, a.at, a.batch_id, a.ordinal from attempts a
		where a.basis = 'evidence' and a.outcome = 'accepted' and a.at > $1 and a.at <= $2
		  and exists (select from contents x where x.workspace_id = a.workspace_id and x.conversion_event is not null offset 0)
		on conflict (workspace_id, settled_at, batch_id, ordinal) do nothing`)
	return read, lemma.Wrap(err, "queue settled notifications")
}

// QueueResolved queues orphaned notifications that evidence has resolved as sent, like QueueSettled.
func (t *Tracking) QueueResolved(ctx context.Context, age time.Duration) (read int, err error) {
	read, err = t.queue(ctx, age, nextResolved, `
		insert into settlement_queue (workspace_id, settled_at, batch_id, ordinal)
		select r.workspace_id, r.at, n.batch_id, n.ordinal from resolutions r
		cross join lateral (
			select n.batch_id, n.ordinal from notifications n
			where n.workspace_id = r.workspace_id and n.origin_id = r.origin_id and n.key = r.key and n.converts offset 0
		) n
		where r.resolution = 'sent' and r.api_key_id is null and r.at > $1 and r.at <= $2
		on conflict (workspace_id, settled_at, batch_id, ordinal) do nothing`)
	return read, lemma.Wrap(err, "queue resolved notifications")
}

func (t *Tracking) queue(ctx context.Context, age time.Duration, next, insert string) (read int, err error) {
	err = pgx.BeginFunc(ctx, t.Pool, func(tx pgx.Tx) error {
		from, to, n, err := advance(ctx, tx, next, age)
		if n == 0 || err != nil {
			return err
		}
		read = n
		_, err = tx.Exec(ctx, insert, from, to)
		return err
	})
	if err != nil {
		return 0, err
	}
	return read, nil
}

// advance advances a position, and returns between which times rows are to be read, and
// how many. Another process that does so is not waited for. If no content has a conversion
// there is nothing to match.
func advance(ctx context.Context, tx pgx.Tx, next string, age time.Duration) (from, to time.Time, n int, err error) {
	err = tx.QueryRow(ctx, next, age, convertChunk).Scan(&from, &to, &n)
	if errors.Is(err, pgx.ErrNoRows) {
		return from, to, 0, nil
	}
	return from, to, n, err
}

var (
	nextEvents  = nextOf("conversion_queue", "v.received_at", "trigger_events v where true")
	nextSettled = nextOf("settlement_queue", "v.at", "attempts v where v.basis = 'evidence' and v.outcome = 'accepted'")

	nextResolved = nextOf("resolutions", "v.at", "resolutions v where v.resolution = 'sent' and v.api_key_id is null")
)

// nextOf is the statement that advances the position of a queue over rows by their time. A
// position that is ahead of the clock, since the clock was put back, returns to a day before it:
// for so long no process may have read the rows that were written since. Rows that are read
// twice convert once. If the clock has passed the position before a process reads again, it is
// not known that it was put back.
func nextOf(queue, at, rows string) string {
	return strings.NewReplacer("{queue}", queue, "{at}", at, "{rows}", rows).Replace(`
		with position as (
			select queue, least(case when until > now() then now() - interval '1 day' else until end, now() - $1::interval) as until
			from conversion_positions where queue = '{queue}' for update skip locked
		), events as (
			select v.at from position p, lateral (
				select {at} as at from {rows} and {at} > p.until and {at} <= now() - $1::interval order by {at} limit $2) v
			where exists (select from contents where conversion_event is not null)
		), upto as (
			select count(*) as n, case when count(*) < $2 then now() - $1::interval else max(at) end as at from events
		)
		update conversion_positions c set until = u.at
		from position p, upto u where c.queue = p.queue
		returning p.until, c.until, u.n`)
}
