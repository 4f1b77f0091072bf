package flows

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/flows/graph"
)

// underway is an enrollment that an event may end or wake.
type underway struct {
	id, flow uuid.UUID
	version  int
	profile  string
	node     string
	step     int
	awaits   string
	trigger  map[string]any // what it came in with, if a condition asks for it
	heard    bool           // it has heard the event that it waits for
	due      time.Time      // when the time for that has passed
}

// interrupt ends the journeys that the events of one round are the end of, and
// wakes those that waited for one. The enrollments are locked first, in the
// order of their ids like everywhere: somebody who is just entering a wait is
// either seen in it, or looks for the event after it was written down. Somebody
// who is just being enrolled is enrolled before, or not at all: see lockProfiles.
func (t *take) interrupt(ctx context.Context, round []int, all []*occurrence, done []Recorded) error {
	came := map[string]int{} // profile -> index
	var profiles []string
	flows := map[uuid.UUID]bool{}
	for _, i := range round {
		for _, l := range t.listeners[all[i].name] {
			if l.use == useTrigger {
				continue
			}
			flows[l.flow] = true
			if _, ok := came[all[i].profile]; !ok {
				came[all[i].profile] = i
				profiles = append(profiles, all[i].profile)
			}
		}
	}
	ids, found, err := t.find(ctx, profiles, flows)
	if err != nil {
		return fmt.Errorf("find who is on the way: %w", err)
	}
	on, locked, err := t.lock(ctx, ids, len(all))
	if err != nil {
		return fmt.Errorf("lock who is on the way: %w", err)
	}
	if err := t.readTriggersOf(ctx, on); err != nil {
		return err
	}
	var w woken
	t.giveTurns(round, all, found, locked, &w)
	for _, u := range on {
		i := came[u.profile]
		if err := t.hear(ctx, u, all[i], &done[i], &w); err != nil {
			return err
		}
	}
	return w.write(ctx, t.tx, t.ws)
}

// find finds who of profiles is on the way in flows: by profile, flow and slot,
// all of the index on those who are.
func (t *take) find(ctx context.Context, profiles []string, flows map[uuid.UUID]bool) (on []pgtype.UUID, found map[string]bool, err error) {
	found = map[string]bool{}
	if len(profiles) == 0 {
		return nil, found, nil
	}
	ids := make([]pgtype.UUID, 0, len(flows))
	for id := range flows {
		ids = append(ids, wire(id))
	}
	rows, err := t.tx.Query(ctx, `
		select e.id, p.profile_key from unnest($2::text[]) as p (profile_key) cross join unnest($3::uuid[]) as f (id)
		cross join lateral (
			select id from enrollments where workspace_id = $1 and profile_key = p.profile_key and flow_id = f.id and slot >= $4 and status = 'active' order by slot
		) e`, t.ws, profiles, ids, uuid.Nil)
	if err != nil {
		return nil, nil, err
	}
	var id pgtype.UUID
	var profile string
	_, err = pgx.ForEachRow(rows, []any{&id, &profile}, func() error {
		on, found[profile] = append(on, id), true
		return nil
	})
	return on, found, err
}

// lock locks them, in the order of their ids, and answers who is still on the
// way, and the time: after each of them was locked, and after every place of the
// transaction, of which there are so many.
func (t *take) lock(ctx context.Context, ids []pgtype.UUID, places int) (on []underway, at time.Time, err error) {
	if len(ids) == 0 {
		return nil, time.Time{}, nil
	}
	batch := &pgx.Batch{}
	batch.Queue(`
		select e.id, e.flow_id, e.version, e.profile_key, e.node, e.step, coalesce(e.awaits, ''), e.heard is not null, coalesce(e.due_since, e.resume_at)
		from `+oneByOne+` (select * from enrollments e where e.workspace_id = $1 and e.id = r.id and e.ended_at is null for update) e`, t.ws, ids).
		Query(func(rows pgx.Rows) (err error) {
			on, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (u underway, err error) {
				err = row.Scan(&u.id, &u.flow, &u.version, &u.profile, &u.node, &u.step, &u.awaits, &u.heard, &u.due)
				return u, err
			})
			return err
		})
	batch.Queue(`select greatest(clock_timestamp(), coalesce($2::timestamptz, now()) + $1::int * interval '1 microsecond')`, places, t.base).
		QueryRow(func(row pgx.Row) error { return row.Scan(&at) })
	err = t.tx.SendBatch(ctx, batch).Close()
	return on, at, err
}

// giveTurns gives the events of those who were found the time at which they had
// been locked, and not that at which the transaction began: meanwhile a worker
// may have ended their waits, or another lot was before us. So an event is after
// all that was done to the people whom it finds; nobody has seen it yet. What
// comes after it in its transaction stays after it, whatever that means.
func (t *take) giveTurns(round []int, all []*occurrence, found map[string]bool, locked time.Time, w *woken) {
	if len(found) == 0 && len(t.turns) == 0 {
		return
	}
	for _, i := range round {
		o := all[i]
		last, late := t.turns[o.profile]
		switch {
		case found[o.profile] && locked.After(last):
			o.turn = locked
		case late:
			o.turn = last.Add(time.Microsecond)
		default:
			continue
		}
		t.turns[o.profile] = o.turn
		w.late(o)
	}
}

// hear decides what an event means to one enrollment.
func (t *take) hear(ctx context.Context, u underway, o *occurrence, r *Recorded, w *woken) error {
	g, err := t.graphs.get(ctx, t.tx, t.ws, u.flow, u.version)
	if err != nil && lemma.KindOf(err) != lemma.Internal { // the engine says so of the enrollment
		t.log.Error("version cannot be read", "flow_id", u.flow, "version", u.version, "error", err)
		return nil
	}
	if err != nil {
		return err
	}
	for _, exit := range g.ExitOn() {
		if exit.Event != o.name {
			continue
		}
		if t.holds(exit.Condition, u, o) {
			w.exit(u, exit.Goal, o)
			r.Exited++
			return nil
		}
	}
	node, there := g.Node(u.node)
	if u.awaits != o.name || u.heard || u.due.Before(o.turn) || !there {
		return nil
	}
	if t.holds(node.Condition, u, o) {
		w.wake(u, o)
		t.makesDue(u.flow, u.id)
		r.Woken++
	}
	return nil
}

func (t *take) holds(c *graph.Condition, u underway, o *occurrence) bool {
	is, err := holds(c, o.trigger(), u.trigger, o.at)
	if err != nil {
		t.log.Debug("condition on event not decided", "flow_id", u.flow, "node", u.node, "error", err)
	}
	return is
}

// holds evaluates a condition on an event. One that cannot be decided is
// false: an event must not be lost over it, nor end a journey.
func holds(c *graph.Condition, event, trigger map[string]any, now time.Time) (bool, error) {
	if c == nil {
		return true, nil
	}
	is, err := c.Eval(graph.Vars{Event: event, Trigger: trigger, Now: now})
	return is && err == nil, err
}

// readTriggersOf reads, for all together, what those came in with whose
// conditions ask for it.
func (t *take) readTriggersOf(ctx context.Context, on []underway) error {
	var ids []pgtype.UUID
	at := map[uuid.UUID]int{}
	for i, u := range on {
		g, err := t.graphs.get(ctx, t.tx, t.ws, u.flow, u.version)
		if err == nil && asksForTrigger(g, u.node) {
			ids, at[u.id] = append(ids, wire(u.id)), i
		}
	}
	if len(ids) == 0 {
		return nil
	}
	triggers, err := triggersOf(ctx, t.tx, t.ws, ids)
	for id, trigger := range triggers {
		on[at[id]].trigger = trigger
	}
	return err
}

func asksForTrigger(g *graph.Graph, node string) bool {
	for _, exit := range g.ExitOn() {
		if exit.Condition != nil && exit.Condition.Uses().Trigger {
			return true
		}
	}
	n, ok := g.Node(node)
	return ok && n.Condition != nil && n.Condition.Uses().Trigger
}

// eventsTurn is the share of the books that events write in: none of a worker's.
const eventsTurn = Turns

// woken are enrollments that events end or wake, and events that had their turn
// later than they were written down.
type woken struct {
	steps
	counts        map[uuid.UUID]passed // by flow
	exited        []pgtype.UUID
	exitReasons   []string
	heardBy, woke []pgtype.UUID
	wokeAt        []pgtype.Timestamptz
	events        []pgtype.UUID
	turns         []pgtype.Timestamptz
}

func (w *woken) late(o *occurrence) {
	w.events, w.turns = append(w.events, wire(o.key)), append(w.turns, pgtype.Timestamptz{Time: o.turn, Valid: true})
}

func (w *woken) exit(u underway, goal bool, o *occurrence) {
	reason := ExitCondition
	if goal {
		reason = ExitGoal
	}
	w.exited, w.exitReasons = append(w.exited, wire(u.id)), append(w.exitReasons, reason)
	w.add(u.id, u.step+1, u.version, u.node, stepExited, object("reason", reason, "event", o.trigger()))
	if w.counts == nil {
		w.counts = map[uuid.UUID]passed{}
	}
	if w.counts[u.flow] == nil {
		w.counts[u.flow] = passed{}
	}
	w.counts[u.flow][passedKey{u.version, u.node, stepExited, ""}]++
}

func (w *woken) wake(u underway, o *occurrence) {
	w.woke, w.heardBy = append(w.woke, wire(u.id)), append(w.heardBy, wire(o.key))
	w.wokeAt = append(w.wokeAt, pgtype.Timestamptz{Time: o.turn, Valid: true})
}

// write moves them. They are locked, so that nobody has moved them since.
func (w *woken) write(ctx context.Context, tx pgx.Tx, ws uuid.UUID) error {
	batch := &pgx.Batch{}
	w.queue(batch, ws)
	flows := slices.SortedFunc(maps.Keys(w.counts), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	for _, flow := range flows {
		w.counts[flow].queue(batch, ws, flow, eventsTurn)
	}
	if len(w.events) > 0 {
		// An update by way of an insert, which finds them by their keys whatever a
		// planner believes: they are all there, since this transaction wrote them.
		batch.Queue(`
			insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
			select $1, r.key, '', '', r.turn, r.turn from unnest($2::uuid[], $3::timestamptz[]) as r (key, turn)
			on conflict (workspace_id, key) do update set received_at = excluded.received_at`, ws, w.events, w.turns)
	}
	if len(w.exited) > 0 {
		batch.Queue(`
			update enrollments e set status = 'exited', exit_reason = r.reason, step = e.step + 1, ended_at = now(), resume_at = null,
				waiting_since = null, due_since = null, awaits = null, answer_step = null, trouble = null
			from (select $1::uuid as workspace_id, r.* from unnest($2::uuid[], $3::text[]) as r (id, reason) limit $4) r
			where e.workspace_id = r.workspace_id and e.id = r.id and e.ended_at is null`, ws, w.exited, w.exitReasons, len(w.exited))
	}
	if len(w.woke) > 0 {
		batch.Queue(`
			update enrollments e set heard = r.event, resume_at = r.turn, due_since = null
			from (select $1::uuid as workspace_id, r.* from unnest($2::uuid[], $3::uuid[], $4::timestamptz[]) as r (id, event, turn) limit $5) r
			where e.workspace_id = r.workspace_id and e.id = r.id and e.ended_at is null and e.heard is null`, ws, w.woke, w.heardBy, w.wokeAt, len(w.woke))
	}
	if batch.Len() == 0 {
		return nil
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("end and wake enrollments: %w", err)
	}
	return nil
}
