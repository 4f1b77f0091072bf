package execution

import (
	"context"
	"errors"
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
				t.leaveForNextChunk(leftForMemory)
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
			if t.matchedData == nil && t.LeftFor == "" {
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
	asked := make([]*question, len(execs))
	for i, t := range execs {
		asked[i] = newQuestion(t, t.awaits, *t.waitingSince, t.Arrived)
	}
	s := e.search(e.pool, e.cfg.EventTime-b.searched)
	left, err := s.firstAccepted(ctx, asked, func(t *Execution, _ uuid.UUID, event *fact, received time.Time) {
		if !b.take(needMatchedEvent, event) {
			t.leaveForNextChunk(leftForMemory)
			return
		}
		t.matchedData, t.Arrived = event, received
	})
	for _, t := range left {
		t.leaveForNextChunk(leftForTime)
	}
	b.searched += s.spent()
	return err
}

// FindMissedEvents finds the events that enrollments miss while they enter a wait. They
// are locked, so that an event that is not visible now will find them waiting. An
// enrollment that missed an event is due now, and has reached its next node at the time of
// the event, since a later event may be what the next wait is for. The same holds for a
// wait whose time is over when it is entered. It returns the executions without those for
// which there was no time: they stay where they are, and the next chunk goes on with them.
func (e *Evaluator) FindMissedEvents(ctx context.Context, tx pgx.Tx, moved []*Execution) ([]*Execution, error) {
	execs := slices.DeleteFunc(slices.Clone(moved), func(t *Execution) bool { return !t.EntersWait() })
	if len(execs) == 0 {
		return moved, nil
	}
	asked := make([]*question, len(execs))
	for i, t := range execs {
		t.enterAgain()
		asked[i] = newQuestion(t, t.WaitsFor, *t.Since, t.Until)
	}
	s := e.search(tx, e.cfg.EventTime)
	left, err := s.firstAccepted(ctx, asked, func(t *Execution, key uuid.UUID, _ *fact, received time.Time) {
		t.MatchedEvent, t.Until, t.Arrived = &key, t.Now, received
	})
	if err != nil {
		return nil, err
	}
	for _, t := range left {
		t.leaveForNextChunk(leftForTime)
	}
	for _, t := range execs {
		if t.LeftFor == "" && t.MatchedEvent == nil && t.Until.Before(t.Now) {
			t.Until, t.Arrived, t.Overdue = t.Now, t.Until, true
		}
	}
	return Evaluated(moved), nil
}

// entry is how an execution entered a wait, before the events that it missed were found.
type entry struct{ until, arrived time.Time }

// enterAgain undoes what a transaction that was rolled back has found.
func (t *Execution) enterAgain() {
	if t.entered == nil {
		t.entered = &entry{t.Until, t.Arrived}
	}
	t.Until, t.Arrived, t.MatchedEvent, t.Overdue = t.entered.until, t.entered.arrived, nil, false
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
