package campaigns

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Loop starts what is due, completes what has ended, and rings again for
// fan-outs that lie still, until ctx ends. It is safe on every node at once.
func (c *Campaigns) Loop(ctx context.Context) {
	tick, sweep := time.NewTicker(c.cfg.TickEvery), time.NewTicker(c.cfg.Grace)
	defer tick.Stop()
	defer sweep.Stop()
	for {
		var what string
		var err error
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			what, err = "tick", c.Tick(ctx)
		case <-sweep.C:
			what = "sweep"
			_, err = c.Sweep(ctx)
		}
		if err != nil && ctx.Err() == nil {
			c.log.Error("campaigns "+what+" failed", "error", err)
		}
	}
}

// Tick starts campaigns whose schedule fell due and completes those that have ended.
func (c *Campaigns) Tick(ctx context.Context) error {
	if _, err := c.FireDue(ctx); err != nil {
		return err
	}
	_, err := c.Settle(ctx)
	return err
}

type ref struct{ WorkspaceID, ID uuid.UUID }

// FireDue starts campaigns whose scheduled time has come, by the database's
// clock. Each start is a compare-and-set, so of several nodes one starts it.
func (c *Campaigns) FireDue(ctx context.Context) (int, error) {
	due, err := c.refs(ctx, `select workspace_id, id from campaigns where status = 'scheduled' and scheduled_at <= now() order by id limit 100`)
	if err != nil {
		return 0, fmt.Errorf("find due campaigns: %w", err)
	}
	fired := 0
	for _, r := range due {
		err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error { return c.start(ctx, tx, r.WorkspaceID, r.ID, fire) })
		if err != nil {
			c.log.Warn("scheduled campaign not started", "campaign_id", r.ID, "error", err)
			continue
		}
		fired++
	}
	return fired, nil
}

// Settle completes campaigns of which nothing is on its way: the audience was
// read to its end, and every batch has ended. It is one statement over the
// rows themselves, so no counter can lie to it.
func (c *Campaigns) Settle(ctx context.Context) (int, error) {
	tag, err := c.pool.Exec(ctx, `
		update campaigns c set status = 'completed', status_reason = null, status_detail = null, version = version + 1, updated_at = now(),
			finished_at = greatest(f.finished_at, (select max(b.finished_at) from batches b where b.workspace_id = c.workspace_id and b.origin_id = c.id))
		from fanouts f
		where c.status = any($1) and f.workspace_id = c.workspace_id and f.campaign_id = c.id and f.finished_at is not null
		  and not exists (select from batches b where b.workspace_id = c.workspace_id and b.origin_id = c.id and b.state in ('ready', 'leased'))`,
		from[complete])
	if err != nil {
		return 0, fmt.Errorf("settle campaigns: %w", err)
	}
	return int(tag.RowsAffected()), nil
}

// Sweep rings again for campaigns whose fan-out is neither finished, nor held
// by anybody, nor waiting in River's queue.
func (c *Campaigns) Sweep(ctx context.Context) (int, error) {
	still, err := c.refs(ctx, `
		select c.workspace_id, c.id from campaigns c
		join fanouts f on f.workspace_id = c.workspace_id and f.campaign_id = c.id
		where c.status in ('preparing', 'sending') and f.finished_at is null and f.retry_at < now()
		  and (f.lease_until is null or f.lease_until < now())
		  and not exists (select from river_job j where j.kind = 'campaign_fanout'
			and j.state in ('available', 'scheduled', 'retryable', 'pending')
			and j.args @> jsonb_build_object('campaign_id', c.id))
		order by c.id limit 100`)
	if err != nil {
		return 0, fmt.Errorf("find fan-outs without a job: %w", err)
	}
	for _, r := range still {
		err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error { return c.ring(ctx, tx, r.WorkspaceID, r.ID) })
		if err != nil {
			return 0, err
		}
	}
	return len(still), nil
}

func (c *Campaigns) refs(ctx context.Context, sql string) ([]ref, error) {
	rows, err := c.pool.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[ref])
}
