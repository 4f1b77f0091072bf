package webhooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/eventsout"
)

// One transaction publishes at most publishMost events, whose messages have publishItems
// items together, or one event. They need some MB of memory.
const (
	publishMost  = 400
	publishItems = 50_000
)

// Publish writes the messages of events that wait, one for each endpoint that
// subscribes, and returns how many events there were. Any number of processes may
// publish: each processes events that no other has locked.
func (w *Webhooks) Publish(ctx context.Context) (n int, err error) {
	done, err := w.publishChunk(ctx, nil)
	return len(done.events), err
}

// published is what one transaction has published.
type published struct {
	events  []*waiting
	written int  // messages
	more    bool // events may wait that did not fit
}

// publishChunk publishes events in one transaction with their numbers: an event is published
// once, and the numbers of an endpoint have no gaps. Messages are leased for a reservation;
// nil: none is. After an error the next chunk is smaller; an event that fails alone is put aside.
func (w *Webhooks) publishChunk(ctx context.Context, r *reservation) (done published, err error) {
	next, err := w.rotation.next(ctx, w.pool)
	if err != nil {
		return published{}, fmt.Errorf("find workspaces with events: %w", err)
	}
	if len(next.workspaces) == 0 {
		return published{}, nil
	}
	err = lemma.Recovered(func() error {
		return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error { return w.publish(ctx, tx, next, r, &done) })
	})
	w.rotation.ended(next, err)
	if err != nil && r != nil {
		w.cancelReservation(r)
	}
	if err != nil {
		if len(done.events) == 1 && ctx.Err() == nil {
			err = errors.Join(err, w.putAside(ctx, done.events[0]))
		}
		return published{}, fmt.Errorf("publish events: %w", err)
	}
	for _, e := range done.events {
		if len(e.data) >= sharedFrom {
			w.bodies.put(e.ID, e.data)
		}
	}
	w.metrics.published(len(done.events), done.written)
	return done, nil
}

func (w *Webhooks) publish(ctx context.Context, tx pgx.Tx, next chunk, r *reservation, done *published) error {
	found, err := waitingEvents(ctx, tx, next)
	if err != nil || len(found) == 0 {
		return err
	}
	all := atMost(found, publishItems)
	done.events, done.more = all, len(all) < len(found) || next.isFull(found)
	w.reached("publishing")
	if err := readItems(ctx, tx, all); err != nil {
		return err
	}
	events := join(all)
	to, err := subscribers(ctx, tx, events)
	if err != nil {
		return err
	}
	written, left, err := w.writeEvents(ctx, tx, to, r)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		w.metrics.locked.Add(float64(len(left)))
		all = slices.DeleteFunc(all, func(e *waiting) bool { return left[e.WorkspaceID] })
		if len(all) == 0 {
			done.more = !next.last // those that are left are tried again later, not at once
		}
	}
	done.events, done.written = all, written
	return endEvents(ctx, tx, all, to)
}

// putAside makes an event wait, so that it does not hold up others: for as long as it has
// waited, and from a minute to an hour.
func (w *Webhooks) putAside(ctx context.Context, e *waiting) error {
	_, err := w.pool.Exec(ctx, `
		update events_out set aside_until = now() + least(greatest(now() - occurred_at, '1 minute'), '1 hour')
		where workspace_id = $1 and id = $2 and published_at is null`, e.WorkspaceID, e.ID)
	if err != nil {
		return fmt.Errorf("put aside event %s: %w", e.ID, err)
	}
	w.log.ErrorContext(ctx, "an event cannot be published; it is tried again later", "workspace", e.WorkspaceID, "event", e.ID, "type", e.Type)
	return nil
}

// waiting is an event that is being published.
type waiting struct {
	WorkspaceID, ID uuid.UUID
	Type            string
	OriginID        uuid.UUID
	BatchID         *uuid.UUID
	Ordinals        []int16
	Details         []string // why, for each of Ordinals; nil: nothing
	Keys            eventsout.Keys
	Data            map[string]any
	Count           int
	Endpoints       int // of the workspace
	OccurredAt      time.Time
	CampaignID      *uuid.UUID // of its origin
	FlowID          *uuid.UUID
	ofOrigin        map[int]bool // the entries of metadata that subscriptions ask for, and that campaign or flow has
	ofItems         [][]int      // of direct notifications, each of which has its own: the same
	changed         bool         // Keys and Details are not those of its row
	data            []byte       // the data of its messages, as JSON
	start           int          // bytes of data up to its items
}

// waitingEvents locks the oldest events that wait, of each workspace alike. The first of
// each come first.
func waitingEvents(ctx context.Context, tx pgx.Tx, next chunk) ([]*waiting, error) {
	rows, _ := tx.Query(ctx, `
		with due as materialized (
			select e.*, w.endpoints from (
				select w.id, (select count(*) from webhook_endpoints p where p.workspace_id = w.id) as endpoints
				from unnest($1::uuid[]) as w (id)
			) w
			cross join lateral (
				select workspace_id, id, type, origin_id, batch_id, ordinals, details, keys, data, count, occurred_at from events_out
				where workspace_id = w.id and published_at is null and (aside_until is null or aside_until <= now())
				order by occurred_at, id limit $2 for update skip locked
			) e
		)
		select d.workspace_id, d.id, d.type, d.origin_id, d.batch_id, d.ordinals, d.details, d.keys, d.data, d.count, d.endpoints,
			d.occurred_at,
			c.id as campaign_id, f.id as flow_id
		from due d
		left join lateral (
			select c.id from campaigns c where c.workspace_id = d.workspace_id and c.id = d.origin_id limit 1
		) c on true
		left join lateral (
			select o.flow_id from flow_origins o where o.workspace_id = d.workspace_id and o.origin_id = d.origin_id limit 1
		) o on true
		left join lateral (
			select f.id from flows f
			where f.workspace_id = d.workspace_id and f.id = coalesce(o.flow_id, d.origin_id) limit 1
		) f on true
		order by row_number() over (partition by d.workspace_id order by d.id), d.workspace_id`,
		next.workspaces, next.perWorkspace())
	return pgx.CollectRows(rows, pgx.RowToAddrOfStructByName[waiting])
}

// messageItems is how many items cost as much as a message.
const messageItems = 10

// atMost returns the first events whose messages cost as much as so many items together, and
// at least one event.
func atMost(all []*waiting, items int) []*waiting {
	for i, e := range all {
		if items -= e.cost(); items < 0 && i > 0 {
			return all[:i]
		}
	}
	return all
}

// cost is that of an event's messages, in items. Messages of direct notifications may each
// have other items, and small bodies are copied; otherwise messages share the items.
func (e *waiting) cost() int {
	copies := max(1, e.Endpoints)
	if e.Count*itemBytes >= 2*sharedFrom && !e.isDirect() {
		copies = 1
	}
	return e.Count*copies + messageItems*e.Endpoints
}

// endEvents marks the events that have messages as published, and deletes the others.
func endEvents(ctx context.Context, tx pgx.Tx, all []*waiting, to []*subscribed) error {
	sent := map[*waiting]bool{}
	for _, s := range to {
		for _, e := range s.events {
			sent[e] = true
		}
	}
	var kept, gone eventRows
	for _, e := range all {
		rows := &gone
		if sent[e] {
			rows = &kept
			if err := e.encode(); err != nil {
				return err
			}
		}
		rows.add(e)
	}
	batch := &pgx.Batch{}
	if n := len(kept.ids); n > 0 {
		batch.Queue(`
			update events_out e set published_at = now(), body = r.body, count = r.count, batch_id = null, ordinals = null,
				keys = case when r.changed then r.keys else e.keys end,
				details = case when r.changed then (select array_agg(d.detail order by d.i)
					from jsonb_array_elements_text(r.details::jsonb) with ordinality as d (detail, i)) else e.details end
			from (
				select workspace_id, id, body, count, changed, keys, details
				from unnest($1::uuid[], $2::uuid[], $3::text[], $4::int[], $5::boolean[], $6::bytea[], $7::text[])
					as r (workspace_id, id, body, count, changed, keys, details) limit $8
			) r
			where e.workspace_id = r.workspace_id and e.id = r.id`,
			kept.ws, kept.ids, kept.bodies, kept.counts, kept.changed, kept.keys, kept.details, n)
	}
	if n := len(gone.ids); n > 0 {
		batch.Queue(`
			delete from events_out e using (
				select workspace_id, id from unnest($1::uuid[], $2::uuid[]) as r (workspace_id, id) limit $3
			) r
			where e.workspace_id = r.workspace_id and e.id = r.id`, gone.ws, gone.ids, n)
	}
	return tx.SendBatch(ctx, batch).Close()
}

// eventRows are events by column.
type eventRows struct {
	ws, ids []pgtype.UUID
	bodies  []string
	counts  []int
	changed []bool
	keys    [][]byte  // if changed
	details []*string // the same, as JSON
}

func (r *eventRows) add(e *waiting) {
	r.ws, r.ids, r.bodies = append(r.ws, pgUUID(e.WorkspaceID)), append(r.ids, pgUUID(e.ID)), append(r.bodies, string(e.data[:e.start]))
	var keys []byte
	var details *string
	if e.changed {
		keys, details = e.Keys, inJSON(e.Details)
	}
	r.counts, r.changed = append(r.counts, e.Count), append(r.changed, e.changed)
	r.keys, r.details = append(r.keys, keys), append(r.details, details)
}

// inJSON returns texts as a JSON array; nil stays nil.
func inJSON(all []string) *string {
	if all == nil {
		return nil
	}
	encoded, _ := json.Marshal(all) // texts alone
	text := string(encoded)
	return &text
}

// eventBody is the body of a message that carries an event.
type eventBody struct {
	ID        string          `json:"id"`
	Type      string          `json:"type"`
	Timestamp time.Time       `json:"timestamp"`
	Sequence  int64           `json:"sequence"`
	Data      json.RawMessage `json:"data"`
}

// head is the body of the message with a number, up to its data. The data is most of the
// body, and the same for each endpoint.
func (e *waiting) head(sequence int64) ([]byte, error) {
	if err := e.encode(); err != nil {
		return nil, err
	}
	id := lemma.FormatID(lemma.PrefixEventOut, e.ID)
	head, err := json.Marshal(eventBody{id, e.Type, e.OccurredAt.UTC(), sequence, json.RawMessage("0")})
	if err != nil {
		return nil, err
	}
	return head[:len(head)-len("0}")], nil
}

// encode makes the thin form of an event: its ids, how many, and further facts.
func (e *waiting) encode() error {
	if e.data != nil {
		return nil
	}
	data := maps.Clone(e.Data)
	if data == nil {
		data = map[string]any{}
	}
	if e.CampaignID != nil {
		data["campaign_id"] = lemma.FormatID(lemma.PrefixCampaign, *e.CampaignID)
	}
	if e.FlowID != nil {
		data["flow_id"] = lemma.FormatID(lemma.PrefixFlow, *e.FlowID)
	}
	name, _ := e.items()
	if name != "" {
		data["count"] = e.Keys.Len()
	}
	start, err := json.Marshal(data)
	if err != nil {
		return err
	}
	if name != "" {
		start = append(append(append(start[:len(start)-1], `,"`...), name...), `":[`...) // count is in it, so that a comma precedes
	}
	e.start, e.data = len(start), e.withItems(start)
	return nil
}

// withItems returns the data of the event, of which all but the ids of its items is given.
// The result is sent each time that a message is sent, so that its form must not change.
func (e *waiting) withItems(start []byte) []byte {
	name, item := e.items()
	if name == "" {
		return bytes.Clone(start)
	}
	all := append(make([]byte, 0, len(start)+itemBytes*e.Keys.Len()+len("]}")), start...)
	for i := range e.Keys.Len() { // an id has no character that JSON escapes
		if i > 0 {
			all = append(all, ',')
		}
		all = append(item(append(all, '"'), e.Keys.At(i)), '"')
	}
	return append(all, "]}"...)
}
