package campaigns

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/audience"
)

// Recheck reads the rows that a campaign's audience has now of some profiles,
// by profile key, for the sender: they have waited for long. found is false
// when there is no such campaign. An audience that cannot be read is shown on
// the campaign while it is tried again, and pauses it when that is pointless or
// has lasted: what waits is not lost, and not sent unchecked.
func (c *Campaigns) Recheck(ctx context.Context, workspaceID, id uuid.UUID, profiles []string) (now map[string][]audience.Row, found bool, err error) {
	var audienceID uuid.UUID
	err = c.pool.QueryRow(ctx, `select audience_id from campaigns where workspace_id = $1 and id = $2`, workspaceID, id).Scan(&audienceID)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("find audience of campaign %s: %w", id, err)
	}
	now = make(map[string][]audience.Row, len(profiles))
	for some := range slices.Chunk(profiles, audience.MaxLookup) {
		err = c.audiences.LookupEach(ctx, workspaceID, audienceID, nil, some, func(row audience.Row) {
			now[row.Key] = append(now[row.Key], row)
		})
		if err != nil {
			return nil, true, errors.Join(err, c.unchecked(workspaceID, id, err))
		}
	}
	return now, true, c.checked(ctx, workspaceID, id)
}

// unchecked shows why a campaign waits. The first failure counts, and the time
// since it decides whether the campaign is paused.
func (c *Campaigns) unchecked(workspaceID, id uuid.UUID, cause error) error {
	if lemma.KindOf(cause) == lemma.Internal { // ours, or the sender shuts down
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), unheldTime)
	defer cancel()
	var lasting bool
	reason := reasonOf(cause)
	err := c.pool.QueryRow(ctx, `
		update campaigns set unchecked_since = coalesce(unchecked_since, now()), status_reason = $3, status_detail = $4, updated_at = now()
		where workspace_id = $1 and id = $2 and status = 'sending'
		returning unchecked_since <= now() - $5::interval`,
		workspaceID, id, reason, "recipients that have waited for long are held back until their audience can be read again: "+lemma.Public(cause), c.cfg.SourcePatience).Scan(&lasting)
	if errors.Is(err, pgx.ErrNoRows) { // it is not being sent any more
		return nil
	}
	if err == nil && (lasting || lemma.KindOf(cause) != lemma.Unavailable) {
		c.log.Error("campaign paused, its audience cannot be read again", "campaign_id", id, "reason", reason, "error", cause)
		err = c.PauseFor(ctx, workspaceID, id, reason, "recipients that have waited for long must be read again from their audience before they are called: "+lemma.Public(cause))
	}
	if err != nil {
		return fmt.Errorf("show why campaign %s waits: %w", id, err)
	}
	return nil
}

// checked takes the reason away when the audience could be read.
func (c *Campaigns) checked(ctx context.Context, workspaceID, id uuid.UUID) error {
	_, err := c.pool.Exec(ctx, `
		update campaigns set unchecked_since = null, status_reason = null, status_detail = null, updated_at = now()
		where workspace_id = $1 and id = $2 and status = 'sending' and unchecked_since is not null`, workspaceID, id)
	if err != nil {
		return fmt.Errorf("show that campaign %s goes on: %w", id, err)
	}
	return nil
}
