package deliveries

import (
	"context"
	"maps"
	"slices"
	"time"

	"lemma"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/events"
	"lemma/suppression"
)

// countSoftBounces records which messages soft-bounced and which were delivered. With a
// soft bounce it records what is known of a delivery of the same message, which may have
// been applied before.
func (t *transaction) countSoftBounces(ctx context.Context, queued []events.Queued, about map[notification]recipient) (int, error) {
	var all []suppression.Delivery
	soft := map[notification]events.Queued{}
	for _, q := range queued {
		n := notification{q.OriginID.UUID, q.Key.UUID}
		r := about[n]
		if !q.Key.Valid || r.address == nil || q.Type != events.TypeSoftBounced && q.Type != events.TypeDelivered {
			continue
		}
		all = append(all, suppression.Delivery{Channel: r.channel, Address: *r.address, Origin: n.origin, Key: n.key,
			Delivered: q.Type == events.TypeDelivered, At: q.OccurredAt})
		if q.Type == events.TypeSoftBounced {
			soft[n] = q
		}
	}
	delivered, err := t.lastDelivered(ctx, slices.Collect(maps.Values(soft)))
	if err != nil {
		return 0, err
	}
	for n, at := range delivered {
		all = append(all, suppression.Delivery{Channel: about[n].channel, Address: *about[n].address, Delivered: true, At: at})
	}
	return suppression.RecordDeliveries(ctx, t.tx, t.ws, all)
}

// acceptances are the events about a notification r that prove its acceptance.
const acceptances = `provider_events p where p.workspace_id = $1 and p.origin_id = r.origin_id and p.batch_id = r.batch_id
	and p.ordinal = r.ordinal and p.kind = 'accepted'`

// lastDelivered is when the messages of soft bounces were delivered for the last time, of
// those whose delivery was applied before: their state is not below it. It reads the first and
// the last acceptances of each attempt, however many there are: opens follow a delivery.
func (t *transaction) lastDelivered(ctx context.Context, soft []events.Queued) (map[notification]time.Time, error) {
	if len(soft) == 0 {
		return nil, nil
	}
	var origins, keys, batches []uuid.UUID
	var ordinals []int16
	for _, q := range soft {
		origins, keys, batches = append(origins, q.OriginID.UUID), append(keys, q.Key.UUID), append(batches, q.BatchID.UUID)
		ordinals = append(ordinals, *q.Ordinal)
	}
	rows, _ := t.tx.Query(ctx, `
		select r.origin_id, r.key, p.at
		from unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::smallint[]) as r (origin_id, key, batch_id, ordinal)
		cross join lateral (
			select d.rank from deliveries d where d.workspace_id = $1 and d.origin_id = r.origin_id and d.key = r.key limit 1
		) d
		cross join lateral (
			select max(least(p.occurred_at, p.recorded_at)) filter (where p.type = $6) as at from (
				select l.type, l.occurred_at, l.recorded_at from (values (1), (2)) as k (attempt) cross join lateral (
					(select p.type, p.occurred_at, p.recorded_at from `+acceptances+` and p.attempt = k.attempt order by p.occurred_at limit 50)
					union all
					(select p.type, p.occurred_at, p.recorded_at from `+acceptances+` and p.attempt = k.attempt
					order by p.occurred_at desc limit 50)
				) l
				union all
				(select p.type, p.occurred_at, p.recorded_at from `+acceptances+` and p.attempt is null order by p.occurred_at limit 50)
				union all
				(select p.type, p.occurred_at, p.recorded_at from `+acceptances+` and p.attempt is null order by p.occurred_at desc limit 50)
			) p
		) p
		where d.rank >= $7 and p.at is not null`, t.ws, origins, keys, batches, ordinals, events.TypeDelivered, rankOf("delivered"))
	delivered := map[notification]time.Time{}
	var n notification
	var at time.Time
	_, err := pgx.ForEachRow(rows, []any{&n.origin, &n.key, &at}, func() error { delivered[n] = at; return nil })
	return delivered, lemma.Wrap(err, "read deliveries of %d notifications", len(soft))
}
