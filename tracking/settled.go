package tracking

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/queue"
)

const (
	settledChunk  = 1000   // settled notifications of one transaction
	settledEvents = 10_000 // trigger events that it reads
)

// settlement is a notification that evidence has settled as accepted. An event from its
// acceptance until to converts it.
type settlement struct {
	at        time.Time
	batch     uuid.UUID
	ordinal   int16
	readUntil *time.Time
	of        target
	event     named
	from, to  time.Time
}

// readAfter is the time until which no event that was received fits: an event has occurred
// at the latest when it was received.
func (s *settlement) readAfter() time.Time {
	if s.readUntil != nil {
		return *s.readUntil
	}
	return s.from.Add(-time.Microsecond) // the precision of Postgres
}

// settlements are those of one transaction.
type settlements struct {
	found      []event       // conversions
	done, kept []*settlement // to be deleted, and to be continued
	readUntil  *time.Time    // of those to be continued, which are of one pass
}

// convertSettled queues the conversions of settled notifications by events that were
// received before the settlement: the notifications were not known as accepted when these
// were matched. It reads a bounded number of events, stores until when it has read, and
// returns how many settlements it has advanced.
func (t *Tracking) convertSettled(ctx context.Context, ws uuid.UUID, of queue.Part) (n int, err error) {
	err = pgx.BeginFunc(ctx, t.Pool, func(tx pgx.Tx) error {
		var s settlements
		open, err := s.take(ctx, tx, ws, of)
		if err != nil {
			return err
		}
		passes := passesOf(open)
		read, err := readPasses(ctx, tx, ws, passes, settledEvents)
		if err != nil {
			return err
		}
		for i, p := range passes {
			s.match(p, read, i)
		}
		n = len(s.done) + len(s.kept)
		return s.store(ctx, tx, ws)
	})
	return n, lemma.Wrap(err, "match settled notifications")
}

// take locks the oldest settlements of the queue, and returns those that events may
// convert. Those that another transaction locks are left out.
func (s *settlements) take(ctx context.Context, tx pgx.Tx, ws uuid.UUID, of queue.Part) (open []*settlement, err error) {
	all, err := takeSettled(ctx, tx, ws, of)
	for _, one := range all {
		if one.from.IsZero() {
			s.done = append(s.done, one)
		} else {
			open = append(open, one)
		}
	}
	return open, err
}

func takeSettled(ctx context.Context, tx pgx.Tx, ws uuid.UUID, of queue.Part) (all []*settlement, err error) {
	rows, _ := tx.Query(ctx, `
		with taken as (
			select settled_at, batch_id, ordinal, read_until from settlement_queue where workspace_id = $1
			order by settled_at, batch_id, ordinal limit $2 offset $3 for update skip locked
		)
		select t.settled_at, t.batch_id, t.ordinal, t.read_until, c.origin_id, c.key, c.profile_key, c.conversion_event, c.sent, c.until
		from taken t left join lateral (
			select n.origin_id, n.key, n.profile_key, c.conversion_event, sent.at as sent, sent.at + c.conversion_within as until
			from (
				select p.origin_id from provider_events p
				where p.workspace_id = $1 and p.batch_id = t.batch_id and p.ordinal = t.ordinal and p.kind = 'accepted' limit 1
			) o
			cross join lateral (
				select n.origin_id, n.key, n.profile_key, n.batch_id, n.ordinal, n.converts from notifications n
				where n.workspace_id = $1 and n.origin_id = o.origin_id and n.batch_id = t.batch_id and n.ordinal = t.ordinal limit 1
			) n
			`+conversionOf+`
			cross join lateral (`+acceptedAt("n.converts")+`
			) sent
		) c on c.sent is not null`, ws, of.Most, of.Skip)
	var one settlement
	var origin, key *uuid.UUID
	var profile, name *string
	var from, to *time.Time
	_, err = pgx.ForEachRow(rows, []any{&one.at, &one.batch, &one.ordinal, &one.readUntil, &origin, &key, &profile, &name, &from, &to},
		func() error {
			of := one
			if from != nil {
				of.of, of.event = target{origin: *origin, key: *key}, named{*profile, *name}
				of.from, of.to = *from, *to
			}
			all = append(all, &of)
			return nil
		})
	return all, lemma.Wrap(err, "take settled notifications")
}

// pass reads the events of one name of a profile for several settlements at once.
type pass struct {
	event        named
	after, until time.Time // received
	of           []*settlement
}

// passesOf makes the passes of settlements, which are the oldest first. That of the oldest
// settlement of an event begins or continues; others join it unless they begin before.
func passesOf(open []*settlement) (passes []*pass) {
	all := map[named][]*settlement{}
	for _, s := range open {
		if all[s.event] == nil {
			passes = append(passes, &pass{event: s.event, after: s.readAfter()})
		}
		all[s.event] = append(all[s.event], s)
	}
	for _, p := range passes {
		of := all[p.event]
		if of[0].readUntil == nil {
			for _, s := range of {
				if s.readUntil == nil && s.readAfter().Before(p.after) {
					p.after = s.readAfter()
				}
			}
		}
		for _, s := range of {
			if s.readAfter().Before(p.after) {
				continue
			}
			p.of = append(p.of, s)
			if s.at.After(p.until) {
				p.until = s.at
			}
		}
	}
	return passes
}

// reading is what passes have read: all events of the first ones, and those of the last
// that were received until a time.
type reading struct {
	times [][]time.Time // at which events occurred, in order
	last  int           // the pass that has not ended, if any
	until time.Time
}

// readPasses reads at most a number of events. It reads more only if so many were received
// at the same time.
func readPasses(ctx context.Context, tx pgx.Tx, ws uuid.UUID, passes []*pass, most int) (reading, error) {
	if len(passes) == 0 {
		return reading{}, nil
	}
	for ; ; most *= 2 {
		r, err := readEvents(ctx, tx, ws, passes, most)
		if err != nil || r.last > 0 || r.until.After(passes[0].after) {
			return r, err
		}
	}
}

// readEvents reads them pass by pass, since the one subquery needs the row of the other. The
// name and the time are compared as a row, since only trigger_events_profile can be read by it
// and has its order: for the time alone, trigger_events_age looks as cheap while few profiles
// have events, and has those of all. The inner limit leaves a planner no reason to read all events
// of a profile and sort them.
func readEvents(ctx context.Context, tx pgx.Tx, ws uuid.UUID, passes []*pass, most int) (reading, error) {
	var profiles, names []string
	var after, until []time.Time
	for _, p := range passes {
		profiles, names = append(profiles, p.event.profile), append(names, p.event.event)
		after, until = append(after, p.after), append(until, p.until)
	}
	rows, _ := tx.Query(ctx, `
		select p.i::int - 1, v.received_at, v.at
		from unnest($2::text[], $3::text[], $4::timestamptz[], $5::timestamptz[]) with ordinality as p (profile_key, name, after, until, i)
		cross join lateral (
			select v.received_at, least(v.occurred_at, v.received_at) as at from trigger_events v
			where v.workspace_id = $1 and v.profile_key = p.profile_key
			  and (v.name, v.received_at) > (p.name, p.after) and (v.name, v.received_at) <= (p.name, p.until)
			order by v.name, v.received_at limit $6
		) v limit $6`, ws, profiles, names, after, until, most)
	r := reading{times: make([][]time.Time, len(passes))}
	n := 0
	var received, at time.Time
	_, err := pgx.ForEachRow(rows, []any{&r.last, &received, &at}, func() error {
		n++
		r.times[r.last] = append(r.times[r.last], at)
		return nil
	})
	if err != nil {
		return r, fmt.Errorf("read events: %w", err)
	}
	for _, times := range r.times {
		slices.SortFunc(times, time.Time.Compare)
	}
	if n < most {
		r.last = len(passes)
	} else {
		r.until = received.Add(-time.Microsecond) // others of the same time may follow
	}
	return r, nil
}

// match finds the conversions of pass i. Its other settlements are done once all events
// before them are read.
func (s *settlements) match(p *pass, r reading, i int) {
	for _, one := range p.of {
		at, fits := firstWithin(r.times[i], one.from, one.to)
		switch {
		case fits:
			e := event{of: one.of, kind: converted, at: at}
			e.id = onceOf(e)
			s.found, s.done = append(s.found, e), append(s.done, one)
		case i < r.last || i == r.last && !r.until.Before(one.at):
			s.done = append(s.done, one)
		case i == r.last && r.until.After(p.after):
			s.kept, s.readUntil = append(s.kept, one), &r.until
		}
	}
}

// store queues the conversions, deletes the settlements that are done, and stores until
// when events were read for others.
func (s *settlements) store(ctx context.Context, tx pgx.Tx, ws uuid.UUID) error {
	if len(s.found) > 0 {
		if err := enqueue(ctx, tx, ws, s.found); err != nil {
			return err
		}
	}
	const rows = ` where ctid = any(array(
		select q.ctid from unnest($2::timestamptz[], $3::uuid[], $4::smallint[]) as r (settled_at, batch_id, ordinal)
		cross join lateral (
			select q.ctid from settlement_queue q
			where q.workspace_id = $1 and q.settled_at = r.settled_at and q.batch_id = r.batch_id and q.ordinal = r.ordinal limit 1
		) q))`
	at, batches, ordinals := keysOf(s.done)
	if _, err := tx.Exec(ctx, `delete from settlement_queue`+rows, ws, at, batches, ordinals); err != nil {
		return fmt.Errorf("delete settled notifications: %w", err)
	}
	at, batches, ordinals = keysOf(s.kept)
	_, err := tx.Exec(ctx, `update settlement_queue set read_until = $5`+rows, ws, at, batches, ordinals, s.readUntil)
	return lemma.Wrap(err, "store until when events were read")
}

func keysOf(all []*settlement) (at []time.Time, batches []uuid.UUID, ordinals []int16) {
	for _, s := range all {
		at, batches, ordinals = append(at, s.at), append(batches, s.batch), append(ordinals, s.ordinal)
	}
	return at, batches, ordinals
}
