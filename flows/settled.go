package flows

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lemma/webhooks"
)

// WebhookSettled wakes who waits for an endpoint's answer, in the transaction
// in which the outbox settles the message. An enrollment that has left the node
// is not touched; one that a move has left on it is.
func (f *Flows) WebhookSettled(ctx context.Context, tx pgx.Tx, o webhooks.Outcome) error {
	var node string
	err := tx.QueryRow(ctx, `
		select node from enrollments
		where workspace_id = $1 and id = $2 and ended_at is null and waiting_since is not null for update`, o.WorkspaceID, o.EnrollmentID).Scan(&node)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && NodeKey(o.EnrollmentID, node) != o.ID {
		return nil
	}
	if err == nil {
		_, err = tx.Exec(ctx, `
			update enrollments set resume_at = now() where workspace_id = $1 and id = $2 and node = $3 and ended_at is null`, o.WorkspaceID, o.EnrollmentID, node)
	}
	if err != nil {
		return fmt.Errorf("wake enrollment %s: %w", o.EnrollmentID, err)
	}
	return nil
}
