package intake

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
	"lemma/flows/enrollment"
	"lemma/flows/graph"
)

// activeEnrollment is an enrollment that an event may end or wake.
type activeEnrollment struct {
	id, flow uuid.UUID
	version  int
	profile  string
	node     string
	step     int
	awaits   string
	trigger  map[string]any // its trigger, while a condition that reads it is evaluated
	matched  bool           // its awaited event was matched before
	due      time.Time      // when its wait times out
}

// lockActive finds and locks, by profile, the enrollments that the events of one round may
// end or wake, in the order of their ids. An enrollment that is entering a wait is either
// found waiting, or checks for the event after it was recorded. One that is being inserted
// is committed before, or begins after the event: see lockProfiles.
func (t *transaction) lockActive(ctx context.Context, round []int, all []*Trigger) (of map[string][]activeEnrollment, w *woken, err error) {
	var profiles []string // a profile is in a round once
	flows := map[uuid.UUID]bool{}
	for _, i := range round {
		for _, l := range t.listeners[all[i].Name] {
			if l.use == UseTrigger {
				continue
			}
			flows[l.flow] = true
			if n := len(profiles); n == 0 || profiles[n-1] != all[i].profile {
				profiles = append(profiles, all[i].profile)
			}
		}
	}
	ids, found, err := t.find(ctx, profiles, flows)
	if err != nil {
		return nil, nil, fmt.Errorf("find active enrollments: %w", err)
	}
	on, locked, err := t.lock(ctx, ids, len(all))
	if err != nil {
		return nil, nil, fmt.Errorf("lock active enrollments: %w", err)
	}
	w = &woken{}
	t.orderEvents(round, all, found, locked, w)
	of = map[string][]activeEnrollment{}
	for _, u := range on {
		of[u.profile] = append(of[u.profile], u)
	}
	return of, w, nil
}

// find finds the active enrollments of profiles in flows by all columns of the index on
// active enrollments.
func (t *transaction) find(ctx context.Context, profiles []string, flows map[uuid.UUID]bool) (on []pgtype.UUID,
	found map[string]bool, err error) {
	found = map[string]bool{}
	if len(profiles) == 0 {
		return nil, found, nil
	}
	ids := make([]pgtype.UUID, 0, len(flows))
	for id := range flows {
		ids = append(ids, enrollment.PgUUID(id))
	}
	rows, _ := t.tx.Query(ctx, `
		select e.id, p.profile_key from unnest($2::text[]) as p (profile_key) cross join unnest($3::uuid[]) as f (id)
		cross join lateral (
			select id from enrollments where workspace_id = $1 and profile_key = p.profile_key and flow_id = f.id and overlap_key >= $4
				and status = 'active' order by overlap_key
		) e`, t.ws, profiles, ids, uuid.Nil)
	var id pgtype.UUID
	var profile string
	_, err = pgx.ForEachRow(rows, []any{&id, &profile}, func() error {
		on, found[profile] = append(on, id), true
		return nil
	})
	return on, found, err
}

// lock locks the enrollments in the order of their ids and returns those that are still
// active, and a time that is after each lock and after the time of every trigger of the
// transaction, of which there are places.
func (t *transaction) lock(ctx context.Context, ids []pgtype.UUID, places int) (on []activeEnrollment, at time.Time, err error) {
	if len(ids) == 0 {
		return nil, time.Time{}, nil
	}
	batch := &pgx.Batch{}
	batch.Queue(`
		select e.id, e.flow_id, e.version, e.profile_key, e.node, e.step, coalesce(e.awaits, ''), e.matched_event is not null,
			coalesce(e.first_due_at, e.resume_at)
		from `+enrollment.OneByOne+` (
			select id, flow_id, version, profile_key, node, step, awaits, matched_event, first_due_at, resume_at from enrollments e
			where e.workspace_id = $1 and e.id = r.id and e.ended_at is null for update
		) e`, t.ws, ids).
		Query(func(rows pgx.Rows) (err error) {
			on, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (u activeEnrollment, err error) {
				err = row.Scan(&u.id, &u.flow, &u.version, &u.profile, &u.node, &u.step, &u.awaits, &u.matched, &u.due)
				return u, err
			})
			return err
		})
	batch.Queue(`select greatest(clock_timestamp(), coalesce($2::timestamptz, now()) + $1::int * interval '1 microsecond')`, places,
		t.base).
		QueryRow(func(row pgx.Row) error { return row.Scan(&at) })
	err = t.tx.SendBatch(ctx, batch).Close()
	return on, at, err
}

// orderEvents applies the events of profiles with active enrollments at the time at which
// these were locked, and not when the transaction began: a worker may have ended their
// waits since, or another chunk may have been applied. So an event is later than all steps
// of the enrollments that it finds. Later events of the transaction stay later.
func (t *transaction) orderEvents(round []int, all []*Trigger, found map[string]bool, locked time.Time, w *woken) {
	if len(found) == 0 && len(t.applied) == 0 {
		return
	}
	for _, i := range round {
		o := all[i]
		last, late := t.applied[o.profile]
		switch {
		case found[o.profile] && locked.After(last):
			o.applied = locked
		case late:
			o.applied = last.Add(time.Microsecond)
		default:
			continue
		}
		t.applied[o.profile] = o.applied
		w.late(o)
	}
}

// react decides the effect of an event on one enrollment.
func (t *transaction) react(ctx context.Context, u activeEnrollment, o *Trigger, r *Recorded, w *woken) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	g, err := t.versions.Get(ctx, t.tx, u.flow, u.version)
	if err != nil && lemma.KindOf(err) != lemma.Internal { // the engine reports it of the enrollment
		t.log.Error("version cannot be read", "flow_id", u.flow, "version", u.version, "error", err)
		return nil
	}
	if err != nil {
		return err
	}
	for _, exit := range g.ExitOn() {
		if exit.Event != o.Name {
			continue
		}
		if t.holds(exit.Condition, u, o) {
			w.exit(u, exit.Goal, o)
			r.Exited++
			return nil
		}
	}
	node, there := g.Node(u.node)
	if u.awaits != o.Name || u.matched || u.due.Before(o.applied) || !there {
		return nil
	}
	if t.holds(node.Condition, u, o) {
		w.wake(u, o)
		t.makeDue(u.flow, u.id)
		r.Woken++
	}
	return nil
}

func (t *transaction) holds(c *graph.Condition, u activeEnrollment, o *Trigger) bool {
	if c == nil {
		return true
	}
	is, err := t.evaluate(c, graph.Vars{Event: o.Data(), Trigger: u.trigger, Now: t.recordedAt(o)})
	if err != nil {
		t.log.Debug("condition on event not decided", "flow_id", u.flow, "node", u.node, "error", err)
	}
	return is && err == nil
}

// woken are enrollments that events end or wake, and events whose applied time is later
// than their place in the transaction.
type woken struct {
	enrollment.StepRows
	counts        map[uuid.UUID]enrollment.NodeCounts // by flow
	exited        []pgtype.UUID
	exitReasons   []string
	matched, woke []pgtype.UUID
	wokeAt        []pgtype.Timestamptz
	events        []pgtype.UUID
	applied       []pgtype.Timestamptz
}

func (w *woken) late(o *Trigger) {
	w.events, w.applied = append(w.events, enrollment.PgUUID(o.Key)), append(w.applied, pgtype.Timestamptz{Time: o.applied, Valid: true})
}

func (w *woken) exit(u activeEnrollment, goal bool, o *Trigger) {
	reason := enrollment.ExitCondition
	if goal {
		reason = enrollment.ExitGoal
	}
	w.exited, w.exitReasons = append(w.exited, enrollment.PgUUID(u.id)), append(w.exitReasons, reason)
	if o.exitData == nil {
		o.exitData = map[bool]string{}
	}
	if o.exitData[goal] == "" { // one text for all enrollments that the event ends
		o.exitData[goal] = enrollment.StepData("reason", reason, "event", o.Data())
	}
	w.Add(u.id, u.step+1, u.version, u.node, enrollment.StepExited, o.exitData[goal])
	if w.counts == nil {
		w.counts = map[uuid.UUID]enrollment.NodeCounts{}
	}
	if w.counts[u.flow] == nil {
		w.counts[u.flow] = enrollment.NodeCounts{}
	}
	w.counts[u.flow][enrollment.NodeEvent{Version: u.version, Node: u.node, Event: enrollment.StepExited, Next: reason}]++
}

func (w *woken) wake(u activeEnrollment, o *Trigger) {
	w.woke, w.matched = append(w.woke, enrollment.PgUUID(u.id)), append(w.matched, enrollment.PgUUID(o.Key))
	w.wokeAt = append(w.wokeAt, pgtype.Timestamptz{Time: o.applied, Valid: true})
}

// write moves the enrollments. They are locked, so no worker has moved them since.
func (w *woken) write(ctx context.Context, tx pgx.Tx, ws uuid.UUID) error {
	batch := &pgx.Batch{}
	w.Queue(batch, ws)
	flows := slices.SortedFunc(maps.Keys(w.counts), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	for _, flow := range flows {
		w.counts[flow].Queue(batch, ws, flow, enrollment.EventsShard)
	}
	if len(w.events) > 0 {
		// See "update by insert" in enrollment/plans.go: all rows exist, since this
		// transaction wrote them.
		batch.Queue(`
			insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
			select $1, r.key, '', '', r.applied_at, r.applied_at from unnest($2::uuid[], $3::timestamptz[]) as r (key, applied_at)
			on conflict (workspace_id, key) do update set received_at = excluded.received_at`, ws, w.events, w.applied)
	}
	if len(w.exited) > 0 {
		batch.Queue(`
			update enrollments e set status = 'exited', exit_reason = r.reason, step = e.step + 1, ended_at = now(), resume_at = null,
				waiting_since = null, first_due_at = null, awaits = null, answer_step = null, blocked_reason = null
			from (select $1::uuid as workspace_id, r.* from unnest($2::uuid[], $3::text[]) as r (id, reason) limit $4) r
			where e.workspace_id = r.workspace_id and e.id = r.id and e.ended_at is null`, ws, w.exited, w.exitReasons, len(w.exited))
	}
	if len(w.woke) > 0 {
		batch.Queue(`
			update enrollments e set matched_event = r.event, resume_at = r.applied_at, first_due_at = null
			from (
				select $1::uuid as workspace_id, r.* from unnest($2::uuid[], $3::uuid[], $4::timestamptz[]) as r (id, event, applied_at) limit $5
			) r
			where e.workspace_id = r.workspace_id and e.id = r.id and e.ended_at is null and e.matched_event is null`, ws, w.woke, w.matched,
			w.wokeAt, len(w.woke))
	}
	if batch.Len() == 0 {
		return nil
	}
	return lemma.Wrap(tx.SendBatch(ctx, batch).Close(), "end and wake enrollments")
}
