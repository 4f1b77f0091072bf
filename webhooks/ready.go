package webhooks

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A claim reads at most mostReady endpoints, and ends the wait of at most mostWoken messages.
// While more than these are due, it also ends those of mostInTurn endpoints, up to
// mostOfEach of each.
const (
	mostReady  = 500
	mostWoken  = 1_000
	mostInTurn = 100
	mostOfEach = 10
)

// readyEndpoint has messages that may be called now.
type readyEndpoint struct{ workspace, endpoint uuid.UUID }

// readyEndpoints finds endpoints in turn: the next ones after those of the last claim, if
// there are more than mostReady.
type readyEndpoints struct {
	mu       sync.Mutex
	after    readyEndpoint
	crowded  bool          // the last claim ended mostWoken waits
	wokenFor readyEndpoint // the last endpoint whose waits ended in turn
}

// next returns the endpoints for a claim. It ends the waits that are over first, those first
// that were over first. Both cost what is due: endpoints whose messages all wait are not
// visited. Only if more waits are over than a claim ends are they visited in turn, so that
// many messages of one workspace do not delay those of the others.
func (r *readyEndpoints) next(ctx context.Context, pool *pgxpool.Pool) ([]readyEndpoint, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.crowded {
		if err := r.wakeInTurn(ctx, pool); err != nil {
			return nil, fmt.Errorf("end waits in turn: %w", err)
		}
	}
	for {
		woken, all, err := readReady(ctx, pool, r.after)
		if err != nil {
			return nil, fmt.Errorf("find endpoints with due messages: %w", err)
		}
		r.crowded = woken == mostWoken
		again := len(all) == 0 && r.after != readyEndpoint{}
		r.after = readyEndpoint{}
		if len(all) == mostReady {
			r.after = all[mostReady-1]
		}
		if !again {
			return all, nil
		}
	}
}

func readReady(ctx context.Context, pool *pgxpool.Pool, after readyEndpoint) (woken int64, all []readyEndpoint, err error) {
	batch := &pgx.Batch{}
	batch.Queue(`
		update outbox o set waits = false
		from (
			select workspace_id, id from outbox where status = 'pending' and waits and due_at <= now()
			order by due_at limit $1 for update skip locked
		) d
		where o.workspace_id = d.workspace_id and o.id = d.id`, mostWoken).Exec(func(tag pgconn.CommandTag) error {
		woken = tag.RowsAffected()
		return nil
	})
	batch.Queue(`
		with recursive endpoints as (
			(select workspace_id, endpoint_id, 1 as n from outbox
			where status = 'pending' and not waits and (workspace_id, endpoint_id) > ($1, $2)
			order by workspace_id, endpoint_id limit 1)
			union all
			select o.workspace_id, o.endpoint_id, e.n + 1 from endpoints e cross join lateral (
				select o.workspace_id, o.endpoint_id from outbox o
				where o.status = 'pending' and not o.waits and (o.workspace_id, o.endpoint_id) > (e.workspace_id, e.endpoint_id)
				order by o.workspace_id, o.endpoint_id limit 1) o
			where e.n < $3
		)
		select workspace_id, endpoint_id from endpoints`, after.workspace, after.endpoint, mostReady).Query(func(rows pgx.Rows) error {
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e readyEndpoint, err error) {
			err = row.Scan(&e.workspace, &e.endpoint)
			return e, err
		})
		return err
	})
	return woken, all, pool.SendBatch(ctx, batch).Close()
}

// wakeInTurn ends the first waits that are over of the next endpoints with waiting messages.
func (r *readyEndpoints) wakeInTurn(ctx context.Context, pool *pgxpool.Pool) error {
	var last readyEndpoint
	visited := 0
	err := pool.QueryRow(ctx, `
		with recursive endpoints as (
			(select workspace_id, endpoint_id, 1 as n from outbox
			where status = 'pending' and waits and (workspace_id, endpoint_id) > ($1, $2)
			order by workspace_id, endpoint_id limit 1)
			union all
			select o.workspace_id, o.endpoint_id, e.n + 1 from endpoints e cross join lateral (
				select o.workspace_id, o.endpoint_id from outbox o
				where o.status = 'pending' and o.waits and (o.workspace_id, o.endpoint_id) > (e.workspace_id, e.endpoint_id)
				order by o.workspace_id, o.endpoint_id limit 1) o
			where e.n < $3
		), woken as (
			update outbox o set waits = false
			from (
				select o.workspace_id, o.id from endpoints e cross join lateral (
					select o.workspace_id, o.id from outbox o
					where o.workspace_id = e.workspace_id and o.endpoint_id = e.endpoint_id
						and o.status = 'pending' and o.waits and o.due_at <= now()
					order by o.due_at limit $4 for update skip locked) o
				limit $3 * $4
			) d
			where o.workspace_id = d.workspace_id and o.id = d.id
		)
		select workspace_id, endpoint_id, n from endpoints order by n desc limit 1`,
		r.wokenFor.workspace, r.wokenFor.endpoint, mostInTurn, mostOfEach).Scan(&last.workspace, &last.endpoint, &visited)
	if visited < mostInTurn { // none is after them
		last = readyEndpoint{}
	}
	r.wokenFor = last
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}
