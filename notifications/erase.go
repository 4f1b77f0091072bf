package notifications

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Name is what a notification is found by.
type Name struct{ OriginID, Key uuid.UUID }

// ErasedAddress stands where the address of an erased person stood.
const ErasedAddress = "erased"

// Erase takes the person out of notifications, in the caller's transaction: as
// stands for the profile from then on, and neither address nor data are left.
// What may still be called stays as it is, since a second attempt must say the
// same bytes as the first; it is counted, and goes when it is asked for again
// after its batch has ended. Names that nothing was written under are passed over.
func (l *Ledger) Erase(ctx context.Context, tx pgx.Tx, workspaceID uuid.UUID, names []Name, as string) (erased, inFlight int64, err error) {
	origins, keys := make([]pgtype.UUID, len(names)), make([]pgtype.UUID, len(names))
	for i, n := range names {
		origins[i], keys[i] = wire(n.OriginID), wire(n.Key)
	}
	tag, err := tx.Exec(ctx, `
		update notifications n set profile_key = $4, address = case when n.address is not null then $5 end, payload = null
		from unnest($2::uuid[], $3::uuid[]) as r (origin_id, key)
		where n.workspace_id = $1 and n.origin_id = r.origin_id and n.key = r.key and n.profile_key <> $4
		  and not exists (select from batches b where b.workspace_id = n.workspace_id and b.origin_id = n.origin_id and b.id = n.batch_id
				and b.status in ('ready', 'leased'))
		  and not exists (select from batches b where b.workspace_id = n.workspace_id and b.origin_id = n.origin_id and b.root_id = n.batch_id
				and b.id <> b.root_id and b.status in ('ready', 'leased'))`, workspaceID, origins, keys, as, ErasedAddress)
	if err != nil {
		return 0, 0, fmt.Errorf("erase notifications: %w", err)
	}
	err = tx.QueryRow(ctx, `
		select count(*) from unnest($2::uuid[], $3::uuid[]) as r (origin_id, key)
		join notifications n on n.workspace_id = $1 and n.origin_id = r.origin_id and n.key = r.key
		where n.profile_key <> $4`, workspaceID, origins, keys, as).Scan(&inFlight)
	if err != nil {
		return 0, 0, fmt.Errorf("count notifications that cannot be erased yet: %w", err)
	}
	return tag.RowsAffected(), inFlight, nil
}
