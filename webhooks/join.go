package webhooks

import (
	"cmp"
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/eventsout"
)

// batchRef is a batch of notifications.
type batchRef struct{ workspace, origin, batch uuid.UUID }

func (e *waiting) batch() batchRef { return batchRef{e.WorkspaceID, e.OriginID, *e.BatchID} }

// join joins events of one type about rows of one batch, which several commits have
// written, and returns what is left: the first of each with all their rows. The others
// are deleted unpublished.
func join(ctx context.Context, tx pgx.Tx, all []*waiting) ([]*waiting, error) {
	type key struct {
		batchRef
		name string
	}
	var left []*waiting
	joined, first := map[*waiting]bool{}, map[key]*waiting{}
	for _, e := range all {
		if e.Ordinals == nil || e.BatchID == nil {
			left = append(left, e)
			continue
		}
		at := key{e.batch(), e.Type}
		if to := first[at]; to != nil && len(to.Ordinals)+len(e.Ordinals) <= eventsout.MaxItems {
			to.add(e)
			joined[to] = true
			continue
		}
		first[at], left = e, append(left, e)
	}
	return left, writeJoined(ctx, tx, joined)
}

// add adds the rows of another event about the batch.
func (e *waiting) add(other *waiting) {
	if e.Details != nil || other.Details != nil {
		e.Details = append(e.details(), other.details()...)
	}
	e.Ordinals = append(e.Ordinals, other.Ordinals...)
	e.Count = len(e.Ordinals)
}

// details has an entry for each row.
func (e *waiting) details() []string {
	if e.Details == nil {
		return make([]string, len(e.Ordinals))
	}
	return e.Details
}

// writeJoined stores the rows of joined events, since they are read by their id later.
func writeJoined(ctx context.Context, tx pgx.Tx, joined map[*waiting]bool) error {
	batch := &pgx.Batch{}
	for e := range joined {
		batch.Queue(`update events_out set ordinals = $3, details = $4, count = $5 where workspace_id = $1 and id = $2`,
			e.WorkspaceID, e.ID, e.Ordinals, e.Details, e.Count)
	}
	if batch.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, batch).Close()
}

// readItems reads the keys of notifications that events name by batch and ordinal: once
// for each batch, and as two values, since a row of the answer would cost more than its
// key. They were written before their batch was claimed, and never change.
func readItems(ctx context.Context, tx pgx.Tx, all []*waiting) error {
	of := map[batchRef][]*waiting{}
	for _, e := range all {
		if e.BatchID != nil {
			of[e.batch()] = append(of[e.batch()], e)
		}
	}
	if len(of) == 0 {
		return nil
	}
	batch := &pgx.Batch{}
	for b, events := range of {
		batch.Queue(`
			select coalesce(string_agg(int2send(ordinal), null), ''), coalesce(string_agg(uuid_send(key), null), '') from notifications
			where workspace_id = $1 and origin_id = $2 and batch_id = $3`, b.workspace, b.origin, b.batch).QueryRow(func(row pgx.Row) error {
			var ordinals, keys []byte
			if err := row.Scan(&ordinals, &keys); err != nil {
				return err
			}
			rows := batchRows(ordinals, keys)
			for _, e := range events {
				e.Keys = rows.of(e.Ordinals)
			}
			return nil
		})
	}
	return tx.SendBatch(ctx, batch).Close()
}

// rowKey is the key of a row of a batch.
type rowKey struct {
	ordinal int16
	key     uuid.UUID
}

type rowKeys []rowKey // by ordinal

// batchRows has the rows in which Postgres has sent them.
func batchRows(ordinals, keys []byte) rowKeys {
	all := make(rowKeys, 0, len(keys)/16)
	for key := range slices.Chunk(keys, 16) {
		all = append(all, rowKey{int16(ordinals[0])<<8 | int16(ordinals[1]), uuid.UUID(key)})
		ordinals = ordinals[2:]
	}
	slices.SortFunc(all, func(a, b rowKey) int { return cmp.Compare(a.ordinal, b.ordinal) })
	return all
}

// of returns the keys of some rows, or of all, by ordinal.
func (all rowKeys) of(ordinals []int16) []uuid.UUID {
	wanted := map[int16]bool{}
	for _, ordinal := range ordinals {
		wanted[ordinal] = true
	}
	keys := make([]uuid.UUID, 0, len(all))
	for _, row := range all {
		if ordinals == nil || wanted[row.ordinal] {
			keys = append(keys, row.key)
		}
	}
	return keys
}
