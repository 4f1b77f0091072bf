package flows

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma/flows/enrollment"
	"lemma/webhooks"
)

// WebhookSettled wakes the enrollments that wait for an endpoint's answer, in the
// transaction in which the outbox settles their messages. The enrollment has the step
// whose answer it waits for, so that one that has left that wait, or was moved into
// another wait on a node of the same id, is not changed. Waking clears that step: a worker
// that has read the enrollment without the answer finds it changed.
func (f *Flows) WebhookSettled(ctx context.Context, tx pgx.Tx, all []webhooks.Outcome) error {
	of := map[uuid.UUID][]webhooks.Outcome{}
	var workspaces []uuid.UUID
	for _, o := range all {
		if of[o.WorkspaceID] == nil {
			workspaces = append(workspaces, o.WorkspaceID)
		}
		of[o.WorkspaceID] = append(of[o.WorkspaceID], o)
	}
	due := map[enrollment.Shard]bool{}
	slices.SortFunc(workspaces, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }) // locks are taken in this order
	for _, ws := range workspaces {
		if err := wakeAnswered(ctx, tx, ws, of[ws], due); err != nil {
			return fmt.Errorf("wake %d enrollments, the first of them %s: %w", len(of[ws]), of[ws][0].EnrollmentID, err)
		}
	}
	return enrollment.LowerBounds(ctx, tx, due)
}

// wakeAnswered wakes those of one workspace, and locks them in the order of their ids. It
// adds their shards to due.
func wakeAnswered(ctx context.Context, tx pgx.Tx, ws uuid.UUID, all []webhooks.Outcome, due map[enrollment.Shard]bool) error {
	slices.SortFunc(all, func(a, b webhooks.Outcome) int { return bytes.Compare(a.EnrollmentID[:], b.EnrollmentID[:]) })
	ids, steps := make([]pgtype.UUID, len(all)), make([]int32, len(all))
	for i, o := range all {
		ids[i], steps[i] = enrollment.PgUUID(o.EnrollmentID), int32(o.Step)
	}
	rows, _ := tx.Query(ctx, `
		update enrollments e set resume_at = now(), answer_step = null
		from (select $1::uuid as workspace_id, r.* from unnest($2::uuid[], $3::int[]) as r (id, step) limit $4) r
		where e.workspace_id = r.workspace_id and e.id = r.id and e.answer_step = r.step and e.ended_at is null
		returning e.flow_id, e.shard`, ws, ids, steps, len(all))
	s := enrollment.Shard{Workspace: ws}
	_, err := pgx.ForEachRow(rows, []any{&s.Flow, &s.Number}, func() error { due[s] = true; return nil })
	return err
}
