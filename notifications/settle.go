package notifications

import (
	"cmp"
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/events"
	"lemma/eventsout"
)

// Evidence about the first attempt ends a row of the second. ReasonFirstAccepted: the second
// was not called, and the view does not count it as an attempt. ReasonFirstRejected: the
// second was not called either, or was rejected too.
const (
	ReasonFirstAccepted = "first_attempt_accepted"
	ReasonFirstRejected = "first_attempt_rejected"
)

// SettleSecond returns the proof that ends a row of a second attempt that was not called,
// and the reason of its outcome. The proof is nil if nothing is known of the first attempt.
func SettleSecond(e events.Evidence) (proof *events.Proof, reason string) {
	proof = e.Of(1)
	switch {
	case proof == nil:
	case proof.Kind == events.Rejected:
		reason = ReasonFirstRejected
	case proof.Attempt != 2:
		reason = ReasonFirstAccepted
	}
	return proof, reason
}

// Ended is a batch of second attempts that a gate or the send deadline has ended.
type Ended struct {
	Ref
	RootID, ProviderID uuid.UUID
	Open               []int16 // the rows that it has orphaned
	Cause              string  // why, for the events; empty: unknown_then_cancelled
}

// SettleEnded reads the evidence about the rows of a batch, in the transaction that has
// ended it: an acceptance of the first attempt makes a row sent, a rejection failed. The
// others stay orphaned and are queued, so that evidence that is recorded at the same time
// resolves them. It returns how many it has settled.
func SettleEnded(ctx context.Context, tx pgx.Tx, b Ended) (settled int, err error) {
	evidence, err := events.Proofs(ctx, tx, b.WorkspaceID, b.OriginID, b.RootID, b.Open)
	if err != nil {
		return 0, err
	}
	var left []int16
	var known second
	for _, ordinal := range b.Open {
		if p, reason := SettleSecond(evidence[ordinal]); p == nil {
			left = append(left, ordinal)
		} else {
			known.add(ordinal, *p, reason)
		}
	}
	if err := known.write(ctx, tx, b); err != nil {
		return 0, fmt.Errorf("settle second attempts of batch %s: %w", b.BatchID, err)
	}
	if err := events.QueueOrphaned(ctx, tx, b.WorkspaceID, b.ProviderID, b.OriginID, b.RootID, left); err != nil {
		return 0, err
	}
	return len(known.ordinals), eventsout.Record(ctx, tx, known.events(b, left)...)
}

// second are the outcomes of rows of a second attempt, by column.
type second struct {
	sent, failed                       int
	ordinals, codes                    []int16
	kinds, reasons, carrierIDs, detail []string
}

func (s *second) add(ordinal int16, p events.Proof, reason string) {
	if p.Kind == events.Accepted {
		s.sent++
	} else {
		s.failed++
	}
	s.ordinals, s.codes = append(s.ordinals, ordinal), append(s.codes, int16(p.Code))
	s.kinds, s.reasons = append(s.kinds, string(p.Kind)), append(s.reasons, reason)
	s.carrierIDs, s.detail = append(s.carrierIDs, p.CarrierID), append(s.detail, p.Detail)
}

// write inserts the outcomes, and counts the rows as sent or failed instead of orphaned.
func (s *second) write(ctx context.Context, tx pgx.Tx, b Ended) error {
	if len(s.ordinals) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, `
		with counted as (
			update batches set sent = sent + $4, failed = failed + $5, orphaned = orphaned - $4 - $5
			where workspace_id = $1 and origin_id = $2 and id = $3 and attempt = 2 and status in ('cancelled', 'expired')
			returning workspace_id, root_id, attempt
		)
		insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis, reason, code, carrier_id, detail)
		select c.workspace_id, c.root_id, o.ordinal, c.attempt, o.kind, true, 'evidence', nullif(o.reason, ''),
			nullif(o.code, 0), nullif(o.carrier_id, ''), nullif(o.detail, '')
		from counted c, unnest($6::smallint[], $7::text[], $8::text[], $9::smallint[], $10::text[], $11::text[])
			as o (ordinal, kind, reason, code, carrier_id, detail)`,
		b.WorkspaceID, b.OriginID, b.BatchID, s.sent, s.failed, s.ordinals, s.kinds, s.reasons, s.codes, s.carrierIDs, s.detail)
	return err
}

// events are the events about the rows, and about those that stay orphaned.
func (s *second) events(b Ended, left []int16) []eventsout.Event {
	sent := eventsout.Event{WorkspaceID: b.WorkspaceID, Type: eventsout.NotificationSent, OriginID: b.OriginID, BatchID: b.RootID}
	failed, orphaned := sent, sent
	failed.Type, orphaned.Type = eventsout.NotificationFailed, eventsout.NotificationOrphaned
	for i, ordinal := range s.ordinals {
		e := &failed
		if s.kinds[i] == string(events.Accepted) {
			e = &sent
		}
		e.Ordinals, e.Details = append(e.Ordinals, ordinal), append(e.Details, s.reasons[i])
	}
	for _, ordinal := range left {
		orphaned.Ordinals = append(orphaned.Ordinals, ordinal)
		orphaned.Details = append(orphaned.Details, cmp.Or(b.Cause, "unknown_then_cancelled"))
	}
	return eventsout.WithItems([]eventsout.Event{sent, failed, orphaned})
}
