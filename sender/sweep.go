package sender

import (
	"context"
	"errors"
	"fmt"

	"lemma"

	"github.com/jackc/pgx/v5"

	"lemma/notifications"
)

const sweepMost = 500

// Sweep enqueues due batches without a job, after River's table was truncated or a job
// was discarded, and returns their number. A job too many does no harm.
func (s *Sender) Sweep(ctx context.Context) (int, error) {
	failed := s.expireLate(ctx)
	due, err := s.withoutJob(ctx)
	failed = errors.Join(failed, err)
	enqueued := 0
	for _, ref := range due {
		ok, err := s.enqueueAgain(ctx, ref)
		failed = errors.Join(failed, err)
		if ok {
			enqueued++
		}
	}
	if enqueued > 0 {
		s.log.Warn("enqueued due batches without a job", "batches", enqueued)
	}
	s.metrics.swept(enqueued)
	return enqueued, failed
}

// expireAmong is how many batches, whose deadlines passed first, expireLate chooses from at
// random, so that processes expire different ones.
const expireAmong = 10 * sweepMost

// expireLate ends waiting batches whose send deadline has passed, so that they do not
// keep a campaign open. One that fails does not stop the others.
func (s *Sender) expireLate(ctx context.Context) error {
	rows, _ := s.pool.Query(ctx, `
		select workspace_id, origin_id, id from (
			select workspace_id, origin_id, id from batches where status = 'ready' and expires_at <= now() order by expires_at limit $2
		) b order by random() limit $1`, sweepMost, expireAmong)
	late, err := pgx.CollectRows(rows, pgx.RowToStructByPos[notifications.Ref])
	if err != nil {
		return fmt.Errorf("find expired batches: %w", err)
	}
	var failed error
	for _, ref := range late {
		if ctx.Err() != nil {
			break
		}
		failed = errors.Join(failed, s.Expire(ctx, ref))
	}
	return failed
}

// withoutJob reads due batches without a waiting job. A running job does not count:
// its worker may have crashed, and a running worker holds the lease. A job that is scheduled for
// another time does not count either: River schedules jobs, and makes them available, by
// clocks of processes, which may be wrong. Batches behind an open circuit count when their
// probe is overdue.
func (s *Sender) withoutJob(ctx context.Context) ([]notifications.Ref, error) {
	rows, _ := s.pool.Query(ctx, `
		select b.workspace_id, b.origin_id, b.id from batches b
		where b.status = 'ready' and b.gate = 'open' and b.due_at < now() - $1::interval and b.enqueued_at < now() - $1::interval
		  and not exists (
			select from river_job j
			where j.kind = 'batch_send' and j.state in ('available', 'scheduled', 'retryable', 'pending')
			  and (j.args->>'batch_id')::uuid = b.id
			  and (j.state = 'available' or j.scheduled_at > now() - $1::interval and j.scheduled_at < now() + $1::interval))
		  and not exists (
			select from provider_meters m
			where m.workspace_id = b.workspace_id and m.provider_id = b.provider_id and m.open_until > now() - $1::interval)
		order by b.due_at limit $2`, s.cfg.SweepGrace, sweepMost)
	due, err := pgx.CollectRows(rows, pgx.RowToStructByPos[notifications.Ref])
	return due, lemma.Wrap(err, "find batches without a job")
}

// enqueueAgain sets enqueued_at by compare-and-set, so that of several sweeps one
// enqueues.
func (s *Sender) enqueueAgain(ctx context.Context, ref notifications.Ref) (enqueued bool, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			update batches set enqueued_at = now()
			where workspace_id = $1 and origin_id = $2 and id = $3 and `+isReady+` and enqueued_at < now() - $4::interval`,
			ref.WorkspaceID, ref.OriginID, ref.BatchID, s.cfg.SweepGrace)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		enqueued = true
		return s.ledger.Enqueue(ctx, tx, []notifications.Job{{Ref: ref}})
	})
	return enqueued, lemma.Wrap(err, "enqueue batch %s", ref.BatchID)
}
