package sender

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/clock"
	"lemma/events"
	"lemma/eventsout"
	"lemma/loop"
	"lemma/notifications"
)

// Reaped counts what one run of the reaper did.
type Reaped struct {
	Batches  int // leases that had expired
	Freed    int // rows that were not called and went back
	Settled  int // rows that evidence settled (tier 1)
	Retried  int // rows that got their second attempt (tier 2)
	Waiting  int // rows of tier 2 that wait for events of the carrier
	Orphaned int // rows whose outcome stays unknown (tier 3)
	Crashed  int // rows that were ended since the claims of their batch crashed in a row
	Kept     int // batches whose lease only seems to have expired, since the clock of the database was set ahead
}

// reapMost bounds one run.
const reapMost = 200

// Reap decides about batches whose lease has expired, each in its own transaction. Any
// number of reapers may run: each skips batches that another has locked.
func (s *Sender) Reap(ctx context.Context) (Reaped, error) {
	var sum Reaped
	var failed loop.Errors
	read, err := clock.Read(ctx, s.pool)
	if err != nil {
		return sum, err
	}
	s.jumps.Add(read)
	ahead := s.jumps.Ahead(read.At, read.Begun)
	expired, err := s.expired(ctx, ahead)
	if err != nil {
		return sum, err
	}
	if sum.Kept, err = s.kept(ctx, ahead); err != nil {
		return sum, err
	}
	run := newLookups(ahead)
	for _, ref := range expired {
		s.at(ctx, "expired", ref)
		var one Reaped
		var stored []outcome
		asked := false
		err := lemma.Recovered(func() (err error) {
			if asked, err = s.lookUp(ctx, ref, run); err == nil && asked {
				one, stored, err = s.reapBatch(ctx, ref)
			}
			return err
		})
		if err != nil { // one batch that fails must not stop the others
			failed.Add(fmt.Errorf("reap batch %s: %w", ref.BatchID, err))
		}
		if err != nil || !asked {
			continue
		}
		s.ended(ref.WorkspaceID, ref.OriginID)
		s.metrics.committed(stored)
		sum.Batches += one.Batches
		sum.Kept += one.Kept
		sum.Freed += one.Freed
		sum.Settled += one.Settled
		sum.Retried += one.Retried
		sum.Waiting += one.Waiting
		sum.Orphaned += one.Orphaned
		if sum.Crashed += one.Crashed; one.Crashed > 0 {
			s.pauseCrashed(ctx, ref, one.Crashed)
		}
	}
	if sum.Orphaned > 0 {
		s.log.Error("notifications orphaned", "orphaned", sum.Orphaned, "batches", sum.Batches)
	}
	if sum.Kept > 0 {
		s.log.Warn("the clock of the database was set ahead: leases are left to their holders", "batches", sum.Kept,
			"ahead", ahead)
	}
	s.metrics.reaped(sum)
	return sum, failed.Err()
}

// expired returns batches whose lease has expired, round robin by workspace: those of
// one do not delay those of another. At random within a workspace and among workspaces, since
// some cannot be decided yet.
func (s *Sender) expired(ctx context.Context, ahead time.Duration) ([]notifications.Ref, error) {
	rows, _ := s.pool.Query(ctx, `
		select workspace_id, origin_id, id from (
			select workspace_id, origin_id, id, row_number() over (partition by workspace_id order by random()) as n
			from batches where status = 'leased' and lease_until < now() - $2::interval
		) b order by n, random() limit $1`, reapMost, ahead)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[notifications.Ref])
	return found, lemma.Wrap(err, "find expired leases")
}

// kept counts the leases that seem to have expired, since the clock was set ahead.
func (s *Sender) kept(ctx context.Context, ahead time.Duration) (n int, err error) {
	if ahead == 0 {
		return 0, nil
	}
	err = s.pool.QueryRow(ctx, `
		select count(*) from batches where status = 'leased' and lease_until < now() and lease_until >= now() - $1::interval`, ahead).Scan(&n)
	return n, lemma.Wrap(err, "count leases that are kept")
}

// stale is a batch whose lease has expired, locked by this reaper.
type stale struct {
	Root        uuid.UUID
	ProviderID  uuid.UUID
	ContentID   uuid.UUID
	Attempt     int16
	MaxAttempts int16
	Gate        string
	Late        bool // its send deadline has passed
	Token       string
	Expires     *time.Time
	Refusals    refusals // as committed; a second attempt continues their counts
	Resumed     *time.Time
	Now         time.Time
	Until       time.Time     // the end of the lease
	Ahead       time.Duration // by which the clock of the database was set ahead, since which the lease may seem to have expired
	Events      eventState
}

func (s *Sender) reapBatch(ctx context.Context, ref notifications.Ref) (sum Reaped, stored []outcome, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return sum, nil, err
	}
	defer conn.Release()
	begun := time.Now()
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		b, ok, err := lockStale(ctx, tx, ref)
		if err != nil || !ok {
			return err
		}
		if b.Ahead = s.jumps.Ahead(b.Now, begun); b.Until.After(b.Now.Add(-b.Ahead)) {
			sum.Kept = 1 // its holder may still call
			return nil
		}
		s.at(ctx, "reaping", ref)
		called, untouched, err := partition(ctx, tx, ref, b.Root)
		if err != nil {
			return err
		}
		// Before the evidence: events that are not later than the watermark are then visible.
		if b.Events, err = s.readEvents(ctx, tx, ref, b); err != nil {
			return err
		}
		open := called
		if b.Attempt == 2 {
			open = slices.Concat(called, untouched)
		}
		evidence, err := events.Proofs(ctx, tx, ref.WorkspaceID, ref.OriginID, b.Root, open)
		if err != nil {
			return err
		}
		var crashes int
		if err := tx.QueryRow(ctx, countCrashes, ref.WorkspaceID, ref.BatchID).Scan(&crashes); err != nil {
			return fmt.Errorf("count crashes: %w", err)
		}
		sum = Reaped{Batches: 1}
		done, retry, waiting := decideAll(b, called, evidence, &sum)
		var crashed []int16
		if crashes >= maxCrashes && b.Gate != "cancelled" {
			if crashed, untouched, err = findCrashed(ctx, tx, ref, b.Token, untouched); err != nil {
				return err
			}
		}
		done, crashed = settleUntouched(b, done, crashed, evidence, &sum)
		done, untouched = settleUntouched(b, done, untouched, evidence, &sum)
		done = append(done, endCrashed(crashed)...)
		sum.Freed, sum.Crashed = len(untouched), len(crashed)
		if len(waiting) > 0 {
			if len(done) == 0 && len(untouched) == 0 {
				sum.Batches = 0
				return s.reapLater(ctx, tx, ref, b)
			}
			if err := s.moveWaiting(ctx, tx, ref, b, waiting); err != nil {
				return err
			}
		}
		stored = done
		return s.apply(ctx, tx, ref, b, done, retry, untouched, afterCrash(crashes))
	})
	return sum, stored, err
}

// lockStale locks the batch if its lease is still expired. The reaper holds the lock
// until it has decided, so that no commit comes between.
func lockStale(ctx context.Context, tx pgx.Tx, ref notifications.Ref) (stale, bool, error) {
	rows, _ := tx.Query(ctx, `
		select root_id, provider_id, content_id, attempt, max_attempts, gate,
			expires_at is not null and expires_at <= now(), leased_by, expires_at, refusals, retry_at, resumed_at, now(),
			lease_until
		from batches
		where workspace_id = $1 and origin_id = $2 and id = $3 and status = 'leased' and lease_until < now()
		for update skip locked`, ref.WorkspaceID, ref.OriginID, ref.BatchID)
	b, err := pgx.CollectExactlyOneRow(rows, scanStale)
	if errors.Is(err, pgx.ErrNoRows) {
		return stale{}, false, nil
	}
	return b, err == nil, err
}

func scanStale(row pgx.CollectableRow) (b stale, err error) {
	err = row.Scan(&b.Root, &b.ProviderID, &b.ContentID, &b.Attempt, &b.MaxAttempts, &b.Gate, &b.Late, &b.Token, &b.Expires,
		&b.Refusals.counts, &b.Refusals.times, &b.Resumed, &b.Now, &b.Until)
	return b, err
}

// partition returns the open rows of a stale batch: those that may have been called
// and have no outcome, and those that were not called or not accepted.
func partition(ctx context.Context, db events.DB, ref notifications.Ref, root uuid.UUID) (called, untouched []int16, err error) {
	rows, _ := db.Query(ctx, `
		select n.ordinal, n.ordinal <= b.called_through and not n.ordinal = any(b.deferred)
		from batches b
		cross join lateral (
			select n.ordinal from notifications n where n.workspace_id = $1 and n.origin_id = $2 and n.batch_id = $4 offset 0) n
		where b.workspace_id = $1 and b.origin_id = $2 and b.id = $3
		  and (b.open is null or n.ordinal = any(b.open))
		  and not exists (select from attempts a where a.workspace_id = $1 and a.batch_id = $4
			and a.ordinal = n.ordinal and a.attempt = b.attempt)
		order by n.ordinal`, ref.WorkspaceID, ref.OriginID, ref.BatchID, root)
	untouched = []int16{}
	var ordinal int16
	var mayBeCalled bool
	_, err = pgx.ForEachRow(rows, []any{&ordinal, &mayBeCalled}, func() error {
		if mayBeCalled {
			called = append(called, ordinal)
		} else {
			untouched = append(untouched, ordinal)
		}
		return nil
	})
	return called, untouched, err
}

// apply inserts the reaper's outcomes, makes the retry batch and gives the untouched
// rows back, in the transaction that holds the batch.
func (s *Sender) apply(ctx context.Context, tx pgx.Tx, ref notifications.Ref, b stale,
	done []outcome, retry, untouched []int16, after time.Duration) error {
	if err := insertOutcomes(ctx, tx, ref, b, done); err != nil {
		return err
	}
	unresolved := orphaned(b.Attempt, done)
	if b.Attempt == 2 && b.Gate == "cancelled" {
		unresolved = append(unresolved, untouched...)
	}
	if err := events.QueueOrphaned(ctx, tx, ref.WorkspaceID, b.ProviderID, ref.OriginID, b.Root, unresolved); err != nil {
		return err
	}
	var jobs []notifications.Job
	if len(retry) > 0 {
		second, err := makeRetry(ctx, tx, ref, b, retry)
		if err != nil {
			return err
		}
		jobs = append(jobs, notifications.Job{Ref: second})
	}
	until := b.Refusals.next(untouched, b.Now)
	if err := endLease(ctx, tx, ref, b, done, untouched, after, until); err != nil {
		return err
	}
	var ended []int16
	if b.Attempt == 2 && b.Gate == "cancelled" {
		ended = untouched
	}
	if err := eventsout.Record(ctx, tx, eventsOf(ref, b.Root, b.Attempt, done, ended)...); err != nil {
		return err
	}
	if len(untouched) > 0 && b.Gate == "open" {
		jobs = append(jobs, notifications.Job{Ref: ref, After: max(after, left(until, b.Now))})
	}
	return s.ledger.Enqueue(ctx, tx, jobs)
}

func insertOutcomes(ctx context.Context, tx pgx.Tx, ref notifications.Ref, b stale, done []outcome) error {
	if len(done) == 0 {
		return nil
	}
	col, n := outcomeColumns(done), len(done)
	finals := make([]bool, n)
	for i, o := range done {
		finals[i] = !o.open
	}
	_, err := tx.Exec(ctx, `
		insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis, reason, code, carrier_id, detail, at)
		select $1, $2, o.ordinal, $3, o.kind, o.final, o.basis,
			nullif(o.reason, ''), nullif(o.code, 0), nullif(o.carrier_id, ''), nullif(o.detail, ''), now()
		from unnest($4::smallint[], $5::text[], $6::boolean[], $7::text[], $8::text[], $9::smallint[], $10::text[], $11::text[])
			as o (ordinal, kind, final, basis, reason, code, carrier_id, detail)`,
		ref.WorkspaceID, b.Root, b.Attempt, col.ordinals, repeated(col.kinds, n), finals, repeated(col.bases, n), repeated(col.reasons, n),
		repeated(col.codes, n), repeated(col.carrierIDs, n), repeated(col.details, n))
	return lemma.Wrap(err, "insert outcomes")
}

// makeRetry inserts the only batch that may call these rows a second time.
func makeRetry(ctx context.Context, tx pgx.Tx, ref notifications.Ref, b stale, retry []int16) (notifications.Ref, error) {
	second := notifications.Ref{WorkspaceID: ref.WorkspaceID, OriginID: ref.OriginID, BatchID: lemma.NewID()}
	_, err := tx.Exec(ctx, `
		insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, attempt, max_attempts,
			gate, expires_at, open, members, refusals, resumed_at)
		values ($1, $2, $3, $4, $5, $6, $7, $8 + 1, $9, $10, $11, $12, $12, $13, $14)`,
		second.WorkspaceID, second.OriginID, second.BatchID, b.Root, b.ProviderID, b.ContentID, len(retry), b.Attempt, b.MaxAttempts,
		b.Gate, b.Expires, retry, b.Refusals.counts, b.Resumed)
	return second, lemma.Wrap(err, "make retry batch")
}

func endLease(ctx context.Context, tx pgx.Tx, ref notifications.Ref, b stale,
	done []outcome, untouched []int16, after time.Duration, until *time.Time) error {
	var t tally
	for _, o := range done {
		t.add(b.Attempt, &o)
	}
	_, err := tx.Exec(ctx, `
		with ended as (
			update batches set
				sent = sent + $4, failed = failed + $5, retried = retried + $7, skipped = skipped + $11,
				skips = case when $11 = 0 then skips else skips || jsonb_build_object('`+batchCrashed+`',
					$11 + coalesce((skips->>'`+batchCrashed+`')::int, 0)) end,
				orphaned = orphaned + $6 + case when gate = 'cancelled' and attempt = 2 then cardinality($8::smallint[]) else 0 end,
				cancelled = cancelled + case when gate = 'cancelled' and attempt = 1 then cardinality($8::smallint[]) else 0 end,
				status = case when cardinality($8::smallint[]) = 0 then 'done' when gate = 'cancelled' then 'cancelled' else 'ready' end,
				finished_at = case when cardinality($8::smallint[]) = 0 or gate = 'cancelled' then now() end,
				open = case when cardinality($8::smallint[]) = 0 then open else $8 end,
				deferred = '{}', called_through = -1, calling = 0, leased_by = null, lease_until = null,
				due_at = greatest(now() + $12, $14), enqueued_at = now()
			where workspace_id = $1 and origin_id = $2 and id = $3 and status = 'leased'
			returning workspace_id, id
		)
		insert into batch_log (workspace_id, batch_id, event, token, detail)
		select workspace_id, id, case when $13 then 'crashed' else 'reaped' end, $9, $10 from ended`,
		ref.WorkspaceID, ref.OriginID, ref.BatchID, t.sent, t.failed, t.orphaned, t.retried, untouched, b.Token,
		fmt.Sprintf("%d uncalled, %d settled or orphaned, %d to a second attempt, %d skipped after crashes",
			len(untouched), len(done)-t.retried-t.skipped, t.retried, t.skipped), t.skipped, after,
		slices.ContainsFunc(done, func(o outcome) bool { return o.reason == batchCrashed }), until)
	return lemma.Wrap(err, "end lease")
}
