package execution

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma/flows/enrollment"
)

// Awaited events: which one ended a wait, and which were recorded before the wait was
// visible.

// readMatched finds the event that ended a wait. For a due enrollment without one it
// checks a last time what was recorded since the wait began.
func (e *Evaluator) readMatched(ctx context.Context, execs []*Execution, b *budget) error {
	for _, t := range execs {
		t.checked = true
	}
	return errors.Join(e.readMatchedEvents(ctx, execs, b), e.findEvents(ctx, execs, b))
}

func (e *Evaluator) readMatchedEvents(ctx context.Context, execs []*Execution, b *budget) error {
	var keys []pgtype.UUID
	waiting := map[uuid.UUID][]*Execution{}
	for _, t := range execs {
		if t.MatchedEvent != nil {
			keys = append(keys, enrollment.PgUUID(*t.MatchedEvent))
			waiting[*t.MatchedEvent] = append(waiting[*t.MatchedEvent], t)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	rows, _ := e.pool.Query(ctx, `
		select key, name, source_id, occurred_at, received_at, case when total <= $3 or key = $4 then properties end from (
			select key, name, coalesce(source_id, '') as source_id, occurred_at, received_at, properties,
				sum(octet_length(properties)) over (rows unbounded preceding) as total
			from trigger_events where workspace_id = $1 and key = any($2)
		) e`, execs[0].WorkspaceID, keys, b.left(needMatchedEvent), keys[0])
	var key pgtype.UUID
	var name, id string
	var properties *string
	var at, received time.Time
	_, err := pgx.ForEachRow(rows, []any{&key, &name, &id, &at, &received, &properties}, func() error {
		for _, t := range waiting[key.Bytes] {
			if properties == nil {
				t.leaveForNextChunk()
				continue
			}
			t.matchedData = eventFact(name, id, at, *properties)
			t.delayed, t.Arrived = t.reached(), received // see FirstDue
		}
		if properties != nil {
			b.facts[needMatchedEvent] += len(*properties)
		}
		return nil
	})
	for _, some := range waiting { // also if the event was deleted since, after its retention
		for _, t := range some {
			if t.matchedData == nil && !t.Left {
				t.matchedData = eventFact(t.awaits, "", *t.waitingSince, "{}")
			}
		}
	}
	return err
}

func (e *Evaluator) findEvents(ctx context.Context, execs []*Execution, b *budget) error {
	execs = slices.DeleteFunc(slices.Clone(execs), func(t *Execution) bool { return t.MatchedEvent != nil || t.waitingSince == nil })
	if len(execs) == 0 {
		return nil
	}
	asked := make([]question, len(execs))
	for i, t := range execs {
		asked[i] = question{t, t.awaits, *t.waitingSince, t.Arrived}
	}
	return firstAccepted(ctx, e.pool, asked, func(t *Execution, _ uuid.UUID, event *fact, received time.Time) {
		if !b.take(needMatchedEvent, event) {
			t.leaveForNextChunk()
			return
		}
		t.matchedData, t.Arrived = event, received
	})
}

// FindMissedEvents finds the events that enrollments miss while they enter a wait. They
// are locked, so that an event that is not visible now will find them waiting. An
// enrollment that missed an event is due now, and has reached its next node at the time of
// the event, since a later event may be what the next wait is for. The same holds for a
// wait whose time is over when it is entered.
func FindMissedEvents(ctx context.Context, tx pgx.Tx, moved []*Execution) error {
	execs := slices.DeleteFunc(slices.Clone(moved), func(t *Execution) bool { return !t.EntersWait() })
	if len(execs) == 0 {
		return nil
	}
	asked := make([]question, len(execs))
	for i, t := range execs {
		asked[i] = question{t, t.WaitsFor, *t.Since, t.Until}
	}
	err := firstAccepted(ctx, tx, asked, func(t *Execution, key uuid.UUID, _ *fact, received time.Time) {
		t.MatchedEvent, t.Until, t.Arrived = &key, t.Now, received
	})
	for _, t := range execs {
		if t.MatchedEvent == nil && t.Until.Before(t.Now) {
			t.Until, t.Arrived, t.Overdue = t.Now, t.Until, true
		}
	}
	return err
}

// EntersWait reports whether a wait for an event begins with this move.
func (t *Execution) EntersWait() bool { return t.WaitsFor != "" && !t.waited() }

// accepts evaluates the condition of the wait that the execution is in, at the time at which
// an event was received.
func (t *Execution) accepts(event map[string]any, received time.Time) bool {
	node, ok := t.Node(t.NodeID)
	if !ok {
		return false
	}
	is, _ := node.Condition.Holds(event, t.trigger.value(), received)
	return is
}

// question is a query for the first event of a name that an execution's wait accepts,
// recorded after one time and until another.
type question struct {
	*Execution
	name         string
	after, until time.Time
}

// acceptance is called with the event of a query, and when it was received.
type acceptance func(t *Execution, key uuid.UUID, event *fact, received time.Time)

// firstAccepted finds the first accepted event for each execution. It reads events by the
// page until there are no more. A page has all events of its last time, since the next one
// begins after it. The form is "name and time as a row" of enrollment/plans.go.
func firstAccepted(ctx context.Context, q enrollment.Querier, asked []question, accept acceptance) error {
	for len(asked) > 0 {
		n := len(asked)
		profiles, names, after, until := make([]string, n), make([]string, n), make([]pgtype.Timestamptz, n), make([]pgtype.Timestamptz, n)
		for i, a := range asked {
			profiles[i], names[i] = a.ProfileKey, a.name
			after[i], until[i] = pgtype.Timestamptz{Time: a.after, Valid: true}, pgtype.Timestamptz{Time: a.until, Valid: true}
		}
		rows, _ := q.Query(ctx, `
			select r.i::int, e.key, coalesce(e.source_id, ''), e.occurred_at, e.received_at, e.properties
			from unnest($2::text[], $3::text[], $4::timestamptz[], $5::timestamptz[]) with ordinality as r (profile_key, name, after, until, i)
			cross join lateral (
				select v.key, v.source_id, v.occurred_at, v.received_at, v.properties from trigger_events v
				where v.workspace_id = $1 and v.profile_key = r.profile_key
				  and (v.name, v.received_at) > (r.name, r.after) and (v.name, v.received_at) <= (r.name, r.until)
				order by v.name, v.received_at fetch first ($6::int) rows with ties
			) e`, asked[0].WorkspaceID, profiles, names, after, until, eventsPage)
		var err error
		if asked, err = filterAccepted(rows, asked, accept); err != nil {
			return fmt.Errorf("find awaited events: %w", err)
		}
	}
	return nil
}

// eventsPage is the number of events of a profile that are read at a time, and those of the
// same time as the last.
const eventsPage = 100

// filterAccepted returns the executions that need another page: theirs was full and had no
// accepted event.
func filterAccepted(rows pgx.Rows, asked []question, accept acceptance) (again []question, err error) {
	var i int
	var key pgtype.UUID
	var id, properties string
	var at, received time.Time
	seen, found, before := make([]int, len(asked)), make([]bool, len(asked)), 0
	_, err = pgx.ForEachRow(rows, []any{&i, &key, &id, &at, &received, &properties}, func() error {
		if before > 0 && before != i {
			asked[before-1].forget()
		}
		before = i
		a := &asked[i-1]
		seen[i-1]++
		a.after = received
		event := eventFact(a.name, id, at, properties)
		if !found[i-1] && a.accepts(event.value(), received) {
			found[i-1] = true
			event.forget()
			accept(a.Execution, key.Bytes, event, received)
		}
		return nil
	})
	for i, a := range asked {
		if !found[i] && seen[i] >= eventsPage {
			again = append(again, a)
		}
	}
	return again, err
}
