package webhooks

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// claimed is a message that this worker may call, until its lease runs out.
type claimed struct {
	WorkspaceID  uuid.UUID
	ID           uuid.UUID
	EndpointID   uuid.UUID
	Body         string
	EnrollmentID *uuid.UUID
	Step         *int
	Attempts     int  // this one included
	Answered     bool // it was called, and StatusCode and LastError end it
	StatusCode   *int
	LastError    *string
	LeasedBy     string    // the token of this claim
	At           time.Time // by the database's clock
	URL          *string   // nil: the endpoint is gone
	Secret       []byte
	since        time.Time // when the claim began, by this node's clock: the lease lasts at least from then
}

// answer is what an earlier claim heard and could not write down.
func (m claimed) answer() verdict {
	v := verdict{final: true}
	if m.StatusCode != nil {
		v.status = *m.StatusCode
	}
	if m.LastError != nil {
		v.reason = *m.LastError
	}
	return v
}

// claim takes due messages, the oldest of each endpoint first. Workspaces with
// fewer calls come before those with more, or one with many endpoints would take
// the calls of the others. Within a workspace endpoints with fewer calls come
// first, and among equals the order is random: by age, a slow endpoint's backlog would win each place
// that its own call has just left. A message whose lease ran out is due like
// any other: its worker died, perhaps after the call.
func (w *Webhooks) claim(ctx context.Context) ([]claimed, error) {
	r := w.lanes.room()
	if r.all <= 0 {
		return nil, nil
	}
	taken, err := w.take(ctx, `
		with recursive ends as (
			(select workspace_id, endpoint_id from outbox where status = 'pending' order by workspace_id, endpoint_id limit 1)
			union all
			select o.workspace_id, o.endpoint_id from ends e cross join lateral (
				select o.workspace_id, o.endpoint_id from outbox o
				where o.status = 'pending' and (o.workspace_id, o.endpoint_id) > (e.workspace_id, e.endpoint_id)
				order by o.workspace_id, o.endpoint_id limit 1) o
		), lanes as materialized (
			select e.workspace_id, e.endpoint_id, coalesce(lane.free, $4) as free, coalesce(lane.busy, 0) as busy,
				sum(coalesce(lane.busy, 0)) over (partition by e.workspace_id) as calls
			from ends e left join unnest($5::uuid[], $6::int[], $7::int[]) as lane (endpoint_id, free, busy) on lane.endpoint_id = e.endpoint_id
		), due as materialized (
			select o.workspace_id, o.id from (
				select o.workspace_id, o.id, o.turn, o.draw, o.calls + row_number() over (partition by o.workspace_id order by o.turn, o.draw) as place
				from (
					select o.workspace_id, o.id, l.calls, l.busy + row_number() over (partition by o.workspace_id, o.endpoint_id order by o.due_at) as turn, random() as draw
					from lanes l cross join lateral (
						select o.workspace_id, o.id, o.endpoint_id, o.due_at from outbox o
						where o.workspace_id = l.workspace_id and o.endpoint_id = l.endpoint_id and o.status = 'pending' and o.due_at <= now()
						order by o.due_at limit l.free) o
				) o
			) o order by o.place, o.turn, o.draw limit $3
		), free as materialized (
			select o.at from due cross join lateral (
				select o.ctid as at from outbox o
				where o.workspace_id = due.workspace_id and o.id = due.id and o.finished_at is null and o.due_at <= now() for update skip locked) o
		)`, r.all, w.options.PerEndpoint, r.endpoints, r.free, r.busy)
	if err != nil {
		return nil, err
	}
	for _, m := range taken {
		w.lanes.enter(m.EndpointID)
	}
	return taken, nil
}

// claimMore takes more due messages of one endpoint, n at most, for those of
// this node's workers that call it.
func (w *Webhooks) claimMore(ctx context.Context, ws, endpoint uuid.UUID, n int) ([]claimed, error) {
	return w.take(ctx, `
		with free as materialized (
			select o.ctid as at from outbox o
			where o.workspace_id = $3 and o.endpoint_id = $4 and o.status = 'pending' and o.due_at <= now()
			order by o.due_at limit $5 for update skip locked
		)`, ws, endpoint, n)
}

// claimTime bounds a claim. It ends also when the process is told to stop: rows
// whose lease was committed while the answer was given up would wait for the end
// of that lease.
const claimTime = 10 * time.Second

// take leases the messages that a statement has locked, under one token.
func (w *Webhooks) take(ctx context.Context, free string, args ...any) ([]claimed, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTime)
	defer cancel()
	token, since := lemma.NewID().String(), time.Now()
	rows, _ := w.pool.Query(ctx, free+`, taken as (
			update outbox o set leased_by = $1, lease_until = now() + $2::interval, due_at = now() + $2::interval, attempts = o.attempts + (not o.answered)::int
			from free where o.ctid = free.at
			returning o.workspace_id, o.id, o.endpoint_id, o.body, o.enrollment_id, o.step, o.attempts, o.answered, o.status_code, o.last_error, o.leased_by
		)
		select t.*, now() as at, e.url, e.secret from taken t
		left join webhook_endpoints e on e.workspace_id = t.workspace_id and e.id = t.endpoint_id`, append([]any{token, w.options.Lease}, args...)...)
	taken, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[claimed])
	if err != nil {
		return nil, fmt.Errorf("claim messages: %w", err)
	}
	for i := range taken {
		taken[i].since = since
	}
	return taken, nil
}

// giveBack returns messages that were claimed and not called: they are due as
// they were before.
func (w *Webhooks) giveBack(ctx context.Context, all []claimed) error {
	if len(all) == 0 {
		return nil
	}
	_, err := w.pool.Exec(ctx, `
		update outbox o set leased_by = null, lease_until = null, due_at = now(), attempts = o.attempts - (not o.answered)::int
		from (`+claimsOf+`) r
		where o.workspace_id = r.workspace_id and o.id = r.id and o.leased_by = r.token`, claimsIn(all, len(all))...)
	if err != nil {
		return fmt.Errorf("give messages back: %w", err)
	}
	return nil
}
