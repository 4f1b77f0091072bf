package suppression

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// Record adds what carriers reported, in the caller's transaction. Addresses that
// cannot be of their channel are left out.
func Record(ctx context.Context, tx pgx.Tx, ws uuid.UUID, entries []Entry) (added int, err error) {
	var valid []Entry
	for _, e := range entries {
		known, ok := canonical(e.Channel, e.Address)
		if !ok {
			continue
		}
		e.ID, e.Address = lemma.NewID(), known
		if len(e.Detail) > maxDetail {
			e.Detail = e.Detail[:maxDetail]
		}
		valid = append(valid, e)
	}
	return insert(ctx, tx, ws, valid)
}
