package sender

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/loop"
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
	failed = errors.Join(failed, loop.Each(ctx, due, func(ref notifications.Ref) error {
		ok, err := s.enqueueAgain(ctx, ref)
		if ok {
			enqueued++
		}
		return err
	}))
	if enqueued > 0 {
		s.log.Warn("enqueued due batches without a job", "batches", enqueued)
	}
	s.metrics.swept(enqueued)
	return enqueued, failed
}

const (
	expireWorkspaces = 1_000         // that a sweep visits at most; the next one goes on after them
	expireAmong      = 2 * sweepMost // batches of a workspace, whose deadlines passed first, that a sweep chooses from
)

// lateBatches is where the next sweep begins to look for batches to expire.
type lateBatches struct {
	sync.Mutex
	after uuid.UUID // workspace
}

// expireLate ends waiting batches whose send deadline has passed, so that they do not
// keep a campaign open. One that fails does not stop the others.
func (s *Sender) expireLate(ctx context.Context) error {
	late, err := s.readLate(ctx)
	if err != nil {
		return err
	}
	return loop.Each(ctx, late, func(ref notifications.Ref) error { return s.Expire(ctx, ref) })
}

// readLate returns batches whose send deadline has passed, round robin by workspace: those of
// one do not delay those of another. At random within a workspace and among workspaces, so
// that processes expire different ones, and none waits for others that cannot be expired.
func (s *Sender) readLate(ctx context.Context) ([]notifications.Ref, error) {
	s.late.Lock()
	defer s.late.Unlock()
	rows, _ := s.pool.Query(ctx, `
		with recursive w as (
			(select workspace_id, expires_at, 1 as n from batches
			where status = 'ready' and expires_at is not null and workspace_id > $1 order by workspace_id, expires_at limit 1)
			union all
			select b.workspace_id, b.expires_at, w.n + 1 from w cross join lateral (
				select workspace_id, expires_at from batches
				where status = 'ready' and expires_at is not null and workspace_id > w.workspace_id
				order by workspace_id, expires_at limit 1) b
			where w.n < $2
		), late as (
			select b.workspace_id, b.origin_id, b.id, row_number() over (partition by b.workspace_id order by random()) as n
			from w cross join lateral (
				select b.workspace_id, b.origin_id, b.id from batches b
				where b.workspace_id = w.workspace_id and b.status = 'ready' and b.expires_at <= now()
				order by b.expires_at limit $3) b
			where w.expires_at <= now()
		)
		select workspace_id, null::uuid, null::uuid from w where n = $2
		union all
		(select workspace_id, origin_id, id from late order by n, random() limit $4)`,
		s.late.after, expireWorkspaces, expireAmong, sweepMost)
	var late []notifications.Ref
	s.late.after = uuid.Nil
	var workspace uuid.UUID
	var origin, id *uuid.UUID
	_, err := pgx.ForEachRow(rows, []any{&workspace, &origin, &id}, func() error {
		if id == nil { // the last of as many workspaces as are visited
			s.late.after = workspace
			return nil
		}
		late = append(late, notifications.Ref{WorkspaceID: workspace, OriginID: *origin, BatchID: *id})
		return nil
	})
	return late, lemma.Wrap(err, "find expired batches")
}

// withoutJob reads due batches without a waiting job. A running job does not count:
// its worker may have crashed, and a running worker holds the lease. A job that is scheduled for
// another time does not count either: River schedules jobs, and makes them available, by
// clocks of processes, which may be wrong. An enqueued_at in the future is that of a clock of the
// database that was set back since. Batches behind an open circuit count when their
// probe is overdue.
func (s *Sender) withoutJob(ctx context.Context) ([]notifications.Ref, error) {
	rows, _ := s.pool.Query(ctx, `
		select b.workspace_id, b.origin_id, b.id from batches b
		where b.status = 'ready' and b.gate = 'open' and b.due_at < now() - $1::interval
		  and (b.enqueued_at < now() - $1::interval or b.enqueued_at > now() + $1::interval)
		  and not exists (
			select from river_job j
			where j.kind = 'batch_send' and j.state in ('available', 'scheduled', 'retryable', 'pending')
			  and (j.args->>'batch_id')::uuid = b.id
			  and (j.state = 'available' or j.scheduled_at > now() - $1::interval) and j.scheduled_at < now() + $1::interval)
		  and not exists (
			select from provider_meters m
			where m.workspace_id = b.workspace_id and m.provider_id = b.provider_id and m.open_until > now() - $1::interval)
		order by b.due_at limit $2`, pgx.QueryExecModeExec, s.cfg.SweepGrace, sweepMost) // planned by how many there are now
	due, err := pgx.CollectRows(rows, pgx.RowToStructByPos[notifications.Ref])
	return due, lemma.Wrap(err, "find batches without a job")
}

// enqueueAgain sets enqueued_at by compare-and-set, so that of several sweeps one
// enqueues. A batch that cannot be enqueued waits as if it were, so that the next sweep finds
// those behind it.
func (s *Sender) enqueueAgain(ctx context.Context, ref notifications.Ref) (enqueued bool, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			update batches set enqueued_at = now()
			where workspace_id = $1 and origin_id = $2 and id = $3 and `+isReady+`
			  and (enqueued_at < now() - $4::interval or enqueued_at > now() + $4::interval)`,
			ref.WorkspaceID, ref.OriginID, ref.BatchID, s.cfg.SweepGrace)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		enqueued = true
		return s.ledger.Enqueue(ctx, tx, []notifications.Job{{Ref: ref}})
	})
	if err == nil {
		return enqueued, nil
	}
	_, postponed := s.pool.Exec(ctx, `
		update batches set enqueued_at = now() where workspace_id = $1 and origin_id = $2 and id = $3 and `+isReady,
		ref.WorkspaceID, ref.OriginID, ref.BatchID)
	return false, fmt.Errorf("enqueue batch %s: %w", ref.BatchID, errors.Join(err, postponed))
}
