package flows

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/flows/graph"
)

// take is one transaction that takes in triggers of one workspace. All that it
// may enroll into is locked in share mode before it looks, so that a publish, a
// pause or an archive falls wholly before it or wholly after it.
type take struct {
	*Flows
	tx        pgx.Tx
	ws        uuid.UUID
	listeners map[string][]listener // by event
	flows     map[uuid.UUID]liveFlow
	base      pgtype.Timestamptz   // when it began, if not with its transaction: see lockProfiles
	turns     map[string]time.Time // profile that was found on the way -> when its last event had its turn
	due       map[share]bool       // where it has made somebody due
}

// makesDue remembers where to ring when the transaction has ended.
func (t *take) makesDue(flow, enrollment uuid.UUID) {
	if t.due == nil {
		t.due = map[share]bool{}
	}
	t.due[share{t.ws, flow, turnOf(enrollment)}] = true
}

// liveFlow is what a trigger has to know of a flow.
type liveFlow struct {
	id         uuid.UUID
	status     Status
	version    int  // the live one
	overlapped bool // a version that allowed overlap was live once
	recurred   bool // versions with different recurrences were live
}

// listener is a version to which an event means something.
type listener struct {
	flow    uuid.UUID
	version int
	use     string
}

const (
	useTrigger = "trigger"
	useExit    = "exit"
	useWait    = "wait"
)

// events records events and does what they mean.
func (t *take) events(ctx context.Context, all []*occurrence) ([]Recorded, error) {
	done := make([]Recorded, len(all))
	for i, o := range all {
		o.place, o.turn = i, time.Time{} // it may be told a second time, when another transaction broke ours off
	}
	if err := t.listen(ctx, all); err != nil {
		return nil, err
	}
	if err := t.lockProfiles(ctx, all); err != nil {
		return nil, err
	}
	fresh, err := t.keep(ctx, all)
	if err != nil {
		return nil, err
	}
	for i, o := range all {
		done[i].Key, done[i].Duplicate = o.key, !fresh[i]
	}
	if err := t.compare(ctx, all, done); err != nil {
		return nil, fmt.Errorf("compare events told before: %w", err)
	}
	if len(t.listeners) == 0 {
		return done, nil
	}
	t.turns = map[string]time.Time{}
	for _, round := range rounds(all) {
		round = slices.DeleteFunc(round, func(i int) bool { return done[i].Duplicate || done[i].Err != nil })
		if err := t.interrupt(ctx, round, all, done); err != nil {
			return nil, err
		}
		if err := t.enroll(ctx, round, all, done); err != nil {
			return nil, err
		}
	}
	return done, nil
}

// compare refuses an id that was told before of somebody or something else: it
// is no repetition, and to drop it as one would lose an event.
func (t *take) compare(ctx context.Context, all []*occurrence, done []Recorded) error {
	var keys []pgtype.UUID
	for i, o := range all {
		if done[i].Duplicate {
			keys = append(keys, wire(o.key))
		}
	}
	if len(keys) == 0 {
		return nil
	}
	rows, err := t.tx.Query(ctx, `select key, profile_key, name from trigger_events where workspace_id = $1 and key = any($2)`, t.ws, keys)
	if err != nil {
		return err
	}
	type told struct{ profile, name string }
	before := map[uuid.UUID]told{}
	var key pgtype.UUID
	var one told
	if _, err = pgx.ForEachRow(rows, []any{&key, &one.profile, &one.name}, func() error { before[key.Bytes] = one; return nil }); err != nil {
		return err
	}
	for i, o := range all {
		if was, ok := before[o.key]; done[i].Duplicate && ok && was != (told{o.profile, o.name}) {
			done[i] = Recorded{Key: o.key, Err: idConflict("another event was told under this id: of another profile, or with another name")}
		}
	}
	return nil
}

func idConflict(detail string) error {
	e := lemma.Fault("/id", "id_conflict", "%s", detail)
	e.Kind, e.Code, e.Message = lemma.Conflict, "id_conflict", "the id belongs to another request"
	return e
}

// rounds parts occurrences so that a profile is in each part once: what is
// set-based about one part is as if each had come alone.
func rounds(all []*occurrence) [][]int {
	places := make([]int, len(all))
	for i := range places {
		places[i] = i
	}
	return onceEach(places, func(i int) string { return all[i].profile })
}

// onceEach parts things so that nobody of whom they are is in a part twice, in
// the order in which they came.
func onceEach[T any](all []T, of func(T) string) [][]T {
	var parts [][]T
	times := make(map[string]int, len(all))
	for _, one := range all {
		n := times[of(one)]
		times[of(one)]++
		if n == len(parts) {
			parts = append(parts, nil)
		}
		parts[n] = append(parts[n], one)
	}
	return parts
}

// inTurn is the time of what happens in one transaction: a microsecond for each
// place, so that what was told later is later, and an enrollment or a wait knows
// what came after it. Of events of those who are found on the way it is no more
// than the earliest: see giveTurns. Base is the parameter that holds the take's.
func inTurn(base string) string {
	return `coalesce(` + base + `::timestamptz, now()) + r.place * interval '1 microsecond'`
}

// keep writes the events down. Which of them are new is what the insert says,
// not a look before it; of two with one id in the same lot the first is.
func (t *take) keep(ctx context.Context, all []*occurrence) (fresh []bool, err error) {
	batch := &pgx.Batch{}
	written := t.queueEvents(batch, all)
	if err := t.tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("keep events: %w", err)
	}
	fresh = make([]bool, len(all))
	for i, o := range all {
		fresh[i] = written[o.key]
		delete(written, o.key)
	}
	return fresh, nil
}

// queueEvents inserts occurrences in the order of their keys, and tells which
// were new when the batch has been sent.
func (t *take) queueEvents(batch *pgx.Batch, all []*occurrence) (written map[uuid.UUID]bool) {
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return bytes.Compare(all[a].key[:], all[b].key[:]) })
	n := len(all)
	keys, ids, profiles := make([]pgtype.UUID, n), make([]pgtype.Text, n), make([]string, n)
	properties, times, places := make([]string, n), make([]pgtype.Timestamptz, n), make([]int32, n)
	names := make([]string, n)
	for to, i := range order {
		o := all[i]
		keys[to], ids[to], profiles[to] = wire(o.key), pgtype.Text{String: o.sourceID, Valid: o.sourceID != ""}, o.profile
		names[to], properties[to], times[to], places[to] = o.name, o.properties, pgtype.Timestamptz{Time: o.at, Valid: true}, int32(o.place)
	}
	written = make(map[uuid.UUID]bool, n)
	batch.Queue(`
		insert into trigger_events (workspace_id, key, source_id, profile_key, name, properties, occurred_at, received_at)
		select $1, r.key, r.source_id, r.profile_key, r.name, r.properties, r.occurred_at, `+inTurn("$9")+`
		from unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::timestamptz[], $8::int[])
			as r (key, source_id, profile_key, name, properties, occurred_at, place)
		on conflict (workspace_id, key) do nothing returning key`, t.ws, keys, ids, profiles, names, properties, times, places, t.base).
		Query(func(rows pgx.Rows) error {
			var key pgtype.UUID
			_, err := pgx.ForEachRow(rows, []any{&key}, func() error {
				written[key.Bytes] = true
				return nil
			})
			return err
		})
	return written
}

// listen asks to which versions the events mean something, and locks their flows
// against being changed meanwhile.
func (t *take) listen(ctx context.Context, all []*occurrence) error {
	names := make([]string, len(all))
	for i, o := range all {
		names[i] = o.name
	}
	slices.Sort(names)
	names = slices.Compact(names)
	t.listeners, t.flows = map[string][]listener{}, map[uuid.UUID]liveFlow{}
	batch := &pgx.Batch{}
	batch.Queue(`
		select pg_advisory_xact_lock_shared(`+flowLockOf("l.flow_id")+`)
		from (select distinct flow_id from flow_listeners where workspace_id = $1 and event = any($2) order by flow_id) l`, t.ws, names)
	batch.Queue(`
		select l.event, l.use, l.version, f.id, f.status, coalesce(f.live_version, 0), f.overlapped, f.recurred
		from flow_listeners l join flows f on f.workspace_id = l.workspace_id and f.id = l.flow_id
		where l.workspace_id = $1 and l.event = any($2) and (l.use <> 'trigger' or l.version = f.live_version)
		order by f.id, l.event for share of f`, t.ws, names).
		Query(func(rows pgx.Rows) error {
			var event string
			var l listener
			var f liveFlow
			_, err := pgx.ForEachRow(rows, []any{&event, &l.use, &l.version, &f.id, &f.status, &f.version, &f.overlapped, &f.recurred}, func() error {
				l.flow = f.id
				t.listeners[event] = append(t.listeners[event], l)
				t.flows[f.id] = f
				return nil
			})
			return err
		})
	if err := t.tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("find who listens: %w", err)
	}
	return nil
}

// readFlow locks the one flow that people are to be enrolled in.
func (t *take) readFlow(ctx context.Context, id uuid.UUID) error {
	f := liveFlow{id: id}
	if err := lockForPeople(ctx, t.tx, id); err != nil {
		return err
	}
	err := t.tx.QueryRow(ctx, `select status, coalesce(live_version, 0), overlapped, recurred from flows where workspace_id = $1 and id = $2 for share`, t.ws, id).
		Scan(&f.status, &f.version, &f.overlapped, &f.recurred)
	if errors.Is(err, pgx.ErrNoRows) {
		return lemma.Missing("flow")
	}
	if err != nil {
		return fmt.Errorf("lock flow %s: %w", id, err)
	}
	t.flows = map[uuid.UUID]liveFlow{id: f}
	return nil
}

// candidate is an occurrence that asks to enroll into a flow.
type candidate struct {
	*occurrence
	index   int // of the occurrence
	flow    liveFlow
	id      uuid.UUID // of the enrollment to be
	key     uuid.UUID // uniqueness key
	overlap bool

	outcome string
	reason  string
	detail  string
	rival   *uuid.UUID
}

// enroll lets the occurrences of one round enroll, and records what came of
// each: the insert decides, and whom it passes over is refused with a reason.
func (t *take) enroll(ctx context.Context, round []int, all []*occurrence, done []Recorded) error {
	candidates, err := t.candidates(ctx, round, all)
	if err != nil || len(candidates) == 0 {
		return err
	}
	asking := slices.DeleteFunc(slices.Clone(candidates), func(c *candidate) bool { return c.outcome != "" })
	if asking, err = t.refuseOverlap(ctx, asking); err != nil {
		return fmt.Errorf("find who came in with others: %w", err)
	}
	if asking, err = t.refuseRepeated(ctx, asking); err != nil {
		return fmt.Errorf("find who came in by another recurrence: %w", err)
	}
	if err := t.insert(ctx, asking); err != nil {
		return fmt.Errorf("insert enrollments: %w", err)
	}
	if err := t.findRivals(ctx, asking); err != nil {
		return fmt.Errorf("find who is enrolled: %w", err)
	}
	if err := t.write(ctx, candidates); err != nil {
		return fmt.Errorf("write what triggers did: %w", err)
	}
	for _, c := range candidates {
		r := Result{FlowID: c.flow.id, Outcome: c.outcome, Reason: c.reason, Detail: c.detail, EnrollmentID: c.rival}
		if c.outcome == Enrolled {
			r.EnrollmentID = &c.id
			t.makesDue(c.flow.id, c.id)
		}
		done[c.index].Results = append(done[c.index].Results, r)
	}
	return nil
}

func (c *candidate) refuse(reason, format string, args ...any) {
	c.outcome, c.reason, c.detail = Refused, reason, fmt.Sprintf(format, args...)
}

// candidates are in the order in which all transactions insert, so that no two
// of them wait for each other.
func (t *take) candidates(ctx context.Context, round []int, all []*occurrence) ([]*candidate, error) {
	var found []*candidate
	for _, i := range round {
		for _, f := range t.into(all[i]) {
			c := &candidate{occurrence: all[i], index: i, flow: f}
			found = append(found, c)
			if err := t.decide(ctx, c); err != nil {
				return nil, err
			}
		}
	}
	slices.SortFunc(found, func(a, b *candidate) int {
		return cmp.Or(strings.Compare(a.profile, b.profile), bytes.Compare(a.flow.id[:], b.flow.id[:]), bytes.Compare(a.key[:], b.key[:]))
	})
	return found, nil
}

// into lists the flows that an occurrence may enroll into.
func (t *take) into(o *occurrence) []liveFlow {
	if o.source != fromEvent {
		return []liveFlow{t.flows[o.flow]}
	}
	var flows []liveFlow
	for _, l := range t.listeners[o.name] {
		if l.use == useTrigger {
			flows = append(flows, t.flows[l.flow])
		}
	}
	return flows
}

// decide refuses what can be refused without the profile.
func (t *take) decide(ctx context.Context, c *candidate) error {
	switch {
	case c.flow.status == Paused:
		c.refuse(IsPaused, "the flow is paused")
		return nil
	case c.flow.status != Live:
		c.refuse(NotLive, "the flow is %s", c.flow.status)
		return nil
	}
	g, err := t.graphs.get(ctx, t.tx, t.ws, c.flow.id, c.flow.version)
	if err != nil && lemma.KindOf(err) != lemma.Internal { // one flow's fault must not be every event's
		c.refuse(ConditionError, "version %d cannot be read: %s", c.flow.version, lemma.Public(err))
		return nil
	}
	if err != nil {
		return err
	}
	for _, trigger := range g.Triggers() {
		if c.source != fromEvent || trigger.Event != c.name || trigger.Condition == nil || trigger.Condition.Uses().Profile {
			continue // a condition on the profile is looked at when the enrollment enters
		}
		if ok, err := trigger.Condition.Eval(graph.Vars{Trigger: c.trigger(), Now: c.at}); err != nil {
			c.refuse(ConditionError, "the condition cannot be decided: %s", err)
			return nil
		} else if !ok {
			c.refuse(Filtered, "the trigger's condition is false")
			return nil
		}
	}
	properties, _ := c.trigger()["properties"].(map[string]any)
	c.key, err = g.Key(graph.Occurrence{ProfileKey: c.profile, Event: c.occurrence.key, At: c.at, Properties: properties})
	if err != nil {
		c.refuse(MissingField, "%s", lemma.Public(err))
	}
	c.id, c.overlap = lemma.NewID(), g.Definition().Overlap == "allow"
	return nil
}

// write appends the first step of who was enrolled, with the trigger's data,
// and the refusals.
func (t *take) write(ctx context.Context, candidates []*candidate) error {
	var s steps
	var r refusals
	for _, c := range candidates {
		if c.outcome == Enrolled {
			s.add(c.id, 0, c.flow.version, "", stepEnrolled, c.json())
		} else {
			r.add(c)
		}
	}
	batch := &pgx.Batch{}
	s.queue(batch, t.ws)
	r.queue(batch, t.ws)
	return t.tx.SendBatch(ctx, batch).Close()
}
