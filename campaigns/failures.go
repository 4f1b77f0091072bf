package campaigns

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/lifecycle"
	"lemma/pgerr"
)

const (
	internalRetries = 20          // in a row, for some 17 minutes
	internalPause   = time.Minute // the longest between them
)

// internalFailed decides what an error of Lemma's own means, the nth in a row. One of its database, whose
// disk may be full, is repeated for as long as it lasts. Others, such as a wrong secret key, pause the
// campaign in the end. None of them fails it: what was written stays, and a resume continues.
func (c *Campaigns) internalFailed(ctx context.Context, l lease, n int, cause error) (time.Duration, error) {
	if n > internalRetries && !ofDatabase(cause) {
		c.log.Error("campaign paused: its fan-out fails", "campaign_id", l.campaignID, "failures", n, "error", cause)
		return 0, c.pauseFailing(ctx, l)
	}
	after := min(c.cfg.RetryFor<<min(n-1, 10), internalPause)
	c.log.Error("fan-out failed and will be retried", "campaign_id", l.campaignID, "failures", n, "after", after, "error", cause)
	again, err := c.retryLater(ctx, l, release{after: after, internalFailed: true})
	if again > 0 && err == nil {
		err = c.showFailing(ctx, l)
	}
	return again, err
}

// showFailing records on the campaign that its fan-out fails and is repeated.
func (c *Campaigns) showFailing(ctx context.Context, l lease) error {
	_, err := c.pool.Exec(ctx, `
		update campaigns set status_reason = $3, status_detail = $4
		where workspace_id = $1 and id = $2 and status in ('preparing', 'sending') and status_reason is null
			and exists (select from fanouts where workspace_id = $1 and campaign_id = $2 and leased_by is null and retry_at > now())`,
		l.workspaceID, l.campaignID, lemma.Internal,
		"the fan-out fails because of an error of Lemma, or of its database, and is repeated; see its log")
	return lemma.Wrap(err, "show the failure of fan-out %s", l.campaignID)
}

// ofDatabase reports an error of the state of Lemma's own database, and not of the statement: away, out of
// resources, or an error of its files (class 58). One that takes too long, or waits for a lock, may do so each time.
func ofDatabase(err error) bool {
	return pgerr.Away(err) && !pgerr.Is(err, "57014", "55P03") || pgerr.Is(err, "58")
}

// pauseFailing pauses a campaign whose fan-out fails, if the run still holds the lease, as fail does. A
// resume begins the count anew.
func (c *Campaigns) pauseFailing(ctx context.Context, l lease) error {
	err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		if err := lockForVerb(ctx, tx, l.campaignID); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			update fanouts set leased_by = null, lease_until = null, internal_failures = 0
			where workspace_id = $1 and campaign_id = $2 and leased_by = $3 and finished_at is null`,
			l.workspaceID, l.campaignID, l.token)
		if err != nil || !c.wasHeld(l, tag.RowsAffected()) {
			return err
		}
		return c.haltIn(ctx, tx, l.workspaceID, l.campaignID, lifecycle.Cause{Reason: string(lemma.Internal),
			Detail: "the fan-out fails because of an error of Lemma; search its log before you resume"})
	})
	if lemma.KindOf(err) == lemma.WrongStatus { // the campaign was paused or cancelled meanwhile
		_, err = c.releaseFanout(ctx, l, release{})
	}
	return lemma.Wrap(err, "pause campaign %s", l.campaignID)
}
