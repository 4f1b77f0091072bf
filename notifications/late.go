package notifications

import (
	"context"
	"fmt"

	"lemma"
	"lemma/events"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Row identifies a notification by its root batch and ordinal.
type Row struct {
	OriginID, BatchID uuid.UUID
	Ordinal           int16
}

// ResolveByEvidence resolves orphaned notifications, in the caller's transaction, by
// what events prove: sent if one proves an acceptance, not_sent if no attempt was
// accepted for certain. The first resolution is final; the status does not change.
func ResolveByEvidence(ctx context.Context, tx pgx.Tx, workspaceID uuid.UUID, rows []Row) (resolved int, err error) {
	if len(rows) == 0 {
		return 0, nil
	}
	origins, batches, ordinals := make([]uuid.UUID, len(rows)), make([]uuid.UUID, len(rows)), make([]int16, len(rows))
	for i, r := range rows {
		origins[i], batches[i], ordinals[i] = r.OriginID, r.BatchID, r.Ordinal
	}
	unknown, err := unknownRows(ctx, tx, workspaceID, origins, batches, ordinals)
	if err != nil || len(unknown) == 0 {
		return 0, err
	}
	for _, r := range unknown {
		tag, err := tx.Exec(ctx, resolveByEvidence, workspaceID, r.OriginID, r.BatchID, r.Ordinal)
		if err != nil {
			return 0, fmt.Errorf("resolve by evidence: %w", err)
		}
		resolved += int(tag.RowsAffected())
	}
	return resolved, nil
}

// unknownRows are the few rows that have an attempt with an unknown outcome, and no resolution.
func unknownRows(ctx context.Context, tx pgx.Tx, ws uuid.UUID, origins, batches []uuid.UUID, ordinals []int16) ([]Row, error) {
	rows, _ := tx.Query(ctx, `
		select distinct r.origin_id, r.batch_id, r.ordinal
		from unnest($2::uuid[], $3::uuid[], $4::smallint[]) as r (origin_id, batch_id, ordinal)
		cross join lateral (
			select from attempts a
			where a.workspace_id = $1 and a.batch_id = r.batch_id and a.ordinal = r.ordinal and a.outcome = 'unknown' limit 1
		) a
		cross join lateral (
			select n.key from notifications n
			where n.workspace_id = $1 and n.origin_id = r.origin_id and n.batch_id = r.batch_id and n.ordinal = r.ordinal offset 0
		) n
		where not exists (select from resolutions x where x.workspace_id = $1 and x.origin_id = r.origin_id and x.key = n.key)
		order by 1, 2, 3`, ws, origins, batches, ordinals)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Row])
	return found, lemma.Wrap(err, "find unknown outcomes")
}

// resolveByEvidence: an event that names no attempt proves a rejection only of a
// notification whose second attempt was not called. It reads a few events, however many there are.
var resolveByEvidence = `
	insert into resolutions (workspace_id, origin_id, key, resolution)
	select $1, $2, n.key, case when e.accepted then 'sent' else 'not_sent' end
	from (
		select s.key, s.attempts from notification_status s
		where s.workspace_id = $1 and s.origin_id = $2 and s.batch_id = $3 and s.ordinal = $4 and s.status = 'orphaned'
	) n
	cross join lateral (
		select exists (select from provider_events p
			where p.workspace_id = $1 and p.origin_id = $2 and p.batch_id = $3 and p.ordinal = $4 and p.kind = 'accepted') as accepted
	) e
	cross join lateral (
		select count(*) as n from (
			select k.attempt from (values (1), (2)) as k (attempt)
			where exists (select from provider_events p where p.workspace_id = $1 and p.origin_id = $2 and p.batch_id = $3
					and p.ordinal = $4 and p.kind = 'rejected' and p.attempt = k.attempt)
			   or n.attempts = 1 and k.attempt = 1 and exists (select from provider_events p where p.workspace_id = $1 and p.origin_id = $2
					and p.batch_id = $3 and p.ordinal = $4 and p.kind = 'rejected' and p.attempt is null)
				and not ` + events.SecondCalled("$1", "$2", "$3", "$4") + `
			union
			select a.attempt from attempts a
			where a.workspace_id = $1 and a.batch_id = $3 and a.ordinal = $4 and a.outcome in ('rejected', 'refused')
		) r
		where r.attempt <= n.attempts
	) rejected
	where e.accepted or rejected.n >= n.attempts
	on conflict (workspace_id, origin_id, key) do nothing`
