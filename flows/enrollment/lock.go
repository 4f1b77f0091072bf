package enrollment

import (
	"context"
	"encoding/binary"
	"time"

	"lemma"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/fence"
	"lemma/pgerr"
)

// MaxAttempts is how often a transaction is tried that Postgres broke off as the victim of
// a deadlock. Transactions lock in one order, so this is a safety net. A conflict of keys
// is a result and no reason to retry.
const MaxAttempts = 4

// afterDeadlock is the delay before the second attempt, doubled each time: an immediate
// retry takes the lock that the other transaction is about to get.
const afterDeadlock = 50 * time.Millisecond

// Transact runs work in a transaction, again if it was the victim of a deadlock.
func Transact(ctx context.Context, pool *pgxpool.Pool, work func(pgx.Tx) error) (err error) {
	for try := range MaxAttempts {
		if try > 0 {
			select {
			case <-ctx.Done():
				return err
			case <-time.After(afterDeadlock << (try - 1)):
			}
		}
		err = fence.Transact(ctx, pool, work)
		if !pgerr.Retryable(err) {
			return err
		}
	}
	return err
}

// LockFlow locks a flow for a verb: a publish, a pause, a move. Transactions that lock a
// flow's row in share mode can follow each other without a gap and starve a verb; this
// lock is fair.
func LockFlow(ctx context.Context, tx pgx.Tx, flow uuid.UUID) error {
	_, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, flowLock(flow))
	return lemma.Wrap(err, "lock flow %s", flow)
}

// ShareFlow locks a flow in share mode, before its row, for transactions that enroll or
// advance. None overtakes a waiting verb.
func ShareFlow(ctx context.Context, tx pgx.Tx, flow uuid.UUID) error {
	_, err := tx.Exec(ctx, `select pg_advisory_xact_lock_shared($1)`, flowLock(flow))
	return lemma.Wrap(err, "lock flow %s", flow)
}

// lockWait is how long workers and loops, which serve all workspaces, wait for a lock: a long transaction of
// one, such as that of a bulk of events, does not hold up the others. They do it again later.
const lockWait = "500ms"

// ShareFlowBriefly is ShareFlow for a worker that others need. No lock of the transaction is waited for longer
// than lockWait.
func ShareFlowBriefly(ctx context.Context, tx pgx.Tx, flow uuid.UUID) error {
	_, err := tx.Exec(ctx, `select set_config('lock_timeout', $2, true), pg_advisory_xact_lock_shared($1)`, flowLock(flow), lockWait)
	return lemma.Wrap(err, "lock flow %s", flow)
}

// WaitBriefly bounds how long a transaction waits for a lock: to lockWait, or to ten times as much if no other needs the
// caller.
func WaitBriefly(ctx context.Context, tx pgx.Tx, others bool) error {
	wait := lockWait
	if !others {
		wait = "5s"
	}
	_, err := tx.Exec(ctx, `select set_config('lock_timeout', $1, true)`, wait)
	return lemma.Wrap(err, "bound the wait for locks")
}

// Locked reports an error of a transaction that has waited for a lock for too long (lock_not_available).
func Locked(err error) bool { return pgerr.Is(err, "55P03") }

// flowLock is the random half of an id. Flows with the same half only wait for each other.
func flowLock(id uuid.UUID) int64 { return int64(binary.BigEndian.Uint64(id[8:])) }

// FlowLockSQL is flowLock in SQL, of a uuid. A test checks that both agree: otherwise
// verbs and triggers would not exclude each other.
func FlowLockSQL(column string) string {
	return `('x' || right(replace(` + column + `::text, '-', ''), 16))::bit(64)::bigint`
}

// Querier is a pool or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// ReleasingSince is when a pause ended whose enrollments are still being released; nil
// without one.
func ReleasingSince(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID) (resumedAt *time.Time, err error) {
	err = tx.QueryRow(ctx, `select case when catch_up_until > now() then resumed_at end from flows where workspace_id = $1 and id = $2`, ws,
		flow).Scan(&resumedAt)
	return resumedAt, err
}
