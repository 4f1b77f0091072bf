package flows

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
)

// StoredEvent is an event as it is kept for its retention.
type StoredEvent struct {
	Key        uuid.UUID
	ID         string // the sender's own; empty when it gave none
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

// ListEvents answers one page of what a profile did, the last received first.
// It is asked for one profile: there is no order over everybody's.
func (f *Flows) ListEvents(ctx context.Context, ws uuid.UUID, profileKey, name string, page lemma.Page) ([]StoredEvent, string, error) {
	if profileKey == "" {
		return nil, "", lemma.Fault("?profile_key", "required", "name the profile whose events to list")
	}
	from, err := parseMark(page.Cursor)
	if err != nil {
		return nil, "", err
	}
	var names []string // nil: all of them
	if name != "" {
		names = []string{name}
	}
	found, err := f.readPast(ctx, ws, profileKey, names, from, page.Limit+1)
	if err != nil {
		return nil, "", fmt.Errorf("list events: %w", err)
	}
	found, next := cut(found, page, func(e StoredEvent) mark {
		return mark{at: pgtype.Timestamptz{Time: e.ReceivedAt, Valid: true}, id: e.Key}
	})
	return found, next, nil
}

// readPast reads events of one profile; with nil names, of any name.
func (f *Flows) readPast(ctx context.Context, ws uuid.UUID, profileKey string, names []string, from mark, limit int) ([]StoredEvent, error) {
	if profileKey == "" || !isText(profileKey, 1, MaxProfileKey) {
		return []StoredEvent{}, nil // nobody's
	}
	sql, args := selectEvent+` where workspace_id = $1 and profile_key = $2 and (received_at, key) < ($3, $4) and name <> ''`, []any{ws, profileKey, from.at, from.id}
	if names != nil {
		args = append(args, names)
		sql += fmt.Sprintf(` and name = any($%d)`, len(args))
	}
	args = append(args, limit)
	rows, err := f.pool.Query(ctx, sql+fmt.Sprintf(` order by received_at desc, key desc limit $%d`, len(args)), args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanEvent)
}

// GetEvent reads one event, with what came of it.
func (f *Flows) GetEvent(ctx context.Context, ws, key uuid.UUID) (StoredEvent, []Result, error) {
	rows, err := f.pool.Query(ctx, selectEvent+` where workspace_id = $1 and key = $2`, ws, key)
	if err != nil {
		return StoredEvent{}, nil, fmt.Errorf("get event: %w", err)
	}
	found, err := pgx.CollectRows(rows, scanEvent)
	if err != nil {
		return StoredEvent{}, nil, fmt.Errorf("get event: %w", err)
	}
	if len(found) == 0 {
		return StoredEvent{}, nil, lemma.Missing("event")
	}
	results, err := f.cameOf(ctx, ws, found[0])
	if err != nil {
		return StoredEvent{}, nil, fmt.Errorf("read what came of event %s: %w", key, err)
	}
	return found[0], results, nil
}

// cameOf finds what an event did in each flow that it triggered. A refusal is
// found by its key, which is made of the event's, in any flow: one that is
// archived by now listens to nothing any more. An enrollment has no such
// name, but it is of one time with its event, to the microsecond that the event
// has to itself in its transaction; and its first step holds the event's name
// and id.
func (f *Flows) cameOf(ctx context.Context, ws uuid.UUID, e StoredEvent) ([]Result, error) {
	rows, err := f.pool.Query(ctx, `
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
		where e.source = 'event' and t.trigger->>'name' = $4 and t.trigger->>'id' = $5
		union all
		select r.flow_id, r.enrollment_id, true, r.reason, coalesce(r.detail, '')
		from flows f cross join lateral (
			select flow_id, enrollment_id, reason, detail from refusals where workspace_id = $1 and flow_id = f.id and key = $6 limit 1
		) r where f.workspace_id = $1
		order by 1, 2`,
		ws, e.ProfileKey, e.ReceivedAt, e.Name, e.ID, refusalOf(e.Key))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Result, err error) {
		var refused bool
		err = row.Scan(&r.FlowID, &r.EnrollmentID, &refused, &r.Reason, &r.Detail)
		if r.Outcome = Enrolled; refused {
			r.Outcome = Refused
		} else {
			r.Reason = "" // how the journey ended is not the event's doing
		}
		return r, err
	})
}
