package webhooks

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/eventsout"
)

// batchRef is a batch of notifications.
type batchRef struct{ workspace, origin, batch uuid.UUID }

func (e *waiting) batch() batchRef { return batchRef{e.WorkspaceID, e.OriginID, *e.BatchID} }

// joinWithin is how far apart events that are joined may be. The first gives its time.
const joinWithin = 10 * time.Second

// join joins events of one type about items of one campaign, flow or period, which several
// commits have written, and returns what is left: the first of each with the items of all.
// The others are deleted unpublished.
func join(all []*waiting) (left []*waiting) {
	type key struct {
		workspace, origin uuid.UUID
		name              string
	}
	first := map[key]*waiting{}
	for _, e := range all {
		at := key{e.WorkspaceID, e.OriginID, e.Type}
		if to := first[at]; to != nil && to.mayHave(e) {
			to.add(e)
			continue
		}
		if left = append(left, e); e.Keys.Len() > 0 && len(e.Data) == 0 {
			first[at] = e
		}
	}
	return left
}

// mayHave reports whether an event may have the items of another too.
func (e *waiting) mayHave(other *waiting) bool {
	return other.Keys.Len() > 0 && len(other.Data) == 0 && e.Keys.Len()+other.Keys.Len() <= eventsout.MaxItems &&
		other.OccurredAt.Sub(e.OccurredAt).Abs() <= joinWithin
}

// add adds the items of another event.
func (e *waiting) add(other *waiting) {
	if e.Details != nil || other.Details != nil {
		e.Details = append(e.details(), other.details()...)
	}
	e.Keys = append(e.Keys, other.Keys...)
	e.Count, e.changed = e.Keys.Len(), true
}

// details has an entry for each item.
func (e *waiting) details() []string {
	if e.Details == nil {
		return make([]string, e.Keys.Len())
	}
	return e.Details
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
				rows.give(e)
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

// give sets the keys of an event: of its rows, in their order, or of all by ordinal. Rows
// that were deleted are left out.
func (all rowKeys) give(e *waiting) {
	e.Keys, e.changed = make(eventsout.Keys, 0, 16*len(all)), true
	if e.Ordinals == nil {
		for _, row := range all {
			e.Keys = append(e.Keys, row.key[:]...)
		}
		return
	}
	details := e.Details
	e.Details = nil
	for i, ordinal := range e.Ordinals {
		at, found := slices.BinarySearchFunc(all, ordinal, func(r rowKey, o int16) int { return cmp.Compare(r.ordinal, o) })
		if !found {
			continue
		}
		e.Keys = append(e.Keys, all[at].key[:]...)
		if details != nil {
			e.Details = append(e.Details, details[i])
		}
	}
}
