package webhooks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// claimed is a message that this worker may call until its lease expires.
type claimed struct {
	WorkspaceID  uuid.UUID
	ID           uuid.UUID
	EndpointID   uuid.UUID
	Body         []byte     // with BodyOf: what precedes the data of that event
	BodyOf       *uuid.UUID // the event that has the rest of the body
	EnrollmentID *uuid.UUID
	Step         *int
	EventID      *uuid.UUID // it carries an event; nil: it is of a flow node, or a test
	Attempts     int        // this one included
	Answered     bool       // StatusCode and LastError are its final answer, not settled yet
	StatusCode   *int
	LastError    *string
	LeasedBy     string    // the token of this claim
	At           time.Time // by the database's clock
	URL          *string   // nil: the endpoint was deleted
	Secret       []byte
	Status       *string    // of the endpoint
	FailingSince *time.Time // of the endpoint
	event        []byte     // the data of the event BodyOf
	counted      int        // bytes of both that the buffers count
	since        time.Time  // start of the claim by this process's clock, which is before the start of the lease
}

// forget removes the body, which only a call needs.
func (m *claimed) forget() { m.Body, m.event, m.counted = nil, nil, 0 }

// answer is the answer that an earlier claim received and could not settle.
func (m claimed) answer() result {
	v := result{final: true}
	lemma.Set(&v.status, m.StatusCode)
	lemma.Set(&v.reason, m.LastError)
	return v
}

// claim leases due messages, the oldest of each endpoint first. Workspaces with
// fewer calls come first, so that many endpoints of one workspace do not use up the
// calls of the others, and have at most PerWorkspace; then endpoints with fewer calls, then a random order. By age,
// the backlog of a slow endpoint would win each call that it has just released.
// A message whose lease has expired is due too: its worker crashed, perhaps after the call.
func (w *Webhooks) claim(ctx context.Context) ([]claimed, error) {
	if w.limiter.free() <= 0 {
		return nil, nil
	}
	all, err := w.ready.next(ctx, w.pool)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	free := w.limiter.capacity(all)
	w.metrics.deferred.Add(float64(free.deferred))
	if len(free.endpoints) == 0 {
		return nil, nil
	}
	taken, err := w.lease(ctx, `
		with due as materialized (
			select o.workspace_id, o.id from (
				select o.workspace_id, o.id, o.nth_of_endpoint, o.tie,
					o.calls + row_number() over (partition by o.workspace_id order by o.nth_of_endpoint, o.tie) as nth_of_workspace
				from (
					select o.workspace_id, o.id, l.calls, random() as tie,
						l.busy + row_number() over (partition by o.workspace_id, o.endpoint_id order by o.due_at) as nth_of_endpoint
					from unnest($4::uuid[], $5::uuid[], $6::int[], $7::int[], $8::int[]) as l (workspace_id, endpoint_id, free, busy, calls)
					cross join lateral (
						select o.workspace_id, o.id, o.endpoint_id, o.due_at from outbox o
						where o.workspace_id = l.workspace_id and o.endpoint_id = l.endpoint_id
							and o.status = 'pending' and not o.waits and o.due_at <= now()
						order by o.due_at limit l.free) o
				) o
			) o where o.nth_of_workspace <= $9 order by o.nth_of_workspace, o.nth_of_endpoint, o.tie limit $3
		), free as materialized (
			select o.at from due cross join lateral (
				select o.ctid as at from outbox o
				where o.workspace_id = due.workspace_id and o.id = due.id and o.finished_at is null and o.due_at <= now()
				for update skip locked) o
		)`, free.all, free.workspaces, free.endpoints, free.free, free.busy, free.calls, w.limiter.perWorkspace)
	if err != nil {
		return nil, err
	}
	for _, m := range taken {
		w.limiter.acquire(m.WorkspaceID, m.EndpointID)
	}
	return taken, nil
}

// claimMore leases at most n more due messages of one endpoint, whose bodies have at most
// some bytes together, for the workers of this process that call it.
func (w *Webhooks) claimMore(ctx context.Context, ws, endpoint uuid.UUID, n, bytes int) ([]claimed, error) {
	return w.lease(ctx, `
		with locked as materialized (
			select o.ctid as at, o.due_at, octet_length(o.body) + case when o.body_of is not null then (
				select octet_length(e.body) + e.count * $7 from events_out e where e.workspace_id = o.workspace_id and e.id = o.body_of
			) else 0 end as size
			from outbox o
			where o.workspace_id = $3 and o.endpoint_id = $4 and o.status = 'pending' and not o.waits and o.due_at <= now()
			order by o.due_at limit $5 for update skip locked
		), free as materialized (
			select s.at from (select at, sum(size) over (order by due_at rows unbounded preceding) as bytes from locked) s where s.bytes <= $6
		)`, ws, endpoint, n, bytes, itemBytes)
}

// claimTime bounds a claim, which continues during a shutdown: if it were cancelled
// after its commit, the rows would wait for the end of their lease.
const claimTime = 10 * time.Second

// lease leases the messages that the statement free has locked, under one token.
func (w *Webhooks) lease(ctx context.Context, free string, args ...any) ([]claimed, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTime)
	defer cancel()
	token, since := lemma.NewID().String(), time.Now()
	rows, _ := w.pool.Query(ctx, free+`, taken as (
			update outbox o set leased_by = $1, lease_until = now() + $2::interval, due_at = now() + $2::interval,
				attempts = o.attempts + (not o.answered)::int
			from free where o.ctid = free.at
			returning o.workspace_id, o.id, o.endpoint_id, o.body, o.body_of, o.enrollment_id, o.step, o.event_id, o.attempts, o.answered,
				o.status_code, o.last_error, o.leased_by
		)
		select t.workspace_id, t.id, t.endpoint_id, t.body, t.body_of, t.enrollment_id, t.step, t.event_id, t.attempts, t.answered,
			t.status_code, t.last_error, t.leased_by, now() as at, e.url, e.secret, e.status, e.failing_since
		from taken t
		left join webhook_endpoints e on e.workspace_id = t.workspace_id and e.id = t.endpoint_id`,
		append([]any{token, w.options.Lease}, args...)...)
	taken, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[claimed])
	if err != nil {
		return nil, fmt.Errorf("claim messages: %w", err)
	}
	for i := range taken {
		taken[i].since = since
	}
	if err := w.readBodies(ctx, taken); err != nil {
		return nil, errors.Join(err, w.giveBack(ctx, taken))
	}
	return taken, nil
}

// giveBack releases messages that were claimed and not called. They are due at once.
func (w *Webhooks) giveBack(ctx context.Context, all []claimed) error {
	if len(all) == 0 {
		return nil
	}
	_, err := w.pool.Exec(ctx, `
		update outbox o set leased_by = null, lease_until = null, due_at = now(), attempts = o.attempts - (not o.answered)::int
		from (`+claimsOf+`) r
		where o.workspace_id = r.workspace_id and o.id = r.id and o.leased_by = r.token`, claimsIn(all, len(all))...)
	return lemma.Wrap(err, "give messages back")
}
