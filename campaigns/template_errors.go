package campaigns

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/lifecycle"
)

// leastErrors is how many notifications must have been skipped as
// template_error before their share counts: a few errors among few recipients
// are no reason to wait for a person.
const leastErrors = "10"

// renderCounts are the counters n of a campaign's batches, which $1 and $2 name.
const renderCounts = `(
	select coalesce(sum((skips->>'template_error')::int), 0) as errors,
		coalesce(sum(size) filter (where status in ('leased', 'done') or sent + failed + orphaned + skipped + retried > 0), 0) as begun,
		coalesce(bool_or(status in ('ready', 'leased')), false) as unfinished
	from batches where workspace_id = $1 and origin_id = $2 and attempt = 1
) n`

// tooManyErrors is true of a campaign c whose template failed too often since
// it was started or resumed: for more than its limit of the recipients in the
// batches that were begun since then. Those of them that are not yet rendered
// count as good, so the share is never overstated. $3 is the limit of campaigns
// without one of their own, $4 are the statuses. What has nothing left to send
// is not paused.
const tooManyErrors = `c.workspace_id = $1 and c.id = $2 and c.status = any($4)
	and n.errors - c.errors_before >= ` + leastErrors + `
	and n.errors - c.errors_before > coalesce(c.template_error_limit, $3::float8) * (n.begun - c.ended_before)
	and (n.unfinished or exists (select from fanouts f where f.workspace_id = $1 and f.campaign_id = $2 and f.finished_at is null))`

// CheckTemplateErrors pauses a campaign of which too many messages cannot be
// rendered, with the reason template_errors; last is the last error. What is no
// campaign, or is not being sent, is left as it is. The counters of the batches
// decide, in the statement that pauses; a read without locks comes first, since
// most calls find nothing to do.
func (c *Campaigns) CheckTemplateErrors(ctx context.Context, workspaceID, id uuid.UUID, last string) error {
	args := []any{workspaceID, id, c.cfg.TemplateErrorLimit, table.From[pause]}
	var found bool
	err := c.pool.QueryRow(ctx, `select exists (select from campaigns c, `+renderCounts+` where `+tooManyErrors+`)`, args...).Scan(&found)
	if err != nil {
		return fmt.Errorf("count template errors of %s: %w", id, err)
	}
	if !found {
		return nil
	}
	err = pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		if err := lockForVerb(ctx, tx, id); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			update campaigns c set status = 'paused', paused_at = now(), version = version + 1, updated_at = now(), status_reason = 'template_errors',
				status_detail = format('%s of %s messages could not be rendered, and more than %s %% pause the campaign; the last error: %s',
					n.errors - c.errors_before, n.begun - c.ended_before, trim_scale(round((coalesce(c.template_error_limit, $3::float8) * 100)::numeric, 2)), $5::text)
			from `+renderCounts+` where `+tooManyErrors, append(args, last)...)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return lifecycle.ErrRepeated // another node has paused it, or a person has resumed it
		}
		return c.ledger.Hold(ctx, tx, workspaceID, id)
	})
	switch {
	case errors.Is(err, lifecycle.ErrRepeated):
		return nil
	case err != nil:
		return fmt.Errorf("pause %s for template errors: %w", id, err)
	}
	c.metrics.pausedForErrors()
	c.log.Warn("campaign paused: too many messages cannot be rendered", "campaign_id", id, "error", last)
	return nil
}

// forgiveErrors makes the share of template errors count anew from here, and
// sets another limit where one is given.
func forgiveErrors(ctx context.Context, tx pgx.Tx, workspaceID, id uuid.UUID, limit *float64) error {
	_, err := tx.Exec(ctx, `
		update campaigns set template_error_limit = coalesce($3, template_error_limit),
			(errors_before, ended_before) = (
				select coalesce(sum((skips->>'template_error')::int), 0), coalesce(sum(sent + failed + orphaned + skipped + retried), 0)
				from batches where workspace_id = $1 and origin_id = $2 and attempt = 1)
		where workspace_id = $1 and id = $2`, workspaceID, id, limit)
	if err != nil {
		return fmt.Errorf("reset template errors of %s: %w", id, err)
	}
	return nil
}
