package notifications

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/migrations"
)

// Name identifies a notification within its workspace.
type Name struct{ OriginID, Key uuid.UUID }

// existingChunk is how many keys one statement of Existing has.
const existingChunk = 5_000

// Existing returns the indexes of the keys that notifications of an origin have, also in detached
// months. It takes some microseconds for each key and table.
func Existing(ctx context.Context, tx pgx.Tx, workspaceID, originID uuid.UUID, keys []uuid.UUID) (found []int, err error) {
	tables, err := migrations.Detached(ctx, tx, "notifications")
	if err != nil {
		return nil, err
	}
	for from := 0; from < len(keys); from += existingChunk {
		chunk := keys[from:min(from+existingChunk, len(keys))]
		asked := make([]pgtype.UUID, len(chunk))
		for i, key := range chunk {
			asked[i] = wire(key)
		}
		for _, table := range append(tables, "notifications") {
			// One key at a time: a join may be planned as a scan of the whole month.
			rows, _ := tx.Query(ctx, `
				select $4::int + r.i::int - 1 from unnest($3::uuid[]) with ordinality as r (key, i)
				cross join lateral (
					select from `+table+` where workspace_id = $1 and origin_id = $2 and key = r.key limit 1
				) n`, workspaceID, originID, asked, from)
			some, err := pgx.CollectRows(rows, pgx.RowTo[int])
			if err != nil {
				return nil, fmt.Errorf("find notifications: %w", err)
			}
			found = append(found, some...)
		}
	}
	return found, nil
}

func wireNames(names []Name) (origins, keys []pgtype.UUID) {
	origins, keys = make([]pgtype.UUID, len(names)), make([]pgtype.UUID, len(names))
	for i, n := range names {
		origins[i], keys[i] = wire(n.OriginID), wire(n.Key)
	}
	return origins, keys
}

// ErasedAddress replaces the address of an erased profile.
const ErasedAddress = "erased"

// Erase removes a profile from notifications, in the caller's transaction: as replaces the
// profile key, and address and data are deleted. Notifications that may still be called are
// left, since a second attempt must send the bytes of the first, and inFlight has the indexes
// of their names: repeat Erase when their batches have ended. Unknown names are ignored. A month
// that was detached and is not archived yet has to forget them as well.
func (l *Ledger) Erase(ctx context.Context, tx pgx.Tx, workspaceID uuid.UUID, names []Name, as string) (
	erased int64, inFlight []int, err error) {
	origins, keys := wireNames(names)
	const erase = ` n set profile_key = $4, address = case when n.address is not null then $5 end, payload = null, metadata = null
		from unnest($2::uuid[], $3::uuid[]) as r (origin_id, key)
		where n.workspace_id = $1 and n.origin_id = r.origin_id and n.key = r.key and n.profile_key <> $4`
	tag, err := tx.Exec(ctx, `update notifications`+erase+`
		  and not exists (select from batches b
			where b.workspace_id = n.workspace_id and b.origin_id = n.origin_id and b.id = n.batch_id and b.status in ('ready', 'leased'))
		  and not exists (select from batches b
			where b.workspace_id = n.workspace_id and b.origin_id = n.origin_id and b.root_id = n.batch_id and b.id <> b.root_id
			  and b.status in ('ready', 'leased'))`, workspaceID, origins, keys, as, ErasedAddress)
	if err != nil {
		return 0, nil, fmt.Errorf("erase notifications: %w", err)
	}
	erased = tag.RowsAffected()
	detached, err := migrations.Detached(ctx, tx, "notifications")
	if err != nil {
		return 0, nil, err
	}
	for _, name := range detached {
		if tag, err = tx.Exec(ctx, `update `+name+erase, workspaceID, origins, keys, as, ErasedAddress); err != nil {
			return 0, nil, fmt.Errorf("erase notifications of %s: %w", name, err)
		}
		erased += tag.RowsAffected()
	}
	rows, _ := tx.Query(ctx, `
		select r.i::int - 1 from unnest($2::uuid[], $3::uuid[]) with ordinality as r (origin_id, key, i)
		join notifications n on n.workspace_id = $1 and n.origin_id = r.origin_id and n.key = r.key
		where n.profile_key <> $4`, workspaceID, origins, keys, as)
	inFlight, err = pgx.CollectRows(rows, pgx.RowTo[int])
	return erased, inFlight, lemma.Wrap(err, "find notifications that cannot be erased yet")
}
