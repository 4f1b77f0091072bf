package campaigns

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/audience"
	"lemma/lifecycle"
)

// Recheck yields the current rows of some profiles in the audience of a campaign. The
// sender calls it for notifications that have waited for long.
// found is false if there is no such campaign. While the audience cannot be read,
// the campaign shows the reason. It is paused if the error is permanent or lasts
// for RecheckTimeout.
func (c *Campaigns) Recheck(
	ctx context.Context, workspaceID, id uuid.UUID, profiles []string, yield func(audience.Row) error,
) (found bool, err error) {
	var audienceID uuid.UUID
	err = c.pool.QueryRow(ctx, `select audience_id from campaigns where workspace_id = $1 and id = $2`,
		workspaceID, id).Scan(&audienceID)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find audience of campaign %s: %w", id, err)
	}
	for some := range slices.Chunk(profiles, audience.MaxLookup) {
		if err = c.audiences.CurrentEach(ctx, workspaceID, audienceID, some, yield); err != nil {
			return true, errors.Join(err, c.unchecked(workspaceID, id, err))
		}
	}
	return true, c.checked(ctx, workspaceID, id)
}

// unchecked records why the audience cannot be read, and pauses the campaign if
// the error is permanent or the first failure is RecheckTimeout ago.
func (c *Campaigns) unchecked(workspaceID, id uuid.UUID, cause error) error {
	if lemma.KindOf(cause) == lemma.Internal { // an internal error, or the sender shuts down
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTime)
	defer cancel()
	var lasting bool
	var seen time.Time
	reason := reasonOf(cause)
	detail := "recipients that have waited for long are not sent to until the audience can be read again: " + lemma.Public(cause)
	err := c.pool.QueryRow(ctx, `
		update campaigns set unchecked_since = coalesce(unchecked_since, now()), status_reason = $3, status_detail = $4,
			updated_at = now()
		where workspace_id = $1 and id = $2 and status = 'sending'
		returning unchecked_since <= now() - $5::interval, now()`,
		workspaceID, id, reason, detail, c.cfg.RecheckTimeout).Scan(&lasting, &seen)
	if errors.Is(err, pgx.ErrNoRows) { // it is no longer being sent
		return nil
	}
	if err == nil && (lasting || lemma.KindOf(cause) != lemma.Unavailable) {
		c.log.Error("campaign paused: its audience cannot be read again", "campaign_id", id, "reason", reason, "error", cause)
		_, err = c.PauseFor(ctx, workspaceID, id, lifecycle.Cause{Reason: reason, Detail: detail, SeenAt: seen})
	}
	return lemma.Wrap(err, "record why campaign %s waits", id)
}

// checked clears the reason after the audience was read.
func (c *Campaigns) checked(ctx context.Context, workspaceID, id uuid.UUID) error {
	_, err := c.pool.Exec(ctx, `
		update campaigns set unchecked_since = null, status_reason = null, status_detail = null, updated_at = now()
		where workspace_id = $1 and id = $2 and status = 'sending' and unchecked_since is not null`, workspaceID, id)
	return lemma.Wrap(err, "clear why campaign %s waits", id)
}
