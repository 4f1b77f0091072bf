package campaigns

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/notifications"
)

// Pause stops a campaign: once it answers, no further window opens. Rows that
// stand in an open window are in flight and end by themselves.
func (c *Campaigns) Pause(ctx context.Context, workspaceID, id, request uuid.UUID) (Campaign, error) {
	return c.done(ctx, workspaceID, id, request, c.halt(ctx, workspaceID, id, request, "requested", ""))
}

// PauseFor pauses a campaign for a reason of Lemma's own, such as a provider
// that fails. One that is not running is left as it is.
func (c *Campaigns) PauseFor(ctx context.Context, workspaceID, id uuid.UUID, reason, detail string) error {
	err := c.halt(ctx, workspaceID, id, uuid.Nil, reason, detail)
	if k := lemma.KindOf(err); k == lemma.WrongStatus || k == lemma.NotFound {
		return nil
	}
	return err
}

func (c *Campaigns) halt(ctx context.Context, workspaceID, id, request uuid.UUID, reason, detail string) error {
	return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		if err := lockForVerb(ctx, tx, id); err != nil {
			return err
		}
		err := move(ctx, tx, workspaceID, id, pause, `status = 'paused', paused_at = now(), status_reason = $4, status_detail = nullif($5, '')`, reason, detail)
		if err != nil {
			return err
		}
		if err := c.ledger.Hold(ctx, tx, workspaceID, id); err != nil {
			return err
		}
		return note(ctx, tx, workspaceID, id, pause, request)
	})
}

// Resume goes on where the pause stopped: the gate of the batches is opened,
// and an audience that was not read to its end is read again, which adds only
// who is not there yet.
func (c *Campaigns) Resume(ctx context.Context, workspaceID, id, request uuid.UUID) (Campaign, error) {
	return c.ResumeWith(ctx, workspaceID, id, request, nil)
}

// ResumeWith is Resume with another limit of template errors, if one is given.
// The errors until now are forgiven: their share counts anew from here.
func (c *Campaigns) ResumeWith(ctx context.Context, workspaceID, id, request uuid.UUID, templateErrors *float64) (Campaign, error) {
	err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		err := move(ctx, tx, workspaceID, id, resume, `status = case when sending_at is null then 'preparing' else 'sending' end,
			paused_at = null, unchecked_since = null, status_reason = null, status_detail = null`)
		if err != nil {
			return err
		}
		if err := forgiveErrors(ctx, tx, workspaceID, id, templateErrors); err != nil {
			return err
		}
		if err := c.ledger.Unhold(ctx, tx, workspaceID, id); err != nil {
			return err
		}
		if err := c.ring(ctx, tx, workspaceID, id); err != nil {
			return err
		}
		return note(ctx, tx, workspaceID, id, resume, request)
	})
	return c.done(ctx, workspaceID, id, request, err)
}

// Cancel ends a campaign: once it answers, no chunk is written and no window
// opens. It also answers how many rows stood in open windows at that moment
// and how many never will be called, or where a request is repeated are now.
func (c *Campaigns) Cancel(ctx context.Context, workspaceID, id, request uuid.UUID) (Campaign, notifications.Cancelled, error) {
	var found notifications.Cancelled
	err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) (err error) {
		if err = lockForVerb(ctx, tx, id); err != nil {
			return err
		}
		err = move(ctx, tx, workspaceID, id, cancel, `status = 'cancelled', status_reason = 'requested', status_detail = null, finished_at = now()`)
		if err != nil {
			return err
		}
		if found, err = c.ledger.Cancel(ctx, tx, workspaceID, id); err != nil {
			return err
		}
		return note(ctx, tx, workspaceID, id, cancel, request)
	})
	now, repeated := c.done(ctx, workspaceID, id, request, err)
	if err != nil && repeated == nil {
		found, repeated = notifications.ReadCancelled(ctx, c.pool, workspaceID, id)
	}
	return now, found, repeated
}

// Chunks share a lock on their campaign, and the verbs that end or stop it take
// it alone. It stands in front of the row's own lock because it is fair: who
// waits for a row that others go on sharing may wait for ever.
func lockForVerb(ctx context.Context, tx pgx.Tx, id uuid.UUID) error {
	if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, lockKey(id)); err != nil {
		return fmt.Errorf("wait for chunks of %s: %w", id, err)
	}
	return nil
}

func lockForChunk(ctx context.Context, tx pgx.Tx, id uuid.UUID) error {
	if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock_shared($1)`, lockKey(id)); err != nil {
		return fmt.Errorf("share campaign %s: %w", id, err)
	}
	return nil
}

// lockKey is the random half of an id. Two campaigns that share one wait for
// each other, and nothing worse.
func lockKey(id uuid.UUID) int64 { return int64(binary.BigEndian.Uint64(id[8:])) }
