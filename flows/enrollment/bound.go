package enrollment

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// A shard has a bound, flow_shards.next_due_at: before it no enrollment of the shard is due.
// Workers read only shards whose bound has passed, so that idle ones cost nothing. Null means
// that no enrollment advances: the flow is a draft, paused or archived.
//
// A transaction that makes enrollments due earlier lowers the bounds of their shards, behind
// a shared lock that it keeps until it commits (LowerBounds). A bound is raised under the
// exclusive lock, by a statement that begins after the lock is granted (RaiseBounds). So
// such a transaction has committed, and its enrollments are read; or it locks later, and
// lowers the bound that was raised. The worker that moves an enrollment lowers nothing: the
// enrollment is due, so the bound has passed, and a raise reads it as due until the worker
// commits.

// boundLock is the lock of the bounds of a flow. The first bits of an id's random half are
// the same in all ids, so that no boundLock is a flowLock.
func boundLock(flow uuid.UUID) int64 { return ^flowLock(flow) }

// LowerBounds makes workers read shards, as the last step of a transaction that has made
// enrollments in them due, or due earlier.
func LowerBounds(ctx context.Context, tx pgx.Tx, due map[Shard]bool) error {
	if len(due) == 0 {
		return nil
	}
	s := shardRows(slices.Collect(maps.Keys(due)))
	batch := &pgx.Batch{}
	batch.Queue(`select pg_advisory_xact_lock_shared(unnest($1::bigint[]))`, s.locks)
	// It is a statement of its own: its snapshot must be taken under the lock.
	batch.Queue(`
		update flow_shards t set next_due_at = '-infinity'
		from (select r.workspace_id, r.flow_id, r.shard from unnest($1::uuid[], $2::uuid[], $3::smallint[]) as r (workspace_id, flow_id, shard)
			limit $4) r
		where t.workspace_id = r.workspace_id and t.flow_id = r.flow_id and t.shard = r.shard and t.next_due_at > now()`,
		s.workspaces, s.flows, s.numbers, len(s.numbers))
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("lower the bounds of %d shards: %w", len(due), err)
	}
	return nil
}

// RaiseBounds raises the bounds of shards to the time at which the first of their
// enrollments becomes due, in a transaction of its own. It returns how many it raised.
// Shards that have due enrollments, or whose bounds another transaction lowers, keep theirs.
func RaiseBounds(ctx context.Context, tx pgx.Tx, idle []Shard) (int64, error) {
	rows, _ := tx.Query(ctx, `select k from unnest($1::bigint[]) k where pg_try_advisory_xact_lock(k)`, shardRows(idle).locks)
	granted, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return 0, fmt.Errorf("lock the bounds of shards: %w", err)
	}
	s := shardRows(slices.DeleteFunc(slices.Clone(idle), func(s Shard) bool { return !slices.Contains(granted, boundLock(s.Flow)) }))
	tag, err := tx.Exec(ctx, `
		update flow_shards t set next_due_at = r.due
		from (
			select r.workspace_id, r.flow_id, r.shard, coalesce((`+FirstDue+`), 'infinity') as due
			from unnest($1::uuid[], $2::uuid[], $3::smallint[]) as r (workspace_id, flow_id, shard) limit $4
		) r
		where t.workspace_id = r.workspace_id and t.flow_id = r.flow_id and t.shard = r.shard and t.next_due_at <= now() and r.due > now()`,
		s.workspaces, s.flows, s.numbers, len(s.numbers))
	if err != nil {
		return 0, fmt.Errorf("raise the bounds of shards: %w", err)
	}
	return tag.RowsAffected(), nil
}

// FirstDue reads when the first active enrollment of a shard r is due: see "first row by a
// subquery" in plans.go.
const FirstDue = `select e.resume_at from enrollments e
	where e.workspace_id = r.workspace_id and e.shard = r.shard and e.flow_id = r.flow_id and e.resume_at is not null
	order by e.resume_at limit 1`

// shards are rows of flow_shards, column by column, and the locks of their bounds.
type shards struct {
	workspaces, flows []pgtype.UUID
	numbers           []int16
	locks             []int64
}

// shardRows sorts shards: their rows are locked in this order.
func shardRows(all []Shard) (s shards) {
	slices.SortFunc(all, func(a, b Shard) int {
		return cmp.Or(bytes.Compare(a.Workspace[:], b.Workspace[:]), bytes.Compare(a.Flow[:], b.Flow[:]), cmp.Compare(a.Number, b.Number))
	})
	for _, one := range all {
		s.workspaces, s.flows = append(s.workspaces, PgUUID(one.Workspace)), append(s.flows, PgUUID(one.Flow))
		s.numbers = append(s.numbers, one.Number)
		if lock := boundLock(one.Flow); len(s.locks) == 0 || s.locks[len(s.locks)-1] != lock {
			s.locks = append(s.locks, lock)
		}
	}
	return s
}
