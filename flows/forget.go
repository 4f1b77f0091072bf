package flows

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma/flows/enrollment"
)

const (
	forgetChunk = 5_000  // rows that are deleted in one transaction
	forgetMost  = 50_000 // rows that are found at a time
)

// Forget deletes events and refusals past their retention, and returns how many. An event
// stays while its profile has an active enrollment that began before it, or that has not
// entered: events behind it may be offered again, and so their refusals stay too. Chunks
// are small, so that no other statement waits long. Several processes may run it at once.
func (f *Flows) Forget(ctx context.Context) (int64, error) {
	events, err := f.forget(ctx,
		`select workspace_id, key, key as flow_id from trigger_events v
			where received_at < now() - $1::interval and (`+hasActive+`) is null limit $2`,
		`delete from trigger_events e using unnest($1::uuid[], $2::uuid[], $3::uuid[]) as r (workspace_id, key, flow_id)
			where e.workspace_id = r.workspace_id and e.key = r.key`)
	if err != nil {
		return events, fmt.Errorf("forget events: %w", err)
	}
	refused, err := f.forget(ctx,
		`select workspace_id, key, flow_id from refusals v
			where at < now() - $1::interval and (`+entersLater+`) is null limit $2`,
		`delete from refusals e using unnest($1::uuid[], $2::uuid[], $3::uuid[]) as r (workspace_id, key, flow_id)
			where e.workspace_id = r.workspace_id and e.flow_id = r.flow_id and e.key = r.key`)
	if err != nil {
		return events + refused, fmt.Errorf("forget refusals: %w", err)
	}
	return events + refused, nil
}

// hasActive finds an active enrollment that began before the event v, since a later branch
// may read the profile's events, or that has not entered. See "first row by a subquery" in
// enrollment/plans.go.
const hasActive = `select true from enrollments e where e.workspace_id = v.workspace_id and e.profile_key = v.profile_key
	and e.status = 'active' and (e.enrolled_at <= v.received_at or e.node = '') limit 1`

// entersLater finds the enrollment of the refusal v if it has not entered. One that has
// entered or ended is never refused, so that nothing offers its refusals again.
const entersLater = `select true from enrollments e where e.workspace_id = v.workspace_id and e.id = v.enrollment_id
	and e.ended_at is null and e.node = '' limit 1`

// aged are the keys of rows to delete, column by column.
type aged struct{ workspaces, keys, flows []pgtype.UUID }

// forget reads the ids of many rows once and deletes them chunk by chunk: a query per
// chunk would read the rows that earlier chunks deleted again.
func (f *Flows) forget(ctx context.Context, find, remove string) (gone int64, err error) {
	for {
		old, err := f.findAged(ctx, find)
		if err != nil {
			return gone, err
		}
		for at := 0; at < len(old.keys); at += forgetChunk {
			end := min(at+forgetChunk, len(old.keys))
			var tag pgconn.CommandTag
			err := enrollment.Transact(ctx, f.pool, func(tx pgx.Tx) (err error) {
				tag, err = tx.Exec(ctx, remove, old.workspaces[at:end], old.keys[at:end], old.flows[at:end])
				return err
			})
			if err != nil {
				return gone, err
			}
			gone += tag.RowsAffected()
		}
		if len(old.keys) < forgetMost {
			return gone, nil
		}
	}
}

func (f *Flows) findAged(ctx context.Context, sql string) (aged, error) {
	var a aged
	rows, err := f.pool.Query(ctx, sql, f.cfg.Retention, forgetMost)
	if err != nil {
		return a, err
	}
	var ws, key, flow pgtype.UUID
	_, err = pgx.ForEachRow(rows, []any{&ws, &key, &flow}, func() error {
		a.workspaces, a.keys, a.flows = append(a.workspaces, ws), append(a.keys, key), append(a.flows, flow)
		return nil
	})
	return a, err
}
