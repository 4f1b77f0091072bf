package events

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Proof is what an event proves about one row of a batch.
type Proof struct {
	Ordinal   int16
	Attempt   int16
	Named     bool // the event names its attempt
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
// are left out. An event that names no attempt counts as one of the first. A rejection does so
// only while the second has not been called: it may be of either.
func Proofs(ctx context.Context, db DB, workspaceID, origin, rootBatch uuid.UUID, ordinals []int16) (map[int16]Evidence, error) {
	rows, _ := db.Query(ctx, proofs, workspaceID, rootBatch, ordinals, origin)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[Proof])
	if err != nil {
		return nil, fmt.Errorf("read evidence of batch %s: %w", rootBatch, err)
	}
	called, err := secondsCalled(ctx, db, workspaceID, origin, rootBatch, found)
	if err != nil {
		return nil, fmt.Errorf("read second attempts of batch %s: %w", rootBatch, err)
	}
	evidence := make(map[int16]Evidence, len(found))
	for _, p := range found {
		if !p.isOfEither() || !called[p.Ordinal] {
			evidence[p.Ordinal] = append(evidence[p.Ordinal], p)
		}
	}
	return evidence, nil
}

// isOfEither reports whether it may be of the first or the second attempt, if that was called.
func (p *Proof) isOfEither() bool { return p.Kind == Rejected && !p.Named }

// secondsCalled are the rows with a rejection of either attempt whose second one was called.
// Rejections without an attempt are rare, so that it is a statement of its own.
func secondsCalled(ctx context.Context, db DB, ws, origin, rootBatch uuid.UUID, found []Proof) (map[int16]bool, error) {
	var ordinals []int16
	for _, p := range found {
		if p.isOfEither() {
			ordinals = append(ordinals, p.Ordinal)
		}
	}
	if len(ordinals) == 0 {
		return nil, nil
	}
	rows, _ := db.Query(ctx, `select r.ordinal from unnest($4::smallint[]) as r (ordinal) where `+SecondCalled("$1", "$2", "$3", "r.ordinal"),
		ws, origin, rootBatch, ordinals)
	called := map[int16]bool{}
	var ordinal int16
	_, err := pgx.ForEachRow(rows, []any{&ordinal}, func() error { called[ordinal] = true; return nil })
	return called, err
}

// proofs reads one event of each row, kind and attempt, however many there are.
const proofs = `
	select distinct on (r.ordinal, k.kind, coalesce(p.attempt, 1)) r.ordinal, coalesce(p.attempt, 1)::smallint as attempt,
		p.attempt is not null as named, k.kind, coalesce(p.code, 0)::int as code, coalesce(p.carrier_id, '') as carrier_id,
		coalesce(p.detail, '') as detail
	from unnest($3::smallint[]) as r (ordinal)
	cross join lateral (
		select from provider_events p where ` + ofRow + ` order by p.kind limit 1
	) any_event
	cross join (values ('accepted'), ('rejected')) as k (kind)
	cross join lateral (
		(select ` + ofProof + ` from provider_events p where ` + ofRow + ` and p.kind = k.kind and p.attempt = 1 order by p.occurred_at limit 1)
		union all
		(select ` + ofProof + ` from provider_events p where ` + ofRow + ` and p.kind = k.kind and p.attempt = 2 order by p.occurred_at limit 1)
		union all
		(select ` + ofProof + ` from provider_events p where ` + ofRow + ` and p.kind = k.kind and p.attempt is null
		order by p.attempt, p.occurred_at limit 1)
	) p
	order by r.ordinal, k.kind, coalesce(p.attempt, 1), p.attempt, p.occurred_at, p.id`

const ofProof = `p.id, p.attempt, p.occurred_at, p.code, p.carrier_id, p.detail`

const ofRow = `p.workspace_id = $1 and p.origin_id = $4 and p.batch_id = $2 and p.ordinal = r.ordinal`

// SecondCalled is a condition: the second attempt of a row has been called, or may have been.
// It is false for a row without one.
func SecondCalled(workspace, origin, rootBatch, ordinal string) string {
	return strings.NewReplacer("{workspace}", workspace, "{origin}", origin, "{root}", rootBatch, "{ordinal}", ordinal).Replace(`exists (
		select from (
			select d.id, d.members from batches d
			where d.workspace_id = {workspace} and d.origin_id = {origin} and d.root_id = {root} and d.id <> d.root_id and d.attempt = 2 offset 0
		) d
		cross join lateral (
			select from batch_log l
			where l.workspace_id = {workspace} and l.batch_id = d.id and l.event = 'window' and {ordinal} between l.first and l.last limit 1
		) l
		where {ordinal} = any(d.members))`)
}
