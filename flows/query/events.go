package query

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/intake"
	"lemma/page"
)

// StoredEvent is an event as it is stored for its retention.
type StoredEvent struct {
	Key        uuid.UUID
	ID         string // the client's own; may be empty
	ProfileKey string
	Name       string
	Properties json.RawMessage
	OccurredAt time.Time
	ReceivedAt time.Time
}

const selectEvent = `select key, coalesce(source_id, ''), profile_key, name, properties, occurred_at, received_at from trigger_events`

func scanEvent(row pgx.CollectableRow) (e StoredEvent, err error) {
	var properties string
	err = row.Scan(&e.Key, &e.ID, &e.ProfileKey, &e.Name, &properties, &e.OccurredAt, &e.ReceivedAt)
	e.Properties = json.RawMessage(properties)
	return e, err
}

var eventList = page.List[StoredEvent]{Name: "events", Created: "received_at", Orders: map[string]page.Order[StoredEvent]{
	"created_at": page.ByTime("received_at", func(e StoredEvent) time.Time { return e.ReceivedAt }, "key",
		func(e StoredEvent) uuid.UUID { return e.Key }),
}}

// ListEvents returns one page of a profile's events, in the order in which they were
// received. There is no order over the events of several profiles.
func (r *Reader) ListEvents(ctx context.Context, ws uuid.UUID, profileKey, name string, q page.Query) ([]StoredEvent, string, error) {
	if profileKey == "" {
		return nil, "", lemma.Fault("?profile_key", "required", "name the profile whose events to list")
	}
	var names []string // nil: all names
	if name != "" {
		names = []string{name}
	}
	return r.readPast(ctx, ws, profileKey, names, q)
}

// readPast reads events of one profile; with nil names, of any name.
func (r *Reader) readPast(ctx context.Context, ws uuid.UUID, profileKey string, names []string,
	q page.Query) ([]StoredEvent, string, error) {
	if profileKey == "" || !enrollment.IsText(profileKey, 1, enrollment.MaxProfileKey) {
		return []StoredEvent{}, "", nil // no such profile
	}
	sql, args := selectEvent+` where workspace_id = $1 and profile_key = $2 and name <> ''`, []any{profileKey}
	if names != nil {
		sql, args = sql+` and name = any($3)`, append(args, names)
	}
	return eventList.Read(ctx, r.pool, q, ws, sql, scanEvent, args...)
}

// GetEvent reads one event and its results.
func (r *Reader) GetEvent(ctx context.Context, ws, key uuid.UUID) (StoredEvent, []intake.Result, error) {
	rows, _ := r.pool.Query(ctx, selectEvent+` where workspace_id = $1 and key = $2`, ws, key)
	found, err := pgx.CollectRows(rows, scanEvent)
	if err != nil {
		return StoredEvent{}, nil, fmt.Errorf("get event: %w", err)
	}
	if len(found) == 0 {
		return StoredEvent{}, nil, lemma.Missing("event")
	}
	results, err := r.resultsOf(ctx, ws, found[0])
	if err != nil {
		return StoredEvent{}, nil, fmt.Errorf("read the results of event %s: %w", key, err)
	}
	return found[0], results, nil
}

// resultsOf finds the result of an event in each flow that it triggered. A refusal is
// found by its key, which is made of the event's, in any flow: an archived one no longer
// listens. An enrollment has no such key, but the time of its event, to the microsecond
// that is unique in the transaction; and its first step has the event's name and id.
func (r *Reader) resultsOf(ctx context.Context, ws uuid.UUID, e StoredEvent) ([]intake.Result, error) {
	rows, _ := r.pool.Query(ctx, `
		select e.flow_id, e.id, e.status = 'refused', coalesce(e.exit_reason, ''), ''
		from (
			select id, flow_id, status, exit_reason, source from enrollments
			where workspace_id = $1 and profile_key = $2 and status = 'active' and enrolled_at = $3
			union all
			select id, flow_id, status, exit_reason, source from enrollments
			where workspace_id = $1 and profile_key = $2 and status <> 'active' and enrolled_at = $3
		) e
		join enrollment_steps s on s.workspace_id = $1 and s.enrollment_id = e.id and s.step = 0
		cross join lateral (select s.data::json->'trigger' as trigger) t
		where e.source = 'event' and t.trigger->>'name' = $4 and t.trigger->>'source_id' = $5
		union all
		select r.flow_id, r.enrollment_id, true, r.reason, coalesce(r.detail, '')
		from flows f cross join lateral (
			select flow_id, enrollment_id, reason, detail from refusals where workspace_id = $1 and flow_id = f.id and key = $6 limit 1
		) r where f.workspace_id = $1
		order by 1, 2`,
		ws, e.ProfileKey, e.ReceivedAt, e.Name, e.ID, enrollment.RefusalKey(e.Key))
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r intake.Result, err error) {
		var refused bool
		err = row.Scan(&r.FlowID, &r.EnrollmentID, &refused, &r.Reason, &r.Detail)
		if r.Outcome = enrollment.Enrolled; refused {
			r.Outcome = enrollment.Refused
		} else {
			r.Reason = "" // the exit reason is no result of the event
		}
		return r, err
	})
}
