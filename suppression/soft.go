package suppression

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// SoftBounceLimit messages to an address that soft-bounced within SoftBounceTime suppress
// it, if no message to it was delivered in between.
const (
	SoftBounceLimit = 5
	SoftBounceTime  = 30 * 24 * time.Hour
)

// softBouncesKept is how many messages of an address are kept, the newest.
const softBouncesKept = 100

// Delivery is what became of a message to an address.
type Delivery struct {
	Channel   lemma.Channel
	Address   string
	Origin    uuid.UUID // with Key: the notification
	Key       uuid.UUID
	Delivered bool // false: it soft-bounced
	At        time.Time
}

// RecordDeliveries counts soft bounces, and suppresses the addresses that reach the limit,
// in the caller's transaction. The count does not depend on the order of the deliveries:
// a message counts at its first soft bounce, if this is later than every delivery to the
// address. Deliveries before the first soft bounce of an address is recorded are not kept.
func RecordDeliveries(ctx context.Context, tx pgx.Tx, ws uuid.UUID, all []Delivery) (added int, err error) {
	byKey := map[uuid.UUID]Delivery{}
	var keys []uuid.UUID
	var messages []*uuid.UUID // nil: delivered
	var times []time.Time
	for _, d := range all {
		known, ok := canonical(d.Channel, d.Address)
		if !ok {
			continue
		}
		d.Address = known
		key := keyOf(d.Channel, known)
		keys, messages, times = append(keys, key), append(messages, d.message()), append(times, d.At)
		byKey[key] = d
	}
	if len(keys) == 0 {
		return 0, nil
	}
	rows, _ := tx.Query(ctx, countSoftBounces, ws, keys, messages, times, SoftBounceTime, SoftBounceLimit, softBouncesKept)
	reached, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return 0, fmt.Errorf("count soft bounces: %w", err)
	}
	entries := make([]Entry, len(reached))
	for i, key := range reached {
		d := byKey[key]
		entries[i] = Entry{ID: lemma.NewID(), Channel: d.Channel, Address: d.Address, Cause: SoftBounces}
	}
	added, _, err = insert(ctx, tx, ws, entries)
	return added, err
}

// message identifies the message of a soft bounce.
func (d *Delivery) message() *uuid.UUID {
	if d.Delivered {
		return nil
	}
	id := lemma.Key("soft-bounce/1", string(d.Origin[:]), string(d.Key[:]))
	return &id
}

// countSoftBounces merges deliveries into the rows of their addresses, in the order of the
// primary key, and returns the keys that reach the limit by a soft bounce. Of an address
// without a recent soft bounce, deliveries are not written.
const countSoftBounces = `
	with given as (
		select r.key, coalesce(array_agg(r.message order by r.at desc) filter (where r.message is not null), '{}') as messages,
			coalesce(array_agg(r.at order by r.at desc) filter (where r.message is not null), '{}') as times,
			max(r.at) filter (where r.message is null) as delivered_at
		from (
			select key, message, case when message is null then max(at) else min(at) end as at
			from unnest($2::uuid[], $3::uuid[], $4::timestamptz[]) as r (key, message, at) group by key, message
		) r group by r.key
	), counted as (
		insert into soft_bounces as b (workspace_id, key, messages, times, delivered_at)
		select $1, g.key, g.messages, g.times, g.delivered_at
		from given g
		left join lateral (
			select b.times[1] > now() - $5::interval as recent from soft_bounces b where b.workspace_id = $1 and b.key = g.key limit 1
		) known on true
		where cardinality(g.messages) > 0 or known.recent
		order by g.key
		on conflict (workspace_id, key) do update set
			(messages, times) = (
				select coalesce(array_agg(m.message order by m.at desc), '{}'), coalesce(array_agg(m.at order by m.at desc), '{}')
				from (
					select u.message, min(u.at) as at
					from unnest(b.messages || excluded.messages, b.times || excluded.times) as u (message, at)
					group by u.message having min(u.at) > now() - $5::interval order by min(u.at) desc limit $7
				) m
			),
			delivered_at = greatest(b.delivered_at, excluded.delivered_at)
		returning key, times, delivered_at
	)
	select c.key from counted c join given g on g.key = c.key
	where cardinality(g.messages) > 0 and $6 <= (
		select count(*) from unnest(c.times) as t (at) where t.at > now() - $5::interval and t.at > coalesce(c.delivered_at, '-infinity'))`
