package campaigns

import (
	"context"
	"encoding/binary"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/eventsout"
	"lemma/fence"
	"lemma/lifecycle"
	"lemma/notifications"
)

// Pause stops a campaign: after it returns, no further window opens. Notifications
// in an open window are in flight and end by themselves.
func (c *Campaigns) Pause(ctx context.Context, workspaceID, id, request uuid.UUID) (Campaign, error) {
	return c.done(ctx, workspaceID, id, request, c.halt(ctx, workspaceID, id, request, lifecycle.Cause{Reason: "requested"}))
}

// PauseFor pauses a campaign because of an internal reason, such as a failing
// provider. A campaign that is not running, or was resumed after the cause, stays unchanged.
func (c *Campaigns) PauseFor(ctx context.Context, workspaceID, id uuid.UUID, cause lifecycle.Cause) (paused bool, err error) {
	err = c.halt(ctx, workspaceID, id, uuid.Nil, cause)
	if k := lemma.KindOf(err); k == lemma.WrongStatus || k == lemma.NotFound {
		return false, nil
	}
	return err == nil, err
}

func (c *Campaigns) halt(ctx context.Context, workspaceID, id, request uuid.UUID, cause lifecycle.Cause) error {
	return fence.Transact(ctx, c.pool, func(tx pgx.Tx) error {
		if err := lockForVerb(ctx, tx, id); err != nil {
			return err
		}
		if err := c.haltIn(ctx, tx, workspaceID, id, cause); err != nil {
			return err
		}
		return recordRequest(ctx, tx, workspaceID, id, pause, request)
	})
}

// haltIn pauses a campaign in the caller's transaction, which has the lock of verbs.
func (c *Campaigns) haltIn(ctx context.Context, tx pgx.Tx, workspaceID, id uuid.UUID, cause lifecycle.Cause) error {
	err := move(ctx, tx, workspaceID, id, pause,
		`status = 'paused', paused_at = now(), status_reason = $4, status_detail = nullif($5, '')`,
		cause.Reason, cause.Detail, cause.Seen())
	if err != nil {
		return err
	}
	if err := c.ledger.Hold(ctx, tx, workspaceID, id); err != nil {
		return err
	}
	return recordEvent(ctx, tx, workspaceID, id, eventsout.CampaignPaused, cause.Reason, cause.Detail)
}

// Resume continues a paused campaign: it opens the gate of its batches. An audience
// that was not read to its end is read again, which adds only recipients that are
// missing.
func (c *Campaigns) Resume(ctx context.Context, workspaceID, id, request uuid.UUID) (Campaign, error) {
	return c.ResumeWith(ctx, workspaceID, id, request, nil)
}

// ResumeWith is Resume with another limit of template errors, if it is not nil. The
// count of template errors restarts.
func (c *Campaigns) ResumeWith(ctx context.Context, workspaceID, id, request uuid.UUID, templateErrors *float64) (Campaign, error) {
	err := fence.Transact(ctx, c.pool, func(tx pgx.Tx) error {
		err := move(ctx, tx, workspaceID, id, resume, `status = case when sending_at is null then 'preparing' else 'sending' end,
			paused_at = null, resumed_at = now(), settle_at = now(), unchecked_since = null, status_reason = null, status_detail = null`)
		if err != nil {
			return err
		}
		if err := resetErrors(ctx, tx, workspaceID, id, templateErrors); err != nil {
			return err
		}
		if err := c.ledger.Unhold(ctx, tx, workspaceID, id); err != nil {
			return err
		}
		if err := c.enqueue(ctx, tx, workspaceID, id); err != nil {
			return err
		}
		return recordRequest(ctx, tx, workspaceID, id, resume, request)
	})
	return c.done(ctx, workspaceID, id, request, err)
}

// Cancel ends a campaign: after it returns, no chunk is written and no window
// opens. It also returns how many notifications were in open windows at that time,
// and how many were cancelled. A repeated request returns the present numbers.
func (c *Campaigns) Cancel(ctx context.Context, workspaceID, id, request uuid.UUID) (Campaign, notifications.Cancelled, error) {
	var found notifications.Cancelled
	err := fence.Transact(ctx, c.pool, func(tx pgx.Tx) (err error) {
		if err = lockForVerb(ctx, tx, id); err != nil {
			return err
		}
		err = move(ctx, tx, workspaceID, id, cancel,
			`status = 'cancelled', status_reason = 'requested', status_detail = null, finished_at = now()`)
		if err != nil {
			return err
		}
		if found, err = c.ledger.Cancel(ctx, tx, workspaceID, id); err != nil {
			return err
		}
		if err = cancelIteration(ctx, tx, workspaceID, id, "campaign_cancelled"); err != nil {
			return err
		}
		return recordRequest(ctx, tx, workspaceID, id, cancel, request)
	})
	now, repeated := c.done(ctx, workspaceID, id, request, err)
	if err != nil && repeated == nil {
		found, repeated = notifications.ReadCancelled(ctx, c.pool, workspaceID, id)
	}
	return now, found, repeated
}

// lockForVerb locks a campaign for a verb that stops or ends it. Chunks share this
// lock. It precedes the lock of the row because it is fair: a row lock that others
// share again and again may never be acquired.
func lockForVerb(ctx context.Context, tx pgx.Tx, id uuid.UUID) error {
	_, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, lockKey(id))
	return lemma.Wrap(err, "wait for chunks of %s", id)
}

func lockForChunk(ctx context.Context, tx pgx.Tx, id uuid.UUID) error {
	_, err := tx.Exec(ctx, `select pg_advisory_xact_lock_shared($1)`, lockKey(id))
	return lemma.Wrap(err, "lock campaign %s for a chunk", id)
}

// lockKey is the random half of an id. Campaigns with the same key only wait for each other.
func lockKey(id uuid.UUID) int64 { return int64(binary.BigEndian.Uint64(id[8:])) }
