package flows

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/lifecycle"
)

// verb is an operation on a flow.
type verb string

const (
	edit     verb = "update"
	remove   verb = "delete"
	publish  verb = "publish"
	rollback verb = "rollback"
	pause    verb = "pause"
	resume   verb = "resume"
	drain    verb = "drain"
	archive  verb = "archive"

	empty verb = "empty" // a draining flow has no active enrollment
)

// table is the only place that decides which status allows which verb. Publishing
// makes a draft live and keeps every other status. Resuming undoes a pause or a drain.
// Archived is final.
var table = lifecycle.Table[Status, verb]{
	Noun: "a flow",
	From: map[verb][]Status{
		edit:     {Draft, Live, Paused, Draining, Archived},
		remove:   {Draft},
		publish:  {Draft, Live, Paused, Draining},
		rollback: {Live, Paused, Draining},
		pause:    {Live, Draining},
		resume:   {Paused, Draining},
		drain:    {Live, Paused},
		archive:  {Draft, Live, Paused, Draining},

		empty: {Draining},
	},
	Public: []verb{edit, remove, publish, rollback, pause, resume, drain, archive},
}

// lockedFlow is a flow's row, locked until the verb's transaction ends.
type lockedFlow struct {
	Status      Status
	LiveVersion *int
	Version     int
	ResumedAt   *time.Time
}

// lockForVerb locks a flow for a verb. It refuses a verb that the status does not allow,
// or an ifMatch that differs from the row's version. Until the transaction ends, nothing
// enrolls or advances in the flow.
func lockForVerb(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, v verb, ifMatch *int) (lockedFlow, error) {
	if err := enrollment.LockFlow(ctx, tx, flow); err != nil {
		return lockedFlow{}, err
	}
	var h lockedFlow
	err := tx.QueryRow(ctx, `
		select status, live_version, version, resumed_at from flows where workspace_id = $1 and id = $2 for update`, ws, flow).
		Scan(&h.Status, &h.LiveVersion, &h.Version, &h.ResumedAt)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return lockedFlow{}, lemma.Missing("flow")
	case err != nil:
		return lockedFlow{}, fmt.Errorf("lock flow %s to %s it: %w", flow, v, err)
	case ifMatch != nil && *ifMatch != h.Version:
		return lockedFlow{}, lemma.Changed("flow")
	}
	return h, table.Check(h.Status, v)
}

// followStatus makes workers read the shards of a flow that has begun to advance, and no
// longer read those of one that has stopped.
func followStatus(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID) error {
	_, err := tx.Exec(ctx, `
		update flow_shards t set next_due_at = case when f.advances then '-infinity'::timestamptz end
		from (select id, status in ('live', 'draining') as advances from flows where workspace_id = $1 and id = $2) f
		where t.workspace_id = $1 and t.flow_id = f.id and f.advances = (t.next_due_at is null)`, ws, flow)
	return lemma.Wrap(err, "set the bounds of flow %s", flow)
}

// change is the update of a verb, as a compare-and-set on the status: set is the rest of
// the SET clause, and its arguments begin at $4.
func change(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, v verb, set string, args ...any) error {
	tag, err := tx.Exec(ctx, `
		update flows set version = version + 1, updated_at = now(), `+set+`
		where workspace_id = $1 and id = $2 and status = any($3)`, append([]any{ws, flow, table.From[v]}, args...)...)
	if err != nil {
		return fmt.Errorf("%s flow %s: %w", v, flow, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("%s flow %s: its row changed under the lock", v, flow)
	}
	return nil
}
