package webhooks

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
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

// claim takes due messages, the oldest of each endpoint first. Endpoints with
// fewer calls come before those with more, whatever waits for whom, and among
// equals it is a lot: by age, a slow endpoint's backlog would win each place
// that its own call has just left. A message whose lease ran out is due like
// any other: its worker died, perhaps after the call.
func (w *Webhooks) claim(ctx context.Context) ([]claimed, error) {
	r := w.lanes.room()
	if r.all <= 0 {
		return nil, nil
	}
	rows, _ := w.pool.Query(ctx, `
		with recursive ends as (
			(select workspace_id, endpoint_id from outbox where state = 'pending' order by workspace_id, endpoint_id limit 1)
			union all
			select o.workspace_id, o.endpoint_id from ends e cross join lateral (
				select o.workspace_id, o.endpoint_id from outbox o
				where o.state = 'pending' and (o.workspace_id, o.endpoint_id) > (e.workspace_id, e.endpoint_id)
				order by o.workspace_id, o.endpoint_id limit 1) o
		), due as materialized (
			select o.workspace_id, o.id from (
				select o.workspace_id, o.id, coalesce(lane.busy, 0) + row_number() over (partition by o.workspace_id, o.endpoint_id order by o.due_at) as turn
				from ends e
				left join unnest($3::uuid[], $4::int[], $6::int[]) as lane (endpoint_id, free, busy) on lane.endpoint_id = e.endpoint_id
				cross join lateral (
					select o.workspace_id, o.id, o.endpoint_id, o.due_at from outbox o
					where o.workspace_id = e.workspace_id and o.endpoint_id = e.endpoint_id and o.state = 'pending' and o.due_at <= now()
					order by o.due_at limit coalesce(lane.free, $2)) o
			) o order by o.turn, random() limit $1
		), free as materialized (
			select o.workspace_id, o.id from outbox o join due using (workspace_id, id)
			where o.state = 'pending' and o.due_at <= now() for update of o skip locked
		), taken as (
			update outbox o set leased_by = gen_random_uuid(), lease_until = now() + $5::interval, due_at = now() + $5::interval, attempts = o.attempts + (not o.answered)::int
			from free where o.workspace_id = free.workspace_id and o.id = free.id
			returning o.workspace_id, o.id, o.endpoint_id, o.body, o.enrollment_id, o.step, o.attempts, o.answered, o.status_code, o.last_error, o.leased_by
		)
		select t.*, now() as at, e.url, e.secret from taken t
		left join webhook_endpoints e on e.workspace_id = t.workspace_id and e.id = t.endpoint_id`,
		r.all, w.options.PerEndpoint, r.endpoints, r.free, w.options.Lease, r.busy)
	taken, err := pgx.CollectRows(rows, pgx.RowToStructByName[claimed])
	if err != nil {
		return nil, fmt.Errorf("claim messages: %w", err)
	}
	for _, m := range taken {
		w.lanes.enter(m.EndpointID)
	}
	return taken, nil
}
