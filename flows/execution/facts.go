package execution

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma/flows/admission"
	"lemma/flows/enrollment"
	"lemma/webhooks"
)

// Evaluate advances executions as far as possible. A fact that several need is read for
// all of them together, so that a chunk costs the customer's database one query and not a
// thousand. Executions whose facts or results exceed the budget of the chunk are left.
func (e *Evaluator) Evaluate(ctx context.Context, all []*Execution) error {
	running, skipped := all, skips{begun: time.Now(), of: map[uuid.UUID]error{}}
	b := &budget{most: e.cfg.ChunkBytes}
	var busy time.Duration // evaluating conditions and nodes, without the reading of facts
	for len(running) > 0 {
		wanting, left := map[need][]*Execution{}, []*Execution(nil) // left: not executed, for lack of time
		for i, t := range running {
			if err := ctx.Err(); err != nil {
				return err
			}
			if busy > e.cfg.ConditionTime {
				left = running[i:]
				break
			}
			if i > 0 && b.spent() {
				t.leaveForNextChunk(leftForMemory)
				continue
			}
			begun, before := time.Now(), t.size()
			n := t.execute(e.cfg.ConditionTime-busy, e.cfg.ChunkBytes)
			t.forget()
			b.made += t.size() - before
			if busy += time.Since(begun); n != nothing {
				wanting[n] = append(wanting[n], t)
			}
		}
		e.blockCostly(wanting[needTime], codeConditionTime, mostDoublings)
		e.blockCostly(left, codeConditionTime, fewDoublings)
		e.blockCostly(wanting[needMemory], codeChunkBytes, 0)
		running = running[:0:0]
		for n := needProfile; n <= needActed; n++ {
			if err := e.find(ctx, n, wanting[n], skipped, b); err != nil {
				return err
			}
			running = append(running, Evaluated(wanting[n])...)
		}
	}
	return nil
}

// find reads a fact for executions. A source that fails blocks the executions that need
// it; an error is one of Lemma's own database.
func (e *Evaluator) find(ctx context.Context, n need, execs []*Execution, skipped skips, b *budget) error {
	if len(execs) == 0 {
		return nil
	}
	switch n {
	case needProfile:
		e.readProfiles(ctx, execs, b)
		return nil
	case needMatch:
		e.querySource(ctx, execs, skipped)
		return nil
	case needTrigger:
		return e.readTriggers(ctx, execs, b)
	case needEvents:
		return e.readEvents(ctx, execs, b)
	case needMatchedEvent:
		return e.readMatched(ctx, execs, b)
	case needAnswer:
		return e.readAnswers(ctx, execs)
	default:
		return e.readActed(ctx, execs)
	}
}

// readProfiles reads the profiles of executions of each version.
func (e *Evaluator) readProfiles(ctx context.Context, execs []*Execution, b *budget) {
	for r, some := range byRoute(execs) {
		e.queryFor(ctx, r.source, admission.Blocked{Workspace: r.WorkspaceID, Source: r.source}, some,
			func(some []*Execution) error { return e.readRows(ctx, r, some, b) })
	}
}

// readRows reads the profiles of executions of one version. A part of a chunk that is read
// after the budget was used up is left.
func (e *Evaluator) readRows(ctx context.Context, r *Route, execs []*Execution, b *budget) error {
	if b.left(needProfile) == 0 {
		for _, t := range execs {
			t.leaveForNextChunk(leftForMemory)
		}
		return nil
	}
	keys := make([]string, 0, len(execs))
	for _, t := range execs {
		keys = append(keys, t.ProfileKey)
	}
	slices.Sort(keys)
	found, err := e.audiences.Lookup(ctx, r.WorkspaceID, r.audience, r.ProfileColumns, slices.Compact(keys), b.left(needProfile))
	if err != nil {
		return err
	}
	b.facts[needProfile] += found.Bytes
	for _, t := range execs {
		if found.Left[t.ProfileKey] {
			t.leaveForNextChunk(leftForMemory)
			continue
		}
		row, there := found.Rows[t.ProfileKey]
		t.profile = &Profile{Row: row, Missing: !there, others: found.Others[t.ProfileKey], more: found.More[t.ProfileKey]}
	}
	return nil
}

func byRoute(execs []*Execution) map[*Route][]*Execution {
	parts := map[*Route][]*Execution{}
	for _, t := range execs {
		parts[t.Route] = append(parts[t.Route], t)
	}
	return parts
}

// readTriggers reads what enrolled the executions: the data of step 0.
func (e *Evaluator) readTriggers(ctx context.Context, execs []*Execution, b *budget) error {
	triggers, err := enrollment.ReadTriggers(ctx, e.pool, execs[0].WorkspaceID, IDs(execs), b.left(needTrigger))
	if err != nil {
		return err
	}
	for _, t := range execs {
		switch data, there := triggers[t.ID]; {
		case !there:
			t.trigger = given(map[string]any{})
		case data == nil:
			t.leaveForNextChunk(leftForMemory)
		default:
			t.trigger = triggerFact(*data)
			b.facts[needTrigger] += t.trigger.size
		}
	}
	return nil
}

// readEvents sums up the events of the profiles since they enrolled, for the names that
// conditions read: of some at first, and then of more at a time, until the time of the chunk is used up.
func (e *Evaluator) readEvents(ctx context.Context, execs []*Execution, b *budget) error {
	for r, some := range byRoute(execs) {
		names := r.eventsRead()
		for n := max(1, firstSums/max(1, len(names))); len(some) > 0; {
			if b.counted > 0 && (b.counted >= e.cfg.EventTime || b.left(needEvents) == 0) {
				limit := leftForTime
				if b.left(needEvents) == 0 {
					limit = leftForMemory
				}
				for _, t := range some {
					t.leaveForNextChunk(limit)
				}
				break
			}
			begun, next := time.Now(), some[:min(n, len(some))]
			if err := e.sumUp(ctx, next, names, b); err != nil {
				return fmt.Errorf("read events: %w", err)
			}
			took := time.Since(begun)
			if some = some[len(next):]; took < e.cfg.EventTime/8 {
				n *= 2
			}
			b.counted += took
		}
	}
	return nil
}

// firstSums is how many sums of events are read at first: each counts up to MaxTimes.
const firstSums = 50

// MaxTimes is the highest count of events of one name.
const MaxTimes = 10_000

// sumUp reads the first and the last event by the time at which they were recorded, whatever
// occurred_at is, so that the times and the properties are of the same events. Only the
// count is bounded: the two are found by one index probe each, however many there are. If
// there is a first one since the enrollment, the last one of all is recorded since, too.
//
// The name is a range of one value, so that the rows are ordered by it and by received_at:
// "order by the index" of enrollment/plans.go. Only trigger_events_profile has that order.
// For received_at alone, trigger_events_age looks as cheap while few profiles have events.
func (e *Evaluator) sumUp(ctx context.Context, execs []*Execution, names []string, b *budget) error {
	profiles, since := make([]string, len(execs)), make([]pgtype.Timestamptz, len(execs))
	for i, t := range execs {
		t.events = make(map[string]past, len(names))
		for _, name := range names {
			t.events[name] = past{last: "{}"}
		}
		profiles[i], since[i] = t.ProfileKey, pgtype.Timestamptz{Time: t.EnrolledAt, Valid: true}
	}
	rows, _ := e.pool.Query(ctx, `
		select i, name, times, first_at, last_at, case when total <= $6 or i = 1 then properties end from (
		select r.i::int as i, n.name, e.times, f.occurred_at as first_at, l.occurred_at as last_at, l.properties,
			sum(octet_length(l.properties)) over (rows unbounded preceding) as total
		from unnest($2::text[], $3::timestamptz[]) with ordinality as r (profile_key, since, i)
		cross join unnest($4::text[]) as n (name)
		cross join lateral (
			select v.occurred_at from trigger_events v
			where v.workspace_id = $1 and v.profile_key = r.profile_key and v.name between n.name and n.name and v.received_at > r.since
			order by v.name, v.received_at limit 1
		) f
		cross join lateral (
			select count(*)::int as times from (
				select from trigger_events v
				where v.workspace_id = $1 and v.profile_key = r.profile_key and v.name between n.name and n.name and v.received_at > r.since
				order by v.name, v.received_at limit $5
			) v
		) e
		cross join lateral (
			select v.occurred_at, v.properties from trigger_events v
			where v.workspace_id = $1 and v.profile_key = r.profile_key and v.name between n.name and n.name
			order by v.name desc, v.received_at desc limit 1
		) l ) e`, execs[0].WorkspaceID, profiles, since, names, MaxTimes, b.left(needEvents))
	var i, times int
	var name string
	var last *string
	var first, latest time.Time
	left := map[*Execution]bool{}
	_, err := pgx.ForEachRow(rows, []any{&i, &name, &times, &first, &latest, &last}, func() error {
		if last == nil {
			left[execs[i-1]] = true
			return nil
		}
		b.facts[needEvents] += len(*last)
		execs[i-1].events[name] = summed(times, first, latest, *last)
		return nil
	})
	for t := range left {
		t.leaveForNextChunk(leftForMemory)
	}
	return err
}

// eventsRead are the names of events that the version's branches read.
func (r *Route) eventsRead() []string {
	var names []string
	for id := range r.Definition().Nodes {
		node, _ := r.Node(id)
		for _, c := range node.Cases {
			if c.Cond != nil {
				names = append(names, c.Cond.Uses().Events...)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// readAnswers reads the answers of endpoints. An execution that was woken too early
// continues to wait; without an answer or a pending message, the message was given up.
func (e *Evaluator) readAnswers(ctx context.Context, execs []*Execution) error {
	ids := make([]uuid.UUID, len(execs))
	for i, t := range execs {
		ids[i] = enrollment.NodeKey(t.ID, t.NodeID)
	}
	// Pending is read before the answers: a message that ends between the two is among them.
	pending, err := e.webhooks.Pending(ctx, execs[0].WorkspaceID, ids)
	if err != nil {
		return fmt.Errorf("read webhook answers: %w", err)
	}
	answers, err := e.webhooks.Outcomes(ctx, execs[0].WorkspaceID, ids)
	if err != nil {
		return fmt.Errorf("read webhook answers: %w", err)
	}
	for i, t := range execs {
		answer, ok := answers[ids[i]]
		until := t.waitingSince.Add(AnswerWithin)
		switch {
		case ok:
			t.answer = &answer
		case !pending[ids[i]]:
			t.answer = &webhooks.Outcome{Error: "gone"}
		case until.After(t.Now):
			t.Since, t.Until = t.waitingSince, until
		default:
			t.Block("webhook_unanswered", time.Hour)
		}
	}
	return nil
}

// acted is what a node has done for an enrollment: as a send, as a webhook, or as both if
// its type has changed between two versions.
type acted struct {
	message string // enrollment.StepSent, or StepSkipped; a written notification precedes a skip
	called  bool
}

// readActed reads which nodes have acted for enrollments that were moved.
func (e *Evaluator) readActed(ctx context.Context, execs []*Execution) error {
	of := ByID(execs)
	for _, t := range execs {
		t.acted = map[string]acted{}
	}
	rows, _ := e.pool.Query(ctx, `
		select enrollment_id, node, event, coalesce(data, '{}') from enrollment_steps
		where workspace_id = $1 and enrollment_id = any($2) and event = any($3)`, execs[0].WorkspaceID, IDs(execs),
		[]string{enrollment.StepSent, enrollment.StepSkipped, enrollment.StepWebhook})
	var id pgtype.UUID
	var node, event, data string
	_, err := pgx.ForEachRow(rows, []any{&id, &node, &event, &data}, func() error {
		of := of[id.Bytes].acted
		has := of[node]
		switch {
		case event == enrollment.StepWebhook:
			has.called = true
		case event == enrollment.StepSent, has.message == "" && !ofWebhook(data):
			has.message = event
		}
		of[node] = has
		return nil
	})
	return err
}

// ofWebhook reports whether a skipped step is a webhook's: no notification was written.
func ofWebhook(data string) bool {
	reason := enrollment.ReadObject([]byte(data))["reason"]
	return reason == TooLarge || reason == AlreadyCalled
}

// ByID indexes executions by their ids.
func ByID(execs []*Execution) map[uuid.UUID]*Execution {
	of := make(map[uuid.UUID]*Execution, len(execs))
	for _, t := range execs {
		of[t.ID] = t
	}
	return of
}

// IDs are the ids of executions.
func IDs(execs []*Execution) []pgtype.UUID {
	ids := make([]pgtype.UUID, len(execs))
	for i, t := range execs {
		ids[i] = enrollment.PgUUID(t.ID)
	}
	return ids
}
