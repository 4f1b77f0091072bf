package deliveries

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/events"
	"lemma/notifications"
	"lemma/suppression"
	"lemma/tracking"
)

// recipient is what the effects need to know about a notification.
type recipient struct {
	address *string // nil: the profile was erased
	channel lemma.Channel
	content uuid.UUID
}

// read reads the recipients of the notifications whose state was raised, and of those
// that were delivered, bounced, complained or unsubscribed.
func (t *transaction) read(ctx context.Context, queued []events.Queued, raised []*change) (map[notification]recipient, error) {
	wanted := map[notification]bool{}
	for _, c := range raised {
		wanted[c.notification] = true
	}
	for _, q := range queued {
		if q.Key.Valid && (causeOf(q.Type) != "" || q.Type == events.TypeSoftBounced || q.Type == events.TypeDelivered) {
			wanted[notification{q.OriginID.UUID, q.Key.UUID}] = true
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	var origins, keys []uuid.UUID
	for n := range wanted {
		origins, keys = append(origins, n.origin), append(keys, n.key)
	}
	rows, _ := t.tx.Query(ctx, `
		select n.origin_id, n.key, nullif(n.address, $4), coalesce(c.channel, ''), b.content_id
		from unnest($2::uuid[], $3::uuid[]) as r (origin_id, key)
		cross join lateral (
			select n.origin_id, n.key, n.address, n.batch_id from notifications n
			where n.workspace_id = $1 and n.origin_id = r.origin_id and n.key = r.key offset 0
		) n
		cross join lateral (
			select b.content_id from batches b where b.workspace_id = $1 and b.origin_id = n.origin_id and b.id = n.batch_id offset 0
		) b
		left join lateral (select c.channel from contents c where c.workspace_id = $1 and c.id = b.content_id offset 0) c on true`,
		t.ws, origins, keys, notifications.ErasedAddress)
	about := make(map[notification]recipient, len(wanted))
	var n notification
	var r recipient
	_, err := pgx.ForEachRow(rows, []any{&n.origin, &n.key, &r.address, &r.channel, &r.content}, func() error {
		about[n] = r
		r = recipient{}
		return nil
	})
	return about, lemma.Wrap(err, "read %d recipients", len(wanted))
}

// counted is a row of delivery_counts.
type counted struct {
	origin, content uuid.UUID
	state           string
}

func (c counted) compare(o counted) int {
	return cmp.Or(bytes.Compare(c.origin[:], o.origin[:]), bytes.Compare(c.content[:], o.content[:]), cmp.Compare(c.state, o.state))
}

// count moves raised notifications from the count of one state to that of another. What
// a transaction adds to a state is written before what is taken away, so that no count
// is negative meanwhile.
func (t *transaction) count(ctx context.Context, about map[notification]recipient) error {
	change := map[counted]int64{}
	for _, c := range t.raised {
		r, found := about[c.notification]
		if !found { // its month was dropped, and the counts with it
			continue
		}
		content := r.content
		change[counted{c.origin, content, c.state}]++
		if c.old != "" {
			change[counted{c.origin, content, c.old}]--
		}
	}
	if len(change) == 0 {
		return nil
	}
	var origins, contents []uuid.UUID
	var states []string
	var counts []int64
	for _, c := range slices.SortedFunc(maps.Keys(change), counted.compare) {
		origins, contents = append(origins, c.origin), append(contents, c.content)
		states, counts = append(states, c.state), append(counts, change[c])
	}
	_, err := t.tx.Exec(ctx, `
		insert into delivery_counts (workspace_id, origin_id, content_id, state, count)
		select $1, r.origin_id, r.content_id, r.state, 0
		from unnest($2::uuid[], $3::uuid[], $4::text[]) as r (origin_id, content_id, state)
		on conflict (workspace_id, origin_id, content_id, state) do nothing`, t.ws, origins, contents, states)
	if err != nil {
		return fmt.Errorf("count deliveries: %w", err)
	}
	_, err = t.tx.Exec(ctx, `
		update delivery_counts d set count = d.count + r.count
		from (
			select d.workspace_id, d.origin_id, d.content_id, d.state, r.count
			from unnest($2::uuid[], $3::uuid[], $4::text[], $5::bigint[]) as r (origin_id, content_id, state, count)
			cross join lateral (
				select d.workspace_id, d.origin_id, d.content_id, d.state from delivery_counts d
				where d.workspace_id = $1 and d.origin_id = r.origin_id and d.content_id = r.content_id and d.state = r.state for update
			) d limit $6
		) r
		where d.workspace_id = r.workspace_id and d.origin_id = r.origin_id and d.content_id = r.content_id and d.state = r.state`,
		t.ws, origins, contents, states, counts, len(counts))
	return lemma.Wrap(err, "count deliveries")
}

// causeOf is the cause of the suppression that an event adds; empty for none.
func causeOf(t events.Type) string {
	switch t {
	case events.TypeBounced:
		return suppression.HardBounce
	case events.TypeComplained:
		return suppression.Complaint
	case events.TypeUnsubscribed:
		return suppression.Unsubscribed
	}
	return ""
}

// entry is the suppression that an event adds. The address of its notification decides. One that
// is reported is that of a notification that is not found: none is named, or its month was dropped.
// That of an erased profile is not stored again: it holds by its key. The address is empty if
// neither is known.
func entry(q events.Queued, about map[notification]recipient) suppression.Entry {
	e := suppression.Entry{Cause: causeOf(q.Type), Detail: "the carrier reported: " + string(q.Type)}
	r, found := about[notification{q.OriginID.UUID, q.Key.UUID}]
	found = found && q.Key.Valid
	switch {
	case found && r.address != nil:
		e.Channel, e.Address = r.channel, *r.address
	case q.Address != nil && q.Channel != nil:
		e.Channel, e.Address, e.KeyOnly = *q.Channel, *q.Address, found
	}
	if q.Detail != nil && !e.KeyOnly { // a text may have the address
		e.Detail += ": " + *q.Detail
	}
	return e
}

// suppress adds what bounces, complaints and unsubscribing recipients mean for their addresses.
func (t *transaction) suppress(ctx context.Context, queued []events.Queued, about map[notification]recipient) (err error) {
	var entries []suppression.Entry
	var unsubscribed []tracking.Notification
	for _, q := range queued {
		if causeOf(q.Type) == "" {
			continue
		}
		if q.Type == events.TypeUnsubscribed && q.Key.Valid {
			unsubscribed = append(unsubscribed, tracking.Notification{Origin: q.OriginID.UUID, Key: q.Key.UUID})
		}
		e := entry(q, about)
		if e.Address == "" {
			t.noAddress++
			continue
		}
		entries = append(entries, e)
	}
	recorded, err := suppression.Record(ctx, t.tx, t.ws, entries)
	if err != nil {
		return err
	}
	t.invalid = recorded.Invalid
	if err := tracking.Unsubscribed(ctx, t.tx, t.ws, unsubscribed...); err != nil {
		return err
	}
	soft, err := t.countSoftBounces(ctx, queued, about)
	t.suppressed = recorded.Added + soft
	return err
}
