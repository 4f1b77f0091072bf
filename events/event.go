// Package events stores provider events: what carriers report about calls. They are
// appended and never changed, so that the reaper finds every known outcome, even when the worker
// that received it had lost its lease.
//
// Package sender decides by this evidence.
package events

import (
	"context"
	"fmt"
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

// Report is what a carrier reports about one message by webhook, before it is known
// which notification it is about.
type Report struct {
	ID           string // the carrier's id of the report; empty when it has none
	Notification string // the public id (ntf_...) that was sent with the message; empty when the report has none
	Attempt      int    // of the call; 0 when the report has none
	CarrierID    string // the carrier's id of the message
	Address      string // the recipient, of a report without a notification, such as STOP; empty otherwise
	Type         Type
	Code         int    // the reply code of the recipient's server; 0 for none
	Reason       string // the carrier's code for the cause, such as "mailbox_full"
	Detail       string // the carrier's text, without the address
	OccurredAt   time.Time
}

// Type is what a report is about.
type Type string

// The types of reports. Each but Deferred and Rejected proves that the
// carrier accepted the message.
const (
	TypeAccepted     Type = "accepted"     // the carrier has the message
	TypeRejected     Type = "rejected"     // it does not have it and never will accept it
	TypeDeferred     Type = "deferred"     // it did not accept it this time
	TypeDelayed      Type = "delayed"      // accepted, and not yet delivered
	TypeDelivered    Type = "delivered"    // the recipient's server or device has it
	TypeBounced      Type = "bounced"      // it cannot be delivered, now or later: the address does not work
	TypeSoftBounced  Type = "soft_bounced" // it was not delivered, for a reason that may pass: mailbox full
	TypeUndelivered  Type = "undelivered"  // it was not delivered, and the cause is not known to be the address
	TypeComplained   Type = "complained"   // the recipient reported it as spam
	TypeOpened       Type = "opened"
	TypeClicked      Type = "clicked"
	TypeUnsubscribed Type = "unsubscribed" // the recipient unsubscribed at the carrier, such as STOP
)

// SourceResponse is the source of events that are the carrier's answer to a call.
const SourceResponse = "response"

// SourceLookup is the source of events that a carrier's list of its messages shows.
const SourceLookup = "lookup"

// unknownID is stored for an event without an id, which is always kept.
const unknownID = "unknown"

// Event is a carrier's report about one attempt.
type Event struct {
	ProviderID uuid.UUID
	Source     string
	SourceID   string    // the carrier's id of the event; empty when it has none
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
	rows, err := db.Query(ctx, `
		insert into provider_events (workspace_id, id, provider_id, source, source_event_id,
			batch_id, ordinal, attempt, kind, code, carrier_id, detail, occurred_at)
		select $1, e.id, e.provider_id, e.source, e.source_id, e.batch_id, e.ordinal, e.attempt,
			e.kind, nullif(e.code, 0), nullif(e.carrier_id, ''), nullif(e.detail, ''), e.occurred_at
		from unnest($2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::uuid[], $7::smallint[], $8::smallint[],
			$9::text[], $10::smallint[], $11::text[], $12::text[], $13::timestamptz[])
			as e (id, provider_id, source, source_id, batch_id, ordinal, attempt, kind, code, carrier_id, detail, occurred_at)
		on conflict (workspace_id, source, source_event_id) where source_event_id <> 'unknown' do nothing
		returning id`,
		workspaceID, c.ids, c.providers, c.sources, c.sourceIDs, c.batches, c.ordinals, c.attempts,
		c.kinds, c.codes, c.carrierIDs, c.details, c.times)
	if err != nil {
		return 0, fmt.Errorf("record %d events: %w", len(events), err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return 0, fmt.Errorf("record %d events: %w", len(events), err)
	}
	return len(ids), nil
}

// columns are the columns of events, as unnest takes them.
type columns struct {
	ids, providers, batches   []uuid.UUID
	sources, sourceIDs, kinds []string
	carrierIDs, details       []string
	ordinals, attempts, codes []int16
	times                     []time.Time
}

func columnsOf(events []Event) columns {
	var c columns
	for _, e := range events {
		c.ids = append(c.ids, lemma.NewID())
		c.providers = append(c.providers, e.ProviderID)
		c.sources = append(c.sources, e.Source)
		c.sourceIDs = append(c.sourceIDs, orUnknown(e.SourceID))
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

// Proof is what an event proves about one row of a batch.
type Proof struct {
	Ordinal   int16
	Attempt   int16
	Kind      Kind // Accepted or Rejected
	Code      int
	CarrierID string
	Detail    string
}

// Evidence is what events prove about one row: at most one acceptance and one
// rejection of each attempt.
type Evidence []Proof

// Of returns the proof that settles an attempt, or nil. An acceptance of any
// attempt settles both, since the message has been sent. A rejection settles its
// own attempt.
func (e Evidence) Of(attempt int16) *Proof {
	var found *Proof
	for i, p := range e {
		if p.Kind == Accepted {
			return &e[i]
		}
		if p.Attempt == attempt {
			found = &e[i]
		}
	}
	return found
}

// Proofs reads what events prove about rows of a root batch. Rows without a proof
// are left out.
func Proofs(ctx context.Context, db DB, workspaceID, rootBatch uuid.UUID, ordinals []int16) (map[int16]Evidence, error) {
	rows, err := db.Query(ctx, `
		select distinct on (ordinal, kind, coalesce(attempt, 1)) ordinal, coalesce(attempt, 1)::smallint as attempt, kind,
			coalesce(code, 0)::int as code, coalesce(carrier_id, '') as carrier_id, coalesce(detail, '') as detail
		from provider_events
		where workspace_id = $1 and batch_id = $2 and ordinal = any($3) and kind in ('accepted', 'rejected')
		order by ordinal, kind, coalesce(attempt, 1), occurred_at, id`, workspaceID, rootBatch, ordinals)
	if err != nil {
		return nil, fmt.Errorf("read evidence of batch %s: %w", rootBatch, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[Proof])
	if err != nil {
		return nil, fmt.Errorf("read evidence of batch %s: %w", rootBatch, err)
	}
	evidence := make(map[int16]Evidence, len(found))
	for _, p := range found {
		evidence[p.Ordinal] = append(evidence[p.Ordinal], p)
	}
	return evidence, nil
}
