package intake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/eventsout"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
)

// transaction applies triggers of one workspace. It locks every flow that it may enroll
// into in share mode before it reads, so that a publish, a pause or an archive falls
// wholly before or wholly after it.
type transaction struct {
	*Intake
	tx        pgx.Tx
	ws        uuid.UUID
	versions  *execution.Ready
	listeners map[string][]listener // by event
	flows     map[uuid.UUID]liveFlow
	now       time.Time                 // of the database, when the transaction began
	base      pgtype.Timestamptz        // its time, if it is not that of the transaction: see lockProfiles
	applied   map[string]time.Time      // profile with active enrollments -> applied time of its last event
	due       map[enrollment.Shard]bool // shards with enrollments that it made due
	evaluated time.Duration             // time that its conditions and comparisons took
	offered   int                       // enrollments and refusals that its events lead to
	alone     bool                      // triggers of one enrollment are offered again
	cut       bool                      // events that follow need versions which are not compiled

	comparison comparison // with enrollments of another recurrence
}

// makeDue records which shard to wake after the transaction.
func (t *transaction) makeDue(flow, id uuid.UUID) {
	if t.due == nil {
		t.due = map[enrollment.Shard]bool{}
	}
	t.due[enrollment.Shard{Workspace: t.ws, Flow: flow, Number: enrollment.ShardOf(id)}] = true
}

// Statuses of a flow that triggers distinguish; package flows has the table of
// transitions.
const (
	flowLive   = "live"
	flowPaused = "paused"
)

// liveFlow is a flow as triggers need it.
type liveFlow struct {
	id         uuid.UUID
	status     string
	version    int  // the live one
	overlapped bool // a version that allowed overlap was once live
	recurred   bool // versions with different recurrences were live
	audience   bool // a version with an audience was once live
}

// listener is a version that listens to an event.
type listener struct {
	flow    uuid.UUID
	version int
	use     string
}

// Uses of an event in a version that listens to it.
const (
	UseTrigger = "trigger"
	useExit    = "exit"
	useWait    = "wait"
)

// events records events and applies them.
func (t *transaction) events(ctx context.Context, all []*Trigger) ([]Recorded, error) {
	done := make([]Recorded, len(all))
	for i, o := range all {
		o.place, o.applied = i, time.Time{} // this may be a retry after a deadlock
	}
	if err := t.listen(ctx, all); err != nil {
		return nil, err
	}
	t.date(all)
	n, err := t.ready(all)
	if err != nil {
		return nil, err
	}
	for i := n; i < len(all); i++ {
		overload(done, i)
	}
	if all = all[:n]; n == 0 {
		return done, nil
	}
	shared, err := t.lockProfiles(ctx, all)
	if err != nil {
		return nil, err
	}
	fresh, err := t.keep(ctx, all, shared)
	if err != nil {
		return nil, err
	}
	for i, o := range all {
		done[i].Key, done[i].Duplicate = o.Key, !fresh[i]
	}
	if err := t.compare(ctx, all, done); err != nil {
		return nil, fmt.Errorf("compare events recorded before: %w", err)
	}
	if len(t.listeners) == 0 {
		return done, nil
	}
	t.applied = map[string]time.Time{}
	for _, round := range rounds(all) {
		round = slices.DeleteFunc(round, func(i int) bool { return done[i].Duplicate || done[i].Err != nil })
		if err := t.apply(ctx, round, all, done); err != nil {
			return nil, err
		}
	}
	return done, t.forgetOverloaded(ctx, all, done)
}

// date gives triggers without a time that of the database. It decides about recurrence, so
// that the clocks of all processes must be one.
func (t *transaction) date(all []*Trigger) {
	for _, o := range all {
		if o.undated {
			o.At, o.data = t.now.UTC(), nil
		}
	}
}

// apply applies the events of one round: each ends and wakes enrollments, and enrolls. When
// the transaction is exhausted, the events that follow are not applied.
func (t *transaction) apply(ctx context.Context, round []int, all []*Trigger, done []Recorded) (err error) {
	defer func() { t.crossings.note(t.ws, err) }()
	if t.cut {
		overload(done, round...)
		return nil
	}
	of, w, err := t.lockActive(ctx, round, all)
	if err != nil {
		return err
	}
	n, err := t.readyActive(round, all, of)
	if err != nil {
		return err
	}
	overload(done, round[n:]...)
	t.cut, round = n < len(round), round[:n]
	triggers, err := t.triggersOf(ctx, round, all, of)
	if err != nil {
		return err
	}
	var candidates []*candidate
	for _, i := range round {
		if full := t.exhausted(); full != nil {
			done[i].Err = full
			continue
		}
		for _, u := range of[all[i].profile] {
			if u.trigger, err = triggers.read(ctx, t, u.id); err != nil {
				return err
			}
			if err := t.react(ctx, u, all[i], &done[i], w); err != nil {
				return err
			}
		}
		found, err := t.candidates(ctx, i, all[i])
		if err != nil {
			return err
		}
		candidates = append(candidates, found...)
		t.offered += len(found)
	}
	if err := w.write(ctx, t.tx, t.ws); err != nil {
		return err
	}
	return t.admit(ctx, candidates, done)
}

// compare refuses an id that was recorded before with another profile or name: it is no
// repetition, and to drop it would lose an event.
func (t *transaction) compare(ctx context.Context, all []*Trigger, done []Recorded) error {
	var keys []pgtype.UUID
	for i, o := range all {
		if done[i].Duplicate {
			keys = append(keys, enrollment.PgUUID(o.Key))
		}
	}
	if len(keys) == 0 {
		return nil
	}
	rows, _ := t.tx.Query(ctx, `select key, profile_key, name from trigger_events where workspace_id = $1 and key = any($2)`, t.ws, keys)
	type reported struct{ profile, name string }
	before := map[uuid.UUID]reported{}
	var key pgtype.UUID
	var one reported
	if _, err := pgx.ForEachRow(rows, []any{&key, &one.profile, &one.name},
		func() error { before[key.Bytes] = one; return nil }); err != nil {
		return err
	}
	for i, o := range all {
		if was, ok := before[o.Key]; done[i].Duplicate && ok && was != (reported{o.profile, o.Name}) {
			done[i] = Recorded{Key: o.Key,
				Err: idConflict("another event was recorded under this id: use another id, or the same profile and name")}
		}
	}
	return nil
}

func idConflict(detail string) error {
	e := lemma.Fault("/source_id", "id_conflict", "%s", detail)
	e.Kind, e.Code, e.Message = lemma.Conflict, "id_conflict", "the source_id belongs to another request"
	return e
}

// rounds divides triggers into rounds in which each profile occurs once, so that set-based
// statements have the effect of single triggers.
func rounds(all []*Trigger) [][]int {
	places := make([]int, len(all))
	for i := range places {
		places[i] = i
	}
	return enrollment.OnceEach(places, func(i int) string { return all[i].profile })
}

// byOrder is the time of a trigger: the transaction's, in the parameter base, and a
// microsecond for each place, so that a later event has a later time. Of profiles with
// active enrollments it is only the earliest time: see orderEvents.
func byOrder(base string) string {
	return `coalesce(` + base + `::timestamptz, now()) + r.place * interval '1 microsecond'`
}

// recordedAt is the time at which a trigger was or will be recorded, which its conditions have
// as now: so the answer does not depend on when they are evaluated.
func (t *transaction) recordedAt(o *Trigger) time.Time {
	switch {
	case !o.received.IsZero():
		return o.received
	case !o.applied.IsZero():
		return o.applied
	case t.base.Valid:
		return t.base.Time.Add(time.Duration(o.place) * time.Microsecond)
	default:
		return t.now.Add(time.Duration(o.place) * time.Microsecond)
	}
}

// keep locks buckets of profiles in share mode and inserts the events. The insert decides
// which are new, not a query before it; of two with one id in a chunk the first is.
func (t *transaction) keep(ctx context.Context, all []*Trigger, shared []int32) (fresh []bool, err error) {
	batch := &pgx.Batch{}
	if len(shared) > 0 {
		batch.Queue(`select pg_advisory_xact_lock_shared`+eachBucket, eventsout.LockSpace(t.ws), shared)
	}
	written := t.queueEvents(batch, all)
	if err := t.tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("keep events: %w", err)
	}
	fresh = make([]bool, len(all))
	for i, o := range all {
		fresh[i] = written[o.Key]
		delete(written, o.Key)
	}
	return fresh, nil
}

// queueEvents inserts triggers in the order of their keys, and reports which were new when
// the batch has been sent.
func (t *transaction) queueEvents(batch *pgx.Batch, all []*Trigger) (written map[uuid.UUID]bool) {
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return bytes.Compare(all[a].Key[:], all[b].Key[:]) })
	n := len(all)
	keys, ids, profiles := make([]pgtype.UUID, n), make([]pgtype.Text, n), make([]string, n)
	properties, times, places := make([]string, n), make([]pgtype.Timestamptz, n), make([]int32, n)
	names := make([]string, n)
	for to, i := range order {
		o := all[i]
		keys[to], ids[to], profiles[to] = enrollment.PgUUID(o.Key), pgtype.Text{String: o.sourceID, Valid: o.sourceID != ""}, o.profile
		names[to], properties[to], times[to], places[to] = o.Name, o.properties, pgtype.Timestamptz{Time: o.At, Valid: true}, int32(o.place)
	}
	written = make(map[uuid.UUID]bool, n)
	batch.Queue(`
		insert into trigger_events (workspace_id, key, source_id, profile_key, name, properties, occurred_at, received_at)
		select $1, r.key, r.source_id, r.profile_key, r.name, r.properties, r.occurred_at, `+byOrder("$9")+`
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

// listen finds the versions that listen to the events, and locks their flows in share
// mode.
func (t *transaction) listen(ctx context.Context, all []*Trigger) error {
	names := make([]string, len(all))
	for i, o := range all {
		names[i] = o.Name
	}
	slices.Sort(names)
	names = slices.Compact(names)
	t.listeners, t.flows = map[string][]listener{}, map[uuid.UUID]liveFlow{}
	batch := &pgx.Batch{}
	batch.Queue(`select now()`).QueryRow(func(row pgx.Row) error { return row.Scan(&t.now) })
	batch.Queue(`
		select pg_advisory_xact_lock_shared(`+enrollment.FlowLockSQL("l.flow_id")+`)
		from (select distinct flow_id from flow_listeners where workspace_id = $1 and event = any($2) order by flow_id) l`, t.ws, names)
	batch.Queue(`
		select l.event, l.use, l.version, f.id, f.status, coalesce(f.live_version, 0), f.overlapped, f.recurred, f.had_audience
		from flow_listeners l join flows f on f.workspace_id = l.workspace_id and f.id = l.flow_id
		where l.workspace_id = $1 and l.event = any($2) and (l.use <> 'trigger' or l.version = f.live_version)
		order by f.id, l.event for share of f`, t.ws, names).
		Query(func(rows pgx.Rows) error {
			var event string
			var l listener
			var f liveFlow
			_, err := pgx.ForEachRow(rows, []any{&event, &l.use, &l.version, &f.id, &f.status, &f.version, &f.overlapped, &f.recurred,
				&f.audience}, func() error {
				l.flow = f.id
				t.listeners[event] = append(t.listeners[event], l)
				t.flows[f.id] = f
				return nil
			})
			return err
		})
	return lemma.Wrap(t.tx.SendBatch(ctx, batch).Close(), "find the flows that listen")
}

// readFlow locks the flow that profiles are to be enrolled in.
func (t *transaction) readFlow(ctx context.Context, id uuid.UUID) error {
	f := liveFlow{id: id}
	if err := enrollment.ShareFlow(ctx, t.tx, id); err != nil {
		return err
	}
	err := t.tx.QueryRow(ctx, `select status, coalesce(live_version, 0), overlapped, recurred, had_audience, now() from flows
		where workspace_id = $1 and id = $2 for share`, t.ws, id).
		Scan(&f.status, &f.version, &f.overlapped, &f.recurred, &f.audience, &t.now)
	if errors.Is(err, pgx.ErrNoRows) {
		return lemma.Missing("flow")
	}
	if err != nil {
		return fmt.Errorf("lock flow %s: %w", id, err)
	}
	t.flows = map[uuid.UUID]liveFlow{id: f}
	return nil
}
