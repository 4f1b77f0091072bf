package campaigns

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/loop"
	"lemma/pgerr"
)

// Loop starts campaigns that are due, completes those that have ended, enqueues
// fan-outs without a job, and measures and evaluates experiments, until ctx ends. It may run in every process at once.
func (c *Campaigns) Loop(ctx context.Context) {
	var loops sync.WaitGroup
	loops.Go(func() { loop.Every(ctx, c.cfg.TickEvery, c.Tick, c.failed("tick")) })
	loops.Go(func() {
		loop.Every(ctx, c.cfg.Grace, func(ctx context.Context) error { _, err := c.Sweep(ctx); return err }, c.failed("sweep"))
	})
	loops.Go(func() {
		loop.Every(ctx, c.cfg.TickEvery, c.inBackground(&loops, "evaluation", c.startEvaluations), c.failed("evaluation"))
	})
	loops.Go(func() {
		loop.Every(ctx, c.cfg.TickEvery, c.inBackground(&loops, "guardrail", c.startChecks), c.failed("guardrail"))
	})
	loops.Go(func() {
		loop.Every(ctx, c.cfg.TickEvery, c.inBackground(&loops, "measurement", c.startMeasurements), c.failed("measurement"))
	})
	loops.Wait()
}

func (c *Campaigns) failed(what string) func(error) {
	return func(err error) { c.log.Error("campaigns "+what+" failed", "error", err) }
}

// Tick starts campaigns whose scheduled time has come, and completes those that have ended.
func (c *Campaigns) Tick(ctx context.Context) error {
	_, fired := c.FireDue(ctx)
	_, settled := c.Settle(ctx)
	return errors.Join(fired, settled)
}

// fireWait is how long the start of a campaign waits for a lock, such as that of its audience, which is being
// changed. Then the campaigns of its workspace are left to the next tick: others do not wait with them.
const (
	fireWait         = "200ms"
	lockNotAvailable = "55P03" // lock_not_available
)

type ref struct{ WorkspaceID, ID uuid.UUID }

// FireDue starts campaigns whose scheduled time has come, by the clock of the
// database. Each start is conditional on the status and the time, so one process starts
// it, and a campaign that is postponed meanwhile is not started.
func (c *Campaigns) FireDue(ctx context.Context) (int, error) {
	due, err := c.refs(ctx, `
		select c.workspace_id, c.id from campaigns c where c.status = 'scheduled' and c.scheduled_at <= now()
		order by `+fairly+` limit 100`)
	if err != nil {
		return 0, fmt.Errorf("find due campaigns: %w", err)
	}
	fired, waits := 0, map[uuid.UUID]bool{}
	err = loop.Each(ctx, due, func(r ref) error {
		if waits[r.WorkspaceID] {
			return nil
		}
		err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `select set_config('lock_timeout', $1, true)`, fireWait); err != nil {
				return err
			}
			return c.start(ctx, tx, r.WorkspaceID, r.ID, fire)
		})
		switch {
		case err == nil:
			fired++
		case pgerr.Is(err, lockNotAvailable):
			waits[r.WorkspaceID] = true
		case lemma.KindOf(err) != lemma.WrongStatus: // otherwise it was started or postponed meanwhile
			return fmt.Errorf("start campaign %s: %w", r.ID, err)
		}
		return nil
	})
	return fired, err
}

// Sweep enqueues fan-outs that are not finished, have no lease and no job in River's queue
// that is available or runs soon: River schedules jobs, and makes them available, by clocks
// of processes, which may be wrong.
func (c *Campaigns) Sweep(ctx context.Context) (int, error) {
	idle, err := c.refs(ctx, `
		select c.workspace_id, c.id from campaigns c
		join fanouts f on f.workspace_id = c.workspace_id and f.campaign_id = c.id
		where c.status in ('preparing', 'sending') and f.finished_at is null and f.retry_at < now()
		  and (f.lease_until is null or f.lease_until < now())
		  and not exists (select from river_job j where j.kind = 'campaign_fanout'
			and j.state in ('available', 'scheduled', 'retryable', 'pending')
			and (j.args->>'campaign_id')::uuid = c.id
			and (j.state = 'available' or j.scheduled_at > now() - interval '10 minutes') and j.scheduled_at < now() + interval '10 minutes')
		order by `+fairly+` limit 100`)
	if err != nil {
		return 0, fmt.Errorf("find fan-outs without a job: %w", err)
	}
	enqueued := 0
	err = loop.Each(ctx, idle, func(r ref) error {
		err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error { return c.enqueue(ctx, tx, r.WorkspaceID, r.ID) })
		if err == nil {
			enqueued++
		}
		return err
	})
	return enqueued, err
}

// fairly orders campaigns so that one of each workspace precedes the second of any. The order
// is random otherwise: many of a workspace that fail each time do not hide the others of it.
const fairly = `row_number() over (partition by c.workspace_id order by random()), random()`

func (c *Campaigns) refs(ctx context.Context, sql string, args ...any) ([]ref, error) {
	rows, _ := c.pool.Query(ctx, sql, args...)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[ref])
}
