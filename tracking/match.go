package tracking

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/queue"
)

const (
	converters = 2    // workspaces whose conversions a process finds at a time
	matchPage  = 2000 // notifications that one statement reads
)

func (t *Tracking) logNotConverted(err error) { t.Log.Error("find conversions", "error", err) }

// convertDue converts until nothing is left that can be matched now.
func (t *Tracking) convertDue(ctx context.Context) error {
	for {
		n, err := t.Convert(ctx)
		if err != nil && ctx.Err() == nil {
			t.logNotConverted(err)
		}
		if n == 0 {
			return ctx.Err()
		}
	}
}

// Convert finds the notifications that queued trigger events convert, and those of queued
// settlements that an event has converted, and queues these conversions. It matches at most
// one chunk of each queue of each workspace, and returns how many rows of the queues these
// were. A workspace that fails or is slow does not stop the others.
func (t *Tracking) Convert(ctx context.Context) (matched int, err error) {
	matched, err = t.conversions.Each(ctx, func(ctx context.Context, ws uuid.UUID, of queue.Part) (int, error) {
		return t.convertChunk(ctx, ws, of)
	})
	settled, failed := t.settlements.Each(ctx, func(ctx context.Context, ws uuid.UUID, of queue.Part) (int, error) {
		return t.convertSettled(ctx, ws, of)
	})
	return matched + settled, errors.Join(err, failed)
}

func (t *Tracking) convertChunk(ctx context.Context, ws uuid.UUID, of queue.Part) (n int, err error) {
	err = pgx.BeginFunc(ctx, t.Pool, func(tx pgx.Tx) error {
		var events occurrences
		if n, events, err = takeEvents(ctx, tx, ws, of); n == 0 || err != nil {
			return err
		}
		return events.convert(ctx, tx, ws)
	})
	return n, err
}

// named is an event of a profile by its name.
type named struct{ profile, event string }

// occurrences are the times of events, in order. An event has occurred at the latest when it
// was received: one that is dated ahead cannot be the effect of a message that was sent after it.
type occurrences map[named][]time.Time

// takeEvents deletes the oldest events of the queue. Events that another transaction takes,
// and those that were erased, are left out.
func takeEvents(ctx context.Context, tx pgx.Tx, ws uuid.UUID, from queue.Part) (n int, all occurrences, err error) {
	rows, _ := tx.Query(ctx, `
		with taken as (
			delete from conversion_queue q where ctid = any(array(
				select ctid from conversion_queue where workspace_id = $1 order by received_at, key limit $2 offset $3 for update skip locked))
			returning q.key
		)
		select v.profile_key, v.name, v.at from taken q left join lateral (
			select profile_key, name, least(occurred_at, received_at) as at from trigger_events
			where workspace_id = $1 and key = q.key offset 0
		) v on true`, ws, from.Most, from.Skip)
	all = occurrences{}
	var profile, event *string
	var at *time.Time
	_, err = pgx.ForEachRow(rows, []any{&profile, &event, &at}, func() error {
		if n++; at != nil {
			of := named{*profile, *event}
			all[of] = append(all[of], *at)
		}
		return nil
	})
	if err != nil {
		return 0, nil, fmt.Errorf("take queued events: %w", err)
	}
	for _, times := range all {
		slices.SortFunc(times, time.Time.Compare)
	}
	return n, all, nil
}

// convert queues the conversions of events. It reads each notification of their profiles
// once, page by page: a profile may have any number of notifications and events.
func (o occurrences) convert(ctx context.Context, tx pgx.Tx, ws uuid.UUID) error {
	if err := o.declare(ctx, tx, ws); err != nil {
		return fmt.Errorf("find conversions: %w", err)
	}
	for last := false; !last; {
		found, n, err := o.readPage(ctx, tx)
		if err != nil {
			return fmt.Errorf("find conversions: %w", err)
		}
		if err := enqueue(ctx, tx, ws, found); err != nil {
			return err
		}
		last = n < matchPage
	}
	_, err := tx.Exec(ctx, `close converting`)
	return lemma.Wrap(err, "find conversions")
}

// settling is how long a transaction may have run that settles a notification by evidence, and has read it since its
// begin. Its conversions are looked for after that time.
const settling = `interval '1 minute'`

// resolved is until when evidence counts for a resolution x: one by a person was not made by evidence.
const resolved = `case when x.api_key_id is null then x.at + ` + settling + ` else x.at end`

// evidenceAt is when evidence first proved the acceptance of the notification n of workspace $1. What is recorded
// after it was settled or resolved changes nothing: its conversions were looked for then.
func evidenceAt(settled string) string {
	return `
				select min(least(p.occurred_at, p.recorded_at)) from provider_events p
				where p.workspace_id = $1 and p.origin_id = n.origin_id and p.batch_id = n.batch_id and p.ordinal = n.ordinal
					and p.kind = 'accepted' and p.recorded_at <= ` + settled
}

// acceptedAt selects when the notification n of workspace $1 was accepted: null before, if it
// has converted, and if a condition is false. One that was settled by evidence, or orphaned and
// resolved as sent, was accepted at the time of the evidence, or else of the resolution.
func acceptedAt(condition string) string {
	return `
			select case when ` + condition + ` and (select e.conversions from engagements e
				where e.workspace_id = $1 and e.origin_id = n.origin_id and e.key = n.key and e.conversions > 0) is null
			then coalesce((
				select min(case a.basis when 'evidence' then least(a.at, (` + evidenceAt("a.at + "+settling) + `)) else a.at end) from attempts a
				where a.workspace_id = $1 and a.batch_id = n.batch_id and a.ordinal = n.ordinal and a.outcome = 'accepted'
			), (
				select least(x.at, (` + evidenceAt(resolved) + `)) from resolutions x
				where x.workspace_id = $1 and x.origin_id = n.origin_id and x.key = n.key and x.resolution = 'sent'
			)) end as at`
}

// conversionOf reads the conversion c of a notification n.
const conversionOf = `cross join lateral (
			select b.content_id from batches b where b.workspace_id = $1 and b.origin_id = n.origin_id and b.id = n.batch_id offset 0
		) b
		cross join lateral (
			select c.conversion_event, c.conversion_within from contents c where c.workspace_id = $1 and c.id = b.content_id offset 0
		) c`

// declare opens a cursor over the notifications of the profiles, with the times in which
// an event converts them. These are null for other events, before the message is accepted,
// and for a notification that has converted.
func (o occurrences) declare(ctx context.Context, tx pgx.Tx, ws uuid.UUID) error {
	profiles, events := map[string]bool{}, map[string]bool{}
	for of := range o {
		profiles[of.profile], events[of.event] = true, true
	}
	_, err := tx.Exec(ctx, `
		declare converting no scroll cursor for
		select p.profile_key, c.conversion_event, n.origin_id, n.key, sent.at, sent.at + c.conversion_within
		from unnest($2::text[]) as p (profile_key)
		cross join lateral (
			select n.origin_id, n.key, n.batch_id, n.ordinal from notifications n
			where n.workspace_id = $1 and n.profile_key = p.profile_key and n.converts and n.batch_id is not null offset 0
		) n
		`+conversionOf+`
		cross join lateral (`+acceptedAt("c.conversion_event = any($3::text[])")+`
		) sent`, ws, slices.Sorted(maps.Keys(profiles)), slices.Collect(maps.Keys(events)))
	return err
}

// readPage reads the next notifications, and returns how many these are and the conversions
// among them.
func (o occurrences) readPage(ctx context.Context, tx pgx.Tx) (found []event, n int, err error) {
	rows, _ := tx.Query(ctx, fmt.Sprintf(`fetch forward %d from converting`, matchPage))
	var of named
	var from, to *time.Time
	e := event{kind: converted}
	_, err = pgx.ForEachRow(rows, []any{&of.profile, &of.event, &e.of.origin, &e.of.key, &from, &to}, func() error {
		n++
		if from == nil {
			return nil
		}
		var fits bool
		if e.at, fits = firstWithin(o[of], *from, *to); fits {
			e.id = onceOf(e)
			found = append(found, e)
		}
		return nil
	})
	return found, n, err
}

// firstWithin returns the first of sorted times that is not before from and is before to.
func firstWithin(times []time.Time, from, to time.Time) (at time.Time, ok bool) {
	i, _ := slices.BinarySearchFunc(times, from, time.Time.Compare)
	if i == len(times) || !times[i].Before(to) {
		return at, false
	}
	return times[i], true
}
