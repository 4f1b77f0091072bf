package flows

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lemma/webhooks"
)

// WebhookSettled wakes the enrollment that waits for an endpoint's answer, in
// the transaction in which the outbox settles the message. The message is one
// step's, and the enrollment says which step's answer it waits for: one that has
// left that wait, or was moved into another on a node of the same id, is not
// touched; one that a move has left in it is. The answer is consumed: a worker
// that still believes there is none finds the enrollment changed.
func (f *Flows) WebhookSettled(ctx context.Context, tx pgx.Tx, o webhooks.Outcome) error {
	_, err := tx.Exec(ctx, `
		update enrollments set resume_at = now(), answer_step = null
		where workspace_id = $1 and id = $2 and answer_step = $3 and ended_at is null`, o.WorkspaceID, o.EnrollmentID, o.Step)
	if err != nil {
		return fmt.Errorf("wake enrollment %s: %w", o.EnrollmentID, err)
	}
	return nil
}
