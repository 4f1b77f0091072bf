package campaigns

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma"
)

// serveFor bounds how long one job runs the fan-outs of others. Each of them has a job of its own.
const serveFor = time.Minute

// serve runs the fan-outs that may begin now, of all workspaces in turn. River has the jobs of a queue run in
// their order: so thousands of jobs of one workspace, which wait for its limit, do not delay the
// fan-outs of others whose jobs are behind them.
func (c *Campaigns) serve(ctx context.Context) error {
	for until := time.Now().Add(serveFor); c.draining.Err() == nil && time.Now().Before(until); {
		next, err := c.inTurn(ctx)
		if err != nil || next == (ref{}) {
			return err
		}
		err = lemma.Recovered(func() error {
			again, err := c.Fanout(ctx, next.WorkspaceID, next.ID)
			if err != nil || again == 0 {
				return err
			}
			return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error { return c.enqueueIn(ctx, tx, next, again) })
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// inTurn finds a fan-out that may begin now: of a workspace at random, the oldest. Without one the
// reference is zero.
func (c *Campaigns) inTurn(ctx context.Context) (next ref, err error) {
	err = c.pool.QueryRow(ctx, `
		with recursive w as (
			(select workspace_id from campaigns where status in ('preparing', 'sending') order by workspace_id limit 1)
			union all
			select (select c.workspace_id from campaigns c
				where c.status in ('preparing', 'sending') and c.workspace_id > w.workspace_id order by c.workspace_id limit 1)
			from w where w.workspace_id is not null
		)
		select n.workspace_id, n.id
		from (select workspace_id from w where workspace_id is not null order by random()) w
		cross join lateral (
			select c.workspace_id, c.id
			from campaigns c
			join fanouts f on f.workspace_id = c.workspace_id and f.campaign_id = c.id
			join audiences a on a.workspace_id = c.workspace_id and a.id = c.audience_id
			where c.workspace_id = w.workspace_id and c.status in ('preparing', 'sending')
			  and f.finished_at is null and f.leased_by is null and f.retry_at <= now()
			  and `+readInWorkspace+` < $1 and `+readOfSource+` < $2
			order by c.id limit 1
		) n limit 1`, c.cfg.PerWorkspace, c.cfg.PerSource).Scan(&next.WorkspaceID, &next.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		return ref{}, nil
	}
	if err != nil {
		return ref{}, fmt.Errorf("find a fan-out that may begin: %w", err)
	}
	return next, nil
}
