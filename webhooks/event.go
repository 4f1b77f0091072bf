package webhooks

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/eventsout"
	"lemma/pgerr"
)

// items returns the name of the field of an event's items, and what appends the id of one.
func (e *waiting) items() (name string, item func(to []byte, key uuid.UUID) []byte) {
	switch kind, _, _ := strings.Cut(e.Type, "."); kind {
	case "notification":
		return "notification_ids", lemma.AppendNotificationIDs(e.OriginID)
	case "enrollment":
		return "enrollment_ids", func(to []byte, key uuid.UUID) []byte { return lemma.AppendID(to, lemma.PrefixEnrollment, key) }
	case "suppression":
		return "suppression_ids", func(to []byte, key uuid.UUID) []byte { return lemma.AppendID(to, lemma.PrefixSuppression, key) }
	}
	return "", nil
}

// Event is a published event with its items as they are now.
type Event struct {
	ID         uuid.UUID
	Type       string
	OccurredAt time.Time
	CampaignID *uuid.UUID
	FlowID     *uuid.UUID
	Data       map[string]any
	Items      []EventItem
}

// EventItem is a notification, an enrollment or a suppression of an event. Its fields besides
// the id and the detail are those that it has now; they are empty if it was deleted.
type EventItem struct {
	ID         string
	ProfileKey *string
	Status     *string
	Reason     *string
	Channel    *string // of a suppression
	Address    *string // of a suppression; empty also if it was erased
	Detail     string  // why, when the event occurred
}

// Event reads a published event.
func (w *Webhooks) Event(ctx context.Context, ws, id uuid.UUID) (Event, error) {
	var found Event
	var origin uuid.UUID
	var keys eventsout.Keys
	var details []string
	err := w.pool.QueryRow(ctx, `
		select e.id, e.type, e.origin_id, e.keys, e.details, e.data, e.occurred_at,
			c.id, (select f.id from flows f where f.workspace_id = $1 and f.id = coalesce((
				select o.flow_id from flow_origins o where o.workspace_id = $1 and o.origin_id = e.origin_id limit 1), e.origin_id))
		from events_out e
		left join campaigns c on c.workspace_id = $1 and c.id = e.origin_id
		where e.workspace_id = $1 and e.id = $2 and e.published_at is not null`, ws, id).
		Scan(&found.ID, &found.Type, &origin, &keys, &details, &found.Data, &found.OccurredAt, &found.CampaignID, &found.FlowID)
	if err := pgerr.Row(err, "event", "read event"); err != nil {
		return Event{}, err
	}
	found.Items, err = w.readEventItems(ctx, ws, origin, found.Type, keys.Unpack(), details)
	return found, lemma.Wrap(err, "read items of event %s", id)
}

// readEventItems reads the items of an event.
func (w *Webhooks) readEventItems(ctx context.Context, ws, origin uuid.UUID, name string,
	keys []uuid.UUID, details []string) ([]EventItem, error) {
	switch kind, _, _ := strings.Cut(name, "."); kind {
	case "notification":
		return w.notificationItems(ctx, ws, origin, keys, details)
	case "enrollment":
		return w.enrollmentItems(ctx, ws, keys, details)
	case "suppression":
		return w.suppressionItems(ctx, ws, keys, details)
	}
	return nil, nil
}

func (w *Webhooks) notificationItems(ctx context.Context, ws, origin uuid.UUID, keys []uuid.UUID, details []string) ([]EventItem, error) {
	rows, _ := w.pool.Query(ctx, `
		select r.key, s.profile_key, s.status, s.reason, null as channel, null as address, coalesce(r.detail, '')
		from unnest($3::uuid[], $4::text[]) with ordinality as r (key, detail, i)
		left join lateral (
			select s.profile_key, s.status, s.reason from notification_status s
			where s.workspace_id = $1 and s.origin_id = $2 and s.key = r.key limit 1
		) s on true
		order by r.i`, ws, origin, keys, details)
	return eventItems(rows, func(key uuid.UUID) string { return lemma.FormatNotificationID(origin, key) })
}

func (w *Webhooks) enrollmentItems(ctx context.Context, ws uuid.UUID, keys []uuid.UUID, details []string) ([]EventItem, error) {
	rows, _ := w.pool.Query(ctx, `
		select r.key, e.profile_key, e.status, e.exit_reason, null as channel, null as address, coalesce(r.detail, '')
		from unnest($2::uuid[], $3::text[]) with ordinality as r (key, detail, i)
		left join lateral (
			select e.profile_key, e.status, e.exit_reason from enrollments e
			where e.workspace_id = $1 and e.id = r.key limit 1
		) e on true
		order by r.i`, ws, keys, details)
	return eventItems(rows, func(key uuid.UUID) string { return lemma.FormatID(lemma.PrefixEnrollment, key) })
}

func (w *Webhooks) suppressionItems(ctx context.Context, ws uuid.UUID, keys []uuid.UUID, details []string) ([]EventItem, error) {
	rows, _ := w.pool.Query(ctx, `
		select r.key, null as profile_key, null as status, null as reason, s.channel, nullif(s.address, ''), coalesce(r.detail, '')
		from unnest($2::uuid[], $3::text[]) with ordinality as r (key, detail, i)
		left join lateral (
			select s.channel, s.address from suppressions s
			where s.workspace_id = $1 and s.id = r.key limit 1
		) s on true
		order by r.i`, ws, keys, details)
	return eventItems(rows, func(key uuid.UUID) string { return lemma.FormatID(lemma.PrefixSuppression, key) })
}

func eventItems(rows pgx.Rows, format func(uuid.UUID) string) ([]EventItem, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (i EventItem, err error) {
		var key uuid.UUID
		err = row.Scan(&key, &i.ProfileKey, &i.Status, &i.Reason, &i.Channel, &i.Address, &i.Detail)
		i.ID = format(key)
		return i, err
	})
}
