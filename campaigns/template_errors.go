package campaigns

import (
	"context"
	"errors"
	"fmt"

	"lemma"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/eventsout"
	"lemma/lifecycle"
)

// leastErrors is the number of notifications that must be skipped as
// template_error before their fraction counts.
const leastErrors = "10"

// renderCounts are the counters n of the batches of campaign $2 in workspace $1.
const renderCounts = `(
	select coalesce(sum((skips->>'template_error')::int), 0) as errors,
		coalesce(sum(size) filter (where status in ('leased', 'done') or sent + failed + orphaned + skipped + retried > 0), 0) as begun,
		coalesce(bool_or(status in ('ready', 'leased')), false) as unfinished
	from batches where workspace_id = $1 and origin_id = $2 and attempt = 1
) n`

// tooManyErrors is the condition of a campaign c whose template has failed for more
// than its limit of recipients, in batches that were begun since it was started or
// resumed. Recipients that are not rendered yet count as good. $3 is the limit of
// campaigns without their own, $4 are the statuses. A campaign that has nothing
// left to send is not paused.
const tooManyErrors = `c.workspace_id = $1 and c.id = $2 and c.status = any($4)
	and n.errors - c.errors_before >= ` + leastErrors + `
	and n.errors - c.errors_before > coalesce(c.template_error_limit, $3::float8) * (n.begun - c.ended_before)
	and (n.unfinished or exists (select from fanouts f where f.workspace_id = $1 and f.campaign_id = $2 and f.finished_at is null))`

// CheckTemplateErrors pauses a campaign if too many of its messages cannot be
// rendered, with the reason template_errors; last is the last error. An id of
// another origin and a campaign that is not being sent are ignored. The statement
// that pauses decides; a read without locks precedes it, since most calls pause
// nothing.
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
			update campaigns c set status = 'paused', paused_at = now(), version = version + 1, updated_at = now(),
				status_reason = 'template_errors',
				status_detail = format(
					'%s of %s messages could not be rendered, and more than %s %% pause the campaign; the last error: %s',
					n.errors - c.errors_before, n.begun - c.ended_before,
					trim_scale(round((coalesce(c.template_error_limit, $3::float8) * 100)::numeric, 2)), $5::text)
			from `+renderCounts+` where `+tooManyErrors, append(args, last)...)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return lifecycle.ErrRepeated // another process has paused it, or a client has resumed it
		}
		if err := recordEvent(ctx, tx, workspaceID, id, eventsout.CampaignPaused, "template_errors", ""); err != nil {
			return err
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

// resetErrors restarts the count of template errors, and sets the limit if it is
// not nil.
func resetErrors(ctx context.Context, tx pgx.Tx, workspaceID, id uuid.UUID, limit *float64) error {
	_, err := tx.Exec(ctx, `
		update campaigns set template_error_limit = coalesce($3, template_error_limit),
			(errors_before, ended_before) = (
				select coalesce(sum((skips->>'template_error')::int), 0), coalesce(sum(sent + failed + orphaned + skipped + retried), 0)
				from batches where workspace_id = $1 and origin_id = $2 and attempt = 1)
		where workspace_id = $1 and id = $2`, workspaceID, id, limit)
	return lemma.Wrap(err, "reset template errors of %s", id)
}
