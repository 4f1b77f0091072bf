package sender

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lemma/notifications"
)

const sweepLot = 500

// Sweep rings for batches that are due and have no bell: River's table was
// truncated, a job was discarded, or a shard was written and its job was not.
// It answers with the number it rang for. A bell too many does no harm.
func (s *Sender) Sweep(ctx context.Context) (int, error) {
	if err := s.expireLate(ctx); err != nil {
		return 0, err
	}
	silent, err := s.silent(ctx)
	if err != nil {
		return 0, err
	}
	rung := 0
	for _, ref := range silent {
		ok, err := s.ringAgain(ctx, ref)
		if err != nil {
			return rung, err
		}
		if ok {
			rung++
		}
	}
	if rung > 0 {
		s.log.Warn("rang again for batches without a job", "batches", rung)
	}
	s.metrics.swept(rung)
	return rung, nil
}

// expireLate ends batches that wait although their send deadline has passed,
// so that a campaign does not stay open for the sake of what is not to be sent.
func (s *Sender) expireLate(ctx context.Context) error {
	rows, err := s.pool.Query(ctx, `
		select workspace_id, origin_id, id from batches where status = 'ready' and expires_at <= now() limit $1`, sweepLot)
	if err != nil {
		return fmt.Errorf("find expired batches: %w", err)
	}
	late, err := pgx.CollectRows(rows, pgx.RowToStructByPos[notifications.Ref])
	if err != nil {
		return fmt.Errorf("find expired batches: %w", err)
	}
	for _, ref := range late {
		if err := s.Expire(ctx, ref); err != nil {
			return err
		}
	}
	return nil
}

// silent finds due batches for which no job waits. A job that is running says
// nothing: its worker may be dead, and a living one holds the lease. Batches
// behind an open circuit wait for a probe that is due, and for no longer.
func (s *Sender) silent(ctx context.Context) ([]notifications.Ref, error) {
	rows, err := s.pool.Query(ctx, `
		select b.workspace_id, b.origin_id, b.id from batches b
		where b.status = 'ready' and b.gate = 'open' and b.due_at < now() - $1::interval and b.enqueued_at < now() - $1::interval
		  and not exists (
			select from river_job j
			where j.kind = 'batch_send' and j.state in ('available', 'scheduled', 'retryable', 'pending')
			  and (j.args->>'batch_id')::uuid = b.id)
		  and not exists (
			select from provider_meters m
			where m.workspace_id = b.workspace_id and m.provider_id = b.provider_id and m.open_until > now() - $1::interval)
		order by b.due_at limit $2`, s.cfg.SweepGrace, sweepLot)
	if err != nil {
		return nil, fmt.Errorf("find batches without a job: %w", err)
	}
	silent, err := pgx.CollectRows(rows, pgx.RowToStructByPos[notifications.Ref])
	if err != nil {
		return nil, fmt.Errorf("find batches without a job: %w", err)
	}
	return silent, nil
}

// ringAgain takes the right to ring by compare-and-set, so that of several
// sweeps one rings.
func (s *Sender) ringAgain(ctx context.Context, ref notifications.Ref) (rang bool, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			update batches set enqueued_at = now()
			where workspace_id = $1 and origin_id = $2 and id = $3 and `+isReady+` and enqueued_at < now() - $4::interval`,
			ref.WorkspaceID, ref.OriginID, ref.BatchID, s.cfg.SweepGrace)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		rang = true
		return s.ledger.Enqueue(ctx, tx, []notifications.Job{{Ref: ref}})
	})
	if err != nil {
		return false, fmt.Errorf("ring again for batch %s: %w", ref.BatchID, err)
	}
	return rang, nil
}
