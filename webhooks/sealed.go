package webhooks

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/secrets"
)

// Sealed is the secrets of webhook endpoints, for checks and for the rotation of keys.
// Its statements go over all workspaces: the keys are the operator's.
func (w *Webhooks) Sealed() secrets.Store {
	return secrets.Store{Table: "webhook_endpoints", Prefix: lemma.PrefixEndpoint, Place: place, Page: w.sealedPage, Replace: w.replaceSealed}
}

func (w *Webhooks) sealedPage(ctx context.Context, after secrets.Sealed, limit int) ([]secrets.Sealed, error) {
	rows, _ := w.pool.Query(ctx, `
		select workspace_id, id, secret as text from webhook_endpoints
		where (workspace_id, id) > ($1, $2) order by workspace_id, id limit $3`, after.WorkspaceID, after.ID, limit)
	return pgx.CollectRows(rows, pgx.RowToStructByName[secrets.Sealed])
}

// replaceSealed leaves version and updated_at alone: what is sealed stays the
// same, and with it an ETag that somebody holds.
func (w *Webhooks) replaceSealed(ctx context.Context, rows []secrets.Replacement) (int64, error) {
	var workspaces, ids []uuid.UUID
	var old, fresh [][]byte
	for _, r := range rows {
		workspaces, ids = append(workspaces, r.WorkspaceID), append(ids, r.ID)
		old, fresh = append(old, r.Text), append(fresh, r.Fresh)
	}
	done, err := w.pool.Exec(ctx, `
		update webhook_endpoints t set secret = r.fresh
		from unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::bytea[]) r (workspace_id, id, old, fresh)
		where t.workspace_id = r.workspace_id and t.id = r.id and t.secret = r.old`, workspaces, ids, old, fresh)
	return done.RowsAffected(), err
}
