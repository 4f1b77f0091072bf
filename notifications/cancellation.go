package notifications

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// readCancellation reads why a message of an archived flow was cancelled: the flow
// keeps the cause.
func readCancellation(ctx context.Context, db DB, e *Explanation, _ *deliveries) error {
	n := e.Notification
	if n.FlowID == nil || n.EndedAt == nil || n.Reason == nil || *n.Reason != "cancelled" && *n.Reason != "unknown_then_cancelled" {
		return nil
	}
	rows, _ := db.Query(ctx, `
		select status_reason, coalesce(status_detail, '') from flows
		where workspace_id = $1 and id = $2 and status = 'archived' and status_reason is not null`, n.WorkspaceID, *n.FlowID)
	var reason, detail string
	_, err := pgx.ForEachRow(rows, []any{&reason, &detail}, func() error {
		e.Steps = append(e.Steps, Step{At: *n.EndedAt, Event: "cancelled",
			Detail: "the flow is archived, so that its unsent messages were cancelled because of their provider",
			Data:   map[string]string{"reason": reason, "detail": detail}})
		return nil
	})
	return err
}
