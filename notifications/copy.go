package notifications

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lemma/pgerr"

	"github.com/jackc/pgx/v5"
)

// ErrRepeated reports that a chunk with Copy set has a key that is stored already.
// The transaction is aborted: repeat the chunk in a new one, with Copy unset.
var ErrRepeated = errors.New("a key of the chunk is stored already")

var copiedColumns = []string{"workspace_id", "origin_id", "key", "batch_id", "ordinal", "profile_key", "address", "payload"}

// copyIntents writes all intents of a chunk by COPY, or none (ErrRepeated), at half
// the cost of an insert with "on conflict". Rows go in the order of their keys, so
// that two copies never wait for each other.
func copyIntents(ctx context.Context, tx pgx.Tx, c Chunk, col intentColumns) error {
	columns := copiedColumns
	if c.Converts {
		columns = append(slices.Clip(columns), "converts")
	}
	row := make([]any, len(columns))
	row[0], row[1] = wire(c.WorkspaceID), wire(c.OriginID)
	rows := pgx.CopyFromSlice(len(col.keys), func(i int) ([]any, error) {
		row[2], row[3], row[4] = col.keys[i], col.batchOf[i], col.ordinals[i]
		row[5], row[6], row[7] = col.profiles[i], col.addresses[i], col.payloads[i]
		if c.Converts {
			row[8] = true
		}
		return row, nil
	})
	n, err := tx.CopyFrom(ctx, pgx.Identifier{"notifications"}, columns, rows)
	switch {
	case pgerr.Is(err, pgerr.Unique):
		return ErrRepeated
	case err == nil && int(n) != len(col.keys):
		return fmt.Errorf("%d of %d rows were copied", n, len(col.keys))
	}
	return err
}
