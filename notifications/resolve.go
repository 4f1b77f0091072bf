package notifications

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"lemma"
	"lemma/fence"
)

// Resolve records whether an orphaned notification was sent. The first resolution
// is final. The notification stays orphaned and is never sent again.
func (l *Ledger) Resolve(ctx context.Context, workspaceID, origin, key uuid.UUID, r Resolution) (Notification, error) {
	tag, err := fence.Exec(ctx, l.pool, `
		insert into resolutions (workspace_id, origin_id, key, resolution, note, api_key_id)
		select workspace_id, origin_id, key, $4, $5, $6 from notification_status
		where workspace_id = $1 and origin_id = $2 and key = $3 and status = 'orphaned'
		on conflict (workspace_id, origin_id, key) do nothing`,
		workspaceID, origin, key, r.Resolution, r.Note, r.APIKeyID)
	if err != nil {
		return Notification{}, fmt.Errorf("resolve notification: %w", err)
	}
	n, err := l.Get(ctx, workspaceID, origin, key)
	if err != nil || tag.RowsAffected() == 1 {
		return n, err
	}
	wrong := &lemma.Error{Kind: lemma.WrongStatus, Status: n.Status, Allowed: []string{},
		Message: "only an orphaned notification can be resolved"}
	if n.Status == "orphaned" {
		wrong.Code, wrong.Message = "already_resolved", "the notification has been resolved as "+*n.Resolution+" already"
	}
	return Notification{}, wrong
}
