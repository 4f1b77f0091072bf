package flows

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma/flows/enrollment"
)

const (
	// idleFor is how long a shard has not been advanced when its bound is raised, so that a
	// shard that events reach every second is not written twice for each of them.
	idleFor = 10 * time.Second

	raiseChunk = 200 // shards in one transaction, which holds a lock for each of their flows
)

// raiseBounds raises the bounds of idle shards, so that workers no longer read them: see
// enrollment/bound.go.
func (f *Flows) raiseBounds(ctx context.Context) error {
	for ctx.Err() == nil {
		idle, err := f.findIdle(ctx)
		if err != nil || len(idle) == 0 {
			return err
		}
		f.hook.At("raise: found")
		var raised int64
		err = enrollment.Transact(ctx, f.pool, func(tx pgx.Tx) (err error) {
			raised, err = enrollment.RaiseBounds(ctx, tx, idle)
			return err
		})
		if err != nil || raised < raiseChunk {
			return err
		}
	}
	return nil
}

// findIdle finds shards whose bounds can be raised.
func (f *Flows) findIdle(ctx context.Context) ([]enrollment.Shard, error) {
	rows, _ := f.pool.Query(ctx, `
		select r.workspace_id, r.flow_id, r.shard from flow_shards r
		cross join lateral (select (`+enrollment.FirstDue+`) as at offset 0) due
		where r.next_due_at <= now() and r.worked_at < now() - $1::interval and coalesce(due.at, 'infinity') > now()
		limit $2`, idleFor, raiseChunk)
	idle, err := pgx.CollectRows(rows, pgx.RowToStructByPos[enrollment.Shard])
	if err != nil {
		return nil, fmt.Errorf("find idle shards: %w", err)
	}
	return idle, nil
}
