package suppression

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// Recorded is what became of entries.
type Recorded struct {
	Added   int
	Invalid int // their addresses cannot be of their channels: they suppress nothing
}

// Record adds what carriers reported, in the caller's transaction.
func Record(ctx context.Context, tx pgx.Tx, ws uuid.UUID, entries []Entry) (done Recorded, err error) {
	var valid []Entry
	for _, e := range entries {
		known, ok := canonical(e.Channel, e.Address)
		if !ok {
			done.Invalid++
			continue
		}
		e.ID, e.Address = lemma.NewID(), known
		if len(e.Detail) > maxDetail {
			e.Detail = e.Detail[:maxDetail]
		}
		valid = append(valid, e)
	}
	done.Added, _, err = insert(ctx, tx, ws, valid)
	return done, err
}
