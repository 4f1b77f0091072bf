package events

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// TypeOrphaned is queued when a row is orphaned: an event about it may have been
// recorded at the same time.
const TypeOrphaned Type = "orphaned"

// Queued is an event whose effects are to be applied.
type Queued struct {
	ProviderID uuid.UUID
	OriginID   uuid.NullUUID // with BatchID null: it matches no notification
	Key        uuid.NullUUID // null also for the answer to a call
	BatchID    uuid.NullUUID
	Ordinal    *int16
	Type       Type
	Attempt    *int16
	Channel    *lemma.Channel // of Address
	Address    *string        // that the carrier reported, canonical
	Detail     *string
	OccurredAt time.Time // at the latest RecordedAt
	RecordedAt time.Time
}

// Take deletes the oldest queued events of a workspace after the first skip ones, in the
// transaction that applies them. Events that another transaction takes are left out. Rows are
// deleted by ctid: a join may read the whole queue.
func Take(ctx context.Context, tx pgx.Tx, workspaceID uuid.UUID, skip, most int) ([]Queued, error) {
	rows, _ := tx.Query(ctx, `
		delete from event_queue q where ctid = any(array(
			select ctid from event_queue where workspace_id = $1 order by id limit $2 offset $3 for update skip locked))
		returning q.provider_id, q.origin_id, q.key, q.batch_id, q.ordinal, q.type, q.attempt, q.channel, q.address, q.detail,
			q.occurred_at, q.recorded_at`,
		workspaceID, most, skip)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Queued])
	return all, lemma.Wrap(err, "take queued events")
}

// QueueOrphaned queues rows of a root batch that are orphaned in the caller's
// transaction, so that evidence that is recorded at the same time resolves them.
func QueueOrphaned(ctx context.Context, tx pgx.Tx, workspaceID, provider, origin, rootBatch uuid.UUID, ordinals []int16) error {
	if len(ordinals) == 0 {
		return nil
	}
	ids := make([]uuid.UUID, len(ordinals))
	for i := range ids {
		ids[i] = lemma.NewID()
	}
	_, err := tx.Exec(ctx, `
		insert into event_queue (workspace_id, id, provider_id, origin_id, batch_id, ordinal, type, occurred_at)
		select $1, r.id, $2, $3, $4, r.ordinal, '`+string(TypeOrphaned)+`', now() from unnest($5::uuid[], $6::smallint[]) as r (id, ordinal)`,
		workspaceID, provider, origin, rootBatch, ids, ordinals)
	return lemma.Wrap(err, "queue %d orphaned rows", len(ordinals))
}
