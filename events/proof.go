package events

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

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
// are left out. An event that names no attempt counts as one of the first.
func Proofs(ctx context.Context, db DB, workspaceID, origin, rootBatch uuid.UUID, ordinals []int16) (map[int16]Evidence, error) {
	rows, err := db.Query(ctx, `
		select distinct on (ordinal, kind, coalesce(attempt, 1)) ordinal, coalesce(attempt, 1)::smallint as attempt, kind,
			coalesce(code, 0)::int as code, coalesce(carrier_id, '') as carrier_id, coalesce(detail, '') as detail
		from provider_events
		where workspace_id = $1 and origin_id = $4 and batch_id = $2 and ordinal = any($3) and kind in ('accepted', 'rejected')
		order by ordinal, kind, coalesce(attempt, 1), occurred_at, id`, workspaceID, rootBatch, ordinals, origin)
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
