package webhooks

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/page"
)

// Statuses of a message.
const (
	Pending   = "pending" // being called, or called later
	Delivered = "delivered"
	Failed    = "failed" // refused, or older than GiveUp
)

// Delivery is the delivery status of a message.
type Delivery struct {
	ID           uuid.UUID
	EnrollmentID *uuid.UUID // waits for the answer; nil: none
	FlowID       *uuid.UUID // of that enrollment
	EventID      *uuid.UUID // that it carries; nil: none
	Type         *string    // of that event, or test; nil: it is of a flow node
	Sequence     *int64     // of an event message
	Status       string
	Attempts     int        // calls that have begun
	StatusCode   int        // of the last answer; 0: there was none
	Reason       string     // of the last call; empty when it delivered, and before the first
	CalledAt     *time.Time // when the last call ended
	NextAt       *time.Time // of the next call; nil during a call and after the end
	CreatedAt    time.Time
	FinishedAt   *time.Time
}

// listed is a message and its position in a list.
type listed struct {
	Delivery
	Position time.Time
}

const selectDelivery = deliveryColumns + ` from outbox o`

// pendingMessages are those that are ready and those that wait, each by its index.
const (
	pendingMessages = `(` + pendingColumns + `not waits union all ` + pendingColumns + `waits)`
	pendingColumns  = `select workspace_id, endpoint_id, id, enrollment_id, event_id, type, sequence, status, attempts, status_code,
		last_error, called_at, lease_until, due_at, created_at, finished_at
		from outbox where status = 'pending' and `
)

// deliveryColumns read each flow by the enrollment's primary key.
const deliveryColumns = `
	select o.id, o.enrollment_id,
		(select e.flow_id from enrollments e where e.workspace_id = o.workspace_id and e.id = o.enrollment_id) as flow_id,
		o.event_id, o.type, o.sequence, o.status, o.attempts, coalesce(o.status_code, 0) as status_code, coalesce(o.last_error, '') as reason,
		o.called_at,
		case when o.status = 'pending' and (o.lease_until is null or o.lease_until <= now()) then o.due_at end as next_at,
		o.created_at, o.finished_at, coalesce(o.finished_at, o.due_at) as position`

// Deliveries returns the delivery status of messages by id, without those that
// ended longer ago than Keep.
func (w *Webhooks) Deliveries(ctx context.Context, ws uuid.UUID, ids []uuid.UUID) (map[uuid.UUID]Delivery, error) {
	found, err := w.readDeliveries(ctx, selectDelivery+` where o.workspace_id = $1 and o.id = any($2)`, ws, pgUUIDs(ids))
	if err != nil {
		return nil, fmt.Errorf("read deliveries: %w", err)
	}
	byID := make(map[uuid.UUID]Delivery, len(found))
	for _, m := range found {
		byID[m.ID] = m.Delivery
	}
	return byID, nil
}

func (w *Webhooks) readDeliveries(ctx context.Context, sql string, args ...any) ([]listed, error) {
	rows, _ := w.pool.Query(ctx, sql, args...)
	return pgx.CollectRows(rows, pgx.RowToStructByName[listed])
}

// Lists of ended messages, the last one first, and of pending messages, the next
// call first. Pages omit no message that is called meanwhile.
var (
	endedList = page.List[listed]{Name: "webhook_messages", Created: "o.created_at", Default: "-finished_at",
		Orders: map[string]page.Order[listed]{
			"finished_at": page.ByTime("o.finished_at", func(m listed) time.Time { return m.Position },
				"o.id", func(m listed) uuid.UUID { return m.ID })}}
	pendingList = page.List[listed]{Name: "webhook_messages", Created: "o.created_at", Default: "due_at",
		Orders: map[string]page.Order[listed]{
			"due_at": page.ByTime("o.due_at", func(m listed) time.Time { return m.Position },
				"o.id", func(m listed) uuid.UUID { return m.ID })}}
)

// Messages reads a page of an endpoint's messages of one status, and of one type of
// event unless it is empty.
func (w *Webhooks) Messages(ctx context.Context, ws, endpoint uuid.UUID, eventType string, q page.Query) ([]Delivery, string, error) {
	if _, err := w.Get(ctx, ws, endpoint); err != nil {
		return nil, "", err
	}
	list, from := endedList, `outbox o where o.status <> 'pending' and`
	if q.Status == Pending {
		list, from = pendingList, pendingMessages+` o where`
	}
	found, next, err := list.Read(ctx, w.pool, q, ws,
		deliveryColumns+` from `+from+` o.workspace_id = $1 and o.endpoint_id = $2 and o.status = $3 and ($4 = '' or o.type = $4)`,
		pgx.RowToStructByName[listed], endpoint, q.Status, eventType)
	if err != nil {
		return nil, "", err
	}
	all := make([]Delivery, len(found))
	for i, m := range found {
		all[i] = m.Delivery
	}
	return all, next, nil
}

// Health summarizes the messages of an endpoint.
type Health struct {
	Pending       int        // messages, counted up to MostCounted
	OldestPending *time.Time // when the oldest of them was written
	LastDelivered *time.Time // among the messages that are kept
	LastFailure   *Failure   // of the last call that failed, retried or not
}

// Failure is a call that did not deliver its message.
type Failure struct {
	At     time.Time
	Status int // of the answer; 0: there was none
	Reason string
}

// MostCounted is how many pending messages of an endpoint Health reads: those that
// are due last, since a message that failed is due later than one that was not
// called yet.
const MostCounted = 10_000

// Health reads the health of an endpoint from the messages that are kept.
func (w *Webhooks) Health(ctx context.Context, ws, endpoint uuid.UUID) (Health, error) {
	var h Health
	var at *time.Time
	var f Failure
	err := w.pool.QueryRow(ctx, `
		with pending as materialized (
			select created_at, called_at, status_code, last_error from `+pendingMessages+` o
			where workspace_id = $1 and endpoint_id = $2 order by due_at desc limit $3
		), failures as materialized (
			(select called_at as at, status_code, last_error from pending where last_error is not null order by called_at desc limit 1)
			union all
			(select finished_at, status_code, last_error from outbox
			where workspace_id = $1 and endpoint_id = $2 and status = 'failed' and status <> 'pending' order by finished_at desc limit 1)
		)
		select p.n, p.oldest, (select finished_at from outbox
				where workspace_id = $1 and endpoint_id = $2 and status = 'delivered' and status <> 'pending'
				order by finished_at desc limit 1),
			f.at, coalesce(f.status_code, 0), coalesce(f.last_error, '')
		from (select count(*)::int as n, min(created_at) as oldest from pending) p
		left join (select at, status_code, last_error from failures order by at desc limit 1) f on true`, ws, endpoint, MostCounted).
		Scan(&h.Pending, &h.OldestPending, &h.LastDelivered, &at, &f.Status, &f.Reason)
	if err != nil {
		return Health{}, fmt.Errorf("read health of webhook endpoint %s: %w", endpoint, err)
	}
	if at != nil {
		f.At = *at
		h.LastFailure = &f
	}
	return h, nil
}
