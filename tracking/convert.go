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

// queueDue queues all trigger events that are old enough, unless that was done lately.
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
	for _, queue := range []func(context.Context, time.Duration) (int, error){t.QueueEvents, t.QueueSettled} {
		for n := convertChunk; n >= convertChunk; {
			var err error
			if n, err = queue(ctx, committed); err != nil {
				return err
			}
		}
	}
	return nil
}

// QueueEvents queues trigger events that may be conversions. It reads a chunk of events
// that are older than age, and returns how many it read. One transaction stores the queue
// and how far events were read.
func (t *Tracking) QueueEvents(ctx context.Context, age time.Duration) (read int, err error) {
	return t.queue(ctx, age, nextEvents, `
		insert into conversion_queue (workspace_id, received_at, key)
		select v.workspace_id, v.received_at, v.key from trigger_events v
		where v.received_at > $1 and v.received_at <= $2
		  and exists (select from contents x where x.workspace_id = v.workspace_id and x.conversion_event = v.name offset 0)
		on conflict (workspace_id, received_at, key) do nothing`)
}

// QueueSettled queues trigger events again that came between the acceptance of a
// notification and the time at which evidence settled it: it was not known as accepted
// when they were matched. The first event of each notification suffices.
func (t *Tracking) QueueSettled(ctx context.Context, age time.Duration) (read int, err error) {
	return t.queue(ctx, age, nextSettled, `
		insert into conversion_queue (workspace_id, received_at, key)
		select a.workspace_id, v.received_at, v.key from attempts a
		cross join lateral (
			select p.origin_id, p.occurred_at from provider_events p
			where p.workspace_id = a.workspace_id and p.batch_id = a.batch_id and p.ordinal = a.ordinal and p.kind = 'accepted'
			order by p.occurred_at limit 1
		) sent
		cross join lateral (
			select n.profile_key from notifications n
			where n.workspace_id = a.workspace_id and n.origin_id = sent.origin_id and n.batch_id = a.batch_id and n.ordinal = a.ordinal
			  and n.converts limit 1
		) n
		cross join lateral (
			select b.content_id from batches b where b.workspace_id = a.workspace_id and b.origin_id = sent.origin_id and b.id = a.batch_id offset 0
		) b
		cross join lateral (
			select c.conversion_event, c.conversion_within from contents c where c.workspace_id = a.workspace_id and c.id = b.content_id offset 0
		) c
		cross join lateral (
			select v.received_at, v.key from trigger_events v
			where v.workspace_id = a.workspace_id and v.profile_key = n.profile_key and v.name = c.conversion_event
			  and v.received_at >= sent.occurred_at and v.occurred_at >= sent.occurred_at
			  and least(v.occurred_at, v.received_at) < sent.occurred_at + c.conversion_within
			order by v.received_at limit 1
		) v
		where a.basis = 'evidence' and a.outcome = 'accepted' and a.at > $1 and a.at <= $2
		on conflict (workspace_id, received_at, key) do nothing`)
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
	return read, lemma.Wrap(err, "queue trigger events")
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
	nextEvents  = nextOf("received_until", "v.received_at", "trigger_events v where true")
	nextSettled = nextOf("settled_until", "v.at", "attempts v where v.basis = 'evidence' and v.outcome = 'accepted'")
)

// nextOf is the statement that advances a position over rows by their time.
func nextOf(until, at, rows string) string {
	return strings.NewReplacer("{until}", until, "{at}", at, "{rows}", rows).Replace(`
		with position as (
			select one, {until} as before from conversion_position for update skip locked
		), events as (
			select v.at from position p, lateral (
				select {at} as at from {rows} and {at} > p.before and {at} <= now() - $1::interval order by {at} limit $2) v
			where exists (select from contents where conversion_event is not null)
		), upto as (
			select count(*) as n, case when count(*) < $2 then now() - $1::interval else max(at) end as at from events
		)
		update conversion_position c set {until} = greatest(u.at, p.before)
		from position p, upto u where c.one = p.one
		returning p.before, c.{until}, u.n`)
}
