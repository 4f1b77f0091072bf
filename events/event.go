// Package events stores provider events: what carriers report about calls. They are
// appended and never changed, so that the reaper finds every known outcome, even when the worker
// that received it had lost its lease.
//
// Package sender decides by this evidence. What profiles did is in package flows, and what
// Lemma reports to customers' systems in package eventsout.
package events

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// Kind is what an event proves about one call.
type Kind string

const (
	// Accepted proves that the carrier accepted the message.
	Accepted Kind = "accepted"
	// Rejected proves that the carrier did not accept the message and never will.
	Rejected Kind = "rejected"
	// Deferred proves that the carrier did not accept the message this time. It ends nothing.
	Deferred Kind = "deferred"
)

// Sources of events.
const (
	SourceResponse = "response" // the carrier's answer to a call
	SourceLookup   = "lookup"   // the carrier's list of its messages
	SourceWebhook  = "webhook"  // a request of the carrier
)

// unknownID is stored for an event without an id, which is always kept.
const unknownID = "unknown"

// Event is the carrier's answer to one attempt.
type Event struct {
	ProviderID uuid.UUID
	Source     string
	SourceID   string // the carrier's id of the event; empty when it has none
	OriginID   uuid.UUID
	BatchID    uuid.UUID // the root batch, which with Ordinal identifies the notification
	Ordinal    int16
	Attempt    int16
	Kind       Kind
	Code       int
	CarrierID  string
	Detail     string
	OccurredAt time.Time
}

// DB is a pool, a connection or a transaction.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Record appends events and returns how many were new. An event with a known id
// changes nothing (ProviderEvents!AppliedOnce); one without an id is always kept.
func Record(ctx context.Context, db DB, workspaceID uuid.UUID, events []Event) (int, error) {
	if len(events) == 0 {
		return 0, nil
	}
	c := columnsOf(events)
	rows, _ := db.Query(ctx, `
		with new as (
			insert into provider_events (workspace_id, id, provider_id, source, source_event_id,
				origin_id, batch_id, ordinal, attempt, kind, code, carrier_id, detail, occurred_at)
			select $1, e.id, e.provider_id, e.source, e.source_id, e.origin_id, e.batch_id, e.ordinal, e.attempt,
				e.kind, nullif(e.code, 0), nullif(e.carrier_id, ''), nullif(e.detail, ''), e.occurred_at
			from unnest($2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::uuid[], $7::uuid[], $8::smallint[], $9::smallint[],
				$10::text[], $11::smallint[], $12::text[], $13::text[], $14::timestamptz[])
				as e (id, provider_id, source, source_id, origin_id, batch_id, ordinal, attempt, kind, code, carrier_id, detail, occurred_at)
			on conflict (workspace_id, origin_id, provider_id, source, source_event_id) where source_event_id <> 'unknown' do nothing
			returning id, provider_id, origin_id, batch_id, ordinal, attempt, kind, occurred_at
		), queued as (
			insert into event_queue (workspace_id, id, provider_id, origin_id, batch_id, ordinal, attempt, type, occurred_at)
			select $1, id, provider_id, origin_id, batch_id, ordinal, attempt, kind, least(occurred_at, now()) from new where kind <> 'deferred'
		)
		select id from new`,
		workspaceID, c.ids, c.providers, c.sources, c.sourceIDs, c.origins, c.batches, c.ordinals, c.attempts,
		c.kinds, c.codes, c.carrierIDs, c.details, c.times)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	return len(ids), lemma.Wrap(err, "record %d events", len(events))
}

// columns are the columns of events, as unnest takes them.
type columns struct {
	ids, providers, origins, batches []uuid.UUID
	sources, sourceIDs, kinds        []string
	carrierIDs, details              []string
	ordinals, attempts, codes        []int16
	times                            []time.Time
}

func columnsOf(events []Event) columns {
	var c columns
	for _, e := range events {
		c.ids = append(c.ids, lemma.NewID())
		c.providers = append(c.providers, e.ProviderID)
		c.sources = append(c.sources, e.Source)
		c.sourceIDs = append(c.sourceIDs, orUnknown(e.SourceID))
		c.origins = append(c.origins, e.OriginID)
		c.batches = append(c.batches, e.BatchID)
		c.ordinals = append(c.ordinals, e.Ordinal)
		c.attempts = append(c.attempts, e.Attempt)
		c.kinds = append(c.kinds, string(e.Kind))
		c.codes = append(c.codes, int16(e.Code))
		c.carrierIDs = append(c.carrierIDs, e.CarrierID)
		c.details = append(c.details, e.Detail)
		c.times = append(c.times, e.OccurredAt)
	}
	return c
}

func orUnknown(id string) string {
	if id == "" {
		return unknownID
	}
	return id
}
