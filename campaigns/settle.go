package campaigns

import (
	"context"
	"errors"
	"fmt"

	"lemma"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/eventsout"
)

const (
	settleMost  = 1000           // campaigns that one call of Settle checks
	settleAmong = 5 * settleMost // campaigns that have been due longest, of which it chooses
)

// Settle completes campaigns whose audience was read to its end and whose batches
// have all ended. It reads the batches and not a counter, and reads them again
// under the lock of the campaign, since a chunk may have been written meanwhile.
func (c *Campaigns) Settle(ctx context.Context) (n int, err error) {
	ended, idle, err := c.checkDue(ctx)
	if err != nil {
		return 0, fmt.Errorf("find campaigns that have ended: %w", err)
	}
	failed := c.postpone(ctx, idle)
	for _, r := range ended {
		completed := false
		err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) (err error) {
			completed, err = settle(ctx, tx, r)
			return err
		})
		if err != nil { // one campaign that fails must not stop the others
			failed = errors.Join(failed, fmt.Errorf("settle campaign %s: %w", r.ID, err))
		} else if completed {
			n++
		}
	}
	return n, failed
}

// checkDue returns the campaigns that have ended, and those that cannot end while
// they are paused, since notifications wait or the audience was not read to its end. Of
// those that have been due longest, one of each workspace precedes the second of any, in
// random order.
func (c *Campaigns) checkDue(ctx context.Context) (ended, idle []ref, err error) {
	rows, _ := c.pool.Query(ctx, `
		select c.workspace_id, c.id, `+hasEnded+`,
			c.status = 'paused' and ((select true from batches b
				where b.workspace_id = c.workspace_id and b.origin_id = c.id and b.status in ('ready', 'leased')
					and b.status || '' = 'ready' limit 1) is not null -- with the plain column it would read the due batches of all
				or coalesce((select f.finished_at is null from fanouts f
					where f.workspace_id = c.workspace_id and f.campaign_id = c.id), false))
		from (
			select c.workspace_id, c.id, c.status from (
				select c.workspace_id, c.id, c.status from campaigns c
				where c.status in ('sending', 'paused') and c.settle_at <= now() order by c.settle_at limit $2
			) c
			order by row_number() over (partition by c.workspace_id order by random()), random() limit $1) c`, settleMost, settleAmong)
	var r ref
	var over, waits bool
	_, err = pgx.ForEachRow(rows, []any{&r.WorkspaceID, &r.ID, &over, &waits}, func() error {
		switch {
		case over:
			ended = append(ended, r)
		case waits:
			idle = append(idle, r)
		}
		return nil
	})
	return ended, idle, err
}

// postpone sets when idle campaigns are checked again, so that the cost of paused
// campaigns does not grow with their number: after half of the time for which they
// have been paused, an hour at most, and at their deadline. A resume makes them due.
func (c *Campaigns) postpone(ctx context.Context, idle []ref) error {
	if len(idle) == 0 {
		return nil
	}
	workspaces, ids := make([]uuid.UUID, len(idle)), make([]uuid.UUID, len(idle))
	for i, r := range idle {
		workspaces[i], ids[i] = r.WorkspaceID, r.ID
	}
	_, err := c.pool.Exec(ctx, `
		with idle as (
			select c.workspace_id, c.id from unnest($1::uuid[], $2::uuid[]) i (workspace_id, id)
			cross join lateral (
				select c.workspace_id, c.id from campaigns c where c.workspace_id = i.workspace_id and c.id = i.id
				  and c.status = 'paused' for no key update skip locked) c
			limit $3
		)
		update campaigns c set settle_at = least(c.send_deadline,
			now() + least(greatest((now() - c.paused_at) / 2, interval '5 seconds'), interval '1 hour'))
		from idle i where c.workspace_id = i.workspace_id and c.id = i.id`, workspaces, ids, settleMost)
	return lemma.Wrap(err, "postpone the check of paused campaigns")
}

// settle completes a campaign if it has ended.
func settle(ctx context.Context, tx pgx.Tx, r ref) (completed bool, err error) {
	if err := lockForVerb(ctx, tx, r.ID); err != nil {
		return false, err
	}
	tag, err := tx.Exec(ctx, `
		update campaigns c set status = 'completed', status_reason = null, status_detail = null,
			version = version + 1, updated_at = now(),
			finished_at = coalesce((select max(b.finished_at) from batches b
				where b.workspace_id = c.workspace_id and b.origin_id = c.id), now())
		where c.workspace_id = $1 and c.id = $2 and c.status in ('sending', 'paused')
		  and `+hasEnded, r.WorkspaceID, r.ID)
	if err != nil || tag.RowsAffected() == 0 {
		return false, err
	}
	if err := completeIteration(ctx, tx, r.WorkspaceID, r.ID); err != nil {
		return false, err
	}
	return true, recordEvent(ctx, tx, r.WorkspaceID, r.ID, eventsout.CampaignCompleted, "", "")
}

// hasEnded is true of a campaign c that is sending or paused, whose audience was read
// and whose batches have ended. The subqueries have one value, since for "exists" and "not
// exists" they may read the rows of all campaigns.
const hasEnded = `((select f.finished_at from fanouts f where f.workspace_id = c.workspace_id and f.campaign_id = c.id) is not null
	and (select true from batches b
		where b.workspace_id = c.workspace_id and b.origin_id = c.id and b.status in ('ready', 'leased') limit 1) is null
	and not ` + undecided + `)`
