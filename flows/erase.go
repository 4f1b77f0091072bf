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
	"lemma/flows/enrollment"
	"lemma/migrations"
	"lemma/pgerr"
)

// Erased counts the rows that were erased of a profile.
type Erased struct {
	Enrollments   int64 // that no longer name the profile
	Exited        int64 // that were active
	Events        int64
	Refusals      int64
	Notifications int64
	InFlight      int64 // notifications and webhook messages in flight: a later call erases them
	More          bool  // the time was over: a later call goes on
}

// A call erases pages of so many enrollments, and of so many events and refusals, for
// eraseTime, which is less than a request has. A page has fewer enrollments if they have
// eraseMessages notifications, or if finding their notifications takes traceTime.
const (
	eraseEnrollments = 200
	eraseMessages    = 10_000
	eraseTriggers    = 5_000
	eraseTime        = 10 * time.Second
	traceTime        = 2 * time.Second
)

// Erase removes a profile from everything that flows have written. Active enrollments exit.
// Enrollments and their uniqueness keys stay under a key that names no profile but can be
// derived from the profile's key, so that a flow that enrolls once does not enroll the
// profile again.
//
// Each page is one transaction, which erases an enrollment with all its messages; only then
// the enrollment no longer names the profile. So repeating the call goes on with what is
// left, and needs no stored state. Messages that are in flight cannot be erased and are
// counted; their enrollments have exited, and name the profile until a call after the end
// of the messages. One call visits each of them once. The next call visits them again: they
// are as many as are being called at that time, for the time of a lease at most.
func (f *Flows) Erase(ctx context.Context, ws uuid.UUID, profileKey string) (Erased, error) {
	if !enrollment.IsText(profileKey, 1, enrollment.MaxProfileKey) {
		return Erased{}, lemma.Fault("/profile_key", "invalid_key", "must be text of 1 to %d bytes", enrollment.MaxProfileKey)
	}
	var sum Erased
	waiting := []pgtype.UUID{} // enrollments with messages in flight
	for until := time.Now().Add(f.eraseTime); ; {
		e := erasure{Flows: f, ws: ws, key: profileKey, as: enrollment.ErasedKey(profileKey)}
		err := enrollment.Transact(ctx, f.pool, func(tx pgx.Tx) error {
			e.tx, e.done, e.waiting = tx, Erased{}, slices.Clone(waiting)
			return e.run(ctx)
		})
		if pgerr.Is(err, pgerr.UndefinedTable) && time.Now().Before(until) { // a detached month was dropped
			continue
		}
		if err != nil {
			return Erased{}, fmt.Errorf("erase a profile: %w", err)
		}
		f.metrics.Steps.WithLabelValues(enrollment.StepExited).Add(float64(e.done.Exited))
		sum.add(e.done)
		if waiting = e.waiting; !sum.More || time.Now().After(until) {
			return sum, nil
		}
	}
}

// add adds the numbers of a page.
func (d *Erased) add(page Erased) {
	d.Enrollments += page.Enrollments
	d.Exited += page.Exited
	d.Events += page.Events
	d.Refusals += page.Refusals
	d.Notifications += page.Notifications
	d.InFlight += page.InFlight
	d.More = page.More
}

// erasure is the transaction that erases one page of a profile.
type erasure struct {
	*Flows
	tx      pgx.Tx
	ws      uuid.UUID
	key, as string
	waiting []pgtype.UUID
	done    Erased
}

// lasting is an enrollment that outlives the profile's data.
type lasting struct {
	id, flow uuid.UUID
	version  int
	node     string
	step     int
	active   bool
	steps    bool // false: its steps were dropped by their retention
}

func pgIDs(all []lasting) []pgtype.UUID {
	ids := make([]pgtype.UUID, len(all))
	for i, l := range all {
		ids[i] = enrollment.PgUUID(l.id)
	}
	return ids
}

func (e *erasure) run(ctx context.Context) error {
	locked, err := e.lock(ctx)
	if err != nil {
		return fmt.Errorf("lock enrollments: %w", err)
	}
	e.hook.At("erase: locked")
	if err := e.forgetTriggers(ctx); err != nil {
		return err
	}
	found, w, err := e.messages(ctx, locked)
	if err != nil {
		return fmt.Errorf("find notifications: %w", err)
	}
	e.done.More = len(locked) == eraseEnrollments || len(found) < len(locked) ||
		e.done.Events == eraseTriggers || e.done.Refusals == eraseTriggers
	if len(found) == 0 {
		return nil
	}
	if err := e.strip(ctx, found); err != nil {
		return fmt.Errorf("strip enrollments: %w", err)
	}
	erased, notified, err := e.ledger.Erase(ctx, e.tx, e.ws, w.names, e.as)
	if err != nil {
		return err
	}
	ids := make([]uuid.UUID, len(found))
	for i, h := range found {
		ids[i] = h.id
	}
	_, called, err := e.webhooks.Erase(ctx, e.tx, e.ws, ids)
	if err != nil {
		return err
	}
	for _, i := range notified {
		called = append(called, w.of[i])
	}
	e.done.Notifications, e.done.InFlight = erased, int64(len(called))
	return e.rename(ctx, ids, called)
}

// rename replaces the key of enrollments that have no message in flight.
func (e *erasure) rename(ctx context.Context, ids, inFlight []uuid.UUID) error {
	var free []pgtype.UUID
	for _, id := range ids {
		if slices.Contains(inFlight, id) {
			e.waiting = append(e.waiting, enrollment.PgUUID(id))
		} else {
			free = append(free, enrollment.PgUUID(id))
		}
	}
	tag, err := e.tx.Exec(ctx, `update enrollments set profile_key = $3 where workspace_id = $1 and id = any($2)`, e.ws, free, e.as)
	e.done.Enrollments = tag.RowsAffected()
	return lemma.Wrap(err, "rename enrollments")
}

// lock locks enrollments that name the profile, in the order of their ids, so that no worker
// moves one during the erasure.
func (e *erasure) lock(ctx context.Context) ([]lasting, error) {
	if e.key == e.as {
		return nil, nil
	}
	rows, _ := e.tx.Query(ctx, `
		select id, flow_id, version, node, step, status = 'active',
			(select true from enrollment_steps where workspace_id = $1 and enrollment_id = enrollments.id and step = 0 limit 1) is not null
		from enrollments
		where workspace_id = $1 and profile_key = $2 and id = any(array(
			(select id from enrollments where workspace_id = $1 and profile_key = $2 and status = 'active' limit $4)
			union all
			(select id from enrollments where workspace_id = $1 and profile_key = $2 and status <> 'active' and id <> all($3) limit $4)
			limit $4))
		order by id for update`, e.ws, e.key, e.waiting, eraseEnrollments)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (l lasting, err error) {
		err = row.Scan(&l.id, &l.flow, &l.version, &l.node, &l.step, &l.active, &l.steps)
		return l, err
	})
}

func (e *erasure) forgetTriggers(ctx context.Context) error {
	events, err := e.tx.Exec(ctx, `
		delete from trigger_events where ctid = any(array(
			select ctid from trigger_events where workspace_id = $1 and profile_key = $2 limit $3))`, e.ws, e.key, eraseTriggers)
	if err != nil {
		return fmt.Errorf("erase events: %w", err)
	}
	refused, err := e.tx.Exec(ctx, `
		delete from refusals where ctid = any(array(
			select r.ctid from flows f cross join lateral (
				select r.ctid from refusals r where r.workspace_id = $1 and r.flow_id = f.id and r.profile_key = $2 limit $3) r
			where f.workspace_id = $1 limit $3))`, e.ws, e.key, eraseTriggers)
	if err != nil {
		return fmt.Errorf("erase refusals: %w", err)
	}
	e.done.Events, e.done.Refusals = events.RowsAffected(), refused.RowsAffected()
	return nil
}

// sendEvents are the events of the steps of send nodes.
var sendEvents = []string{enrollment.StepSent, enrollment.StepSkipped}

// strip exits active enrollments. The steps of all stay without their data.
func (e *erasure) strip(ctx context.Context, found []lasting) error {
	var s enrollment.StepRows
	counts := map[uuid.UUID]enrollment.NodeCounts{} // by flow
	ids := pgIDs(found)
	for _, h := range found {
		if h.active {
			e.done.Exited++
			s.Add(h.id, h.step+1, h.version, h.node, enrollment.StepExited, "") // the enrollment has the reason
			if counts[h.flow] == nil {
				counts[h.flow] = enrollment.NodeCounts{}
			}
			counts[h.flow][enrollment.NodeEvent{Version: h.version, Node: h.node, Event: enrollment.StepExited,
				Next: enrollment.ExitErased}]++
		}
	}
	batch := &pgx.Batch{}
	detached, err := migrations.Detached(ctx, e.tx, "enrollment_steps")
	if err != nil {
		return err
	}
	// The number of a send's notifications stays: a later erasure finds them by it. Data of
	// other steps is not read: properties may have numbers that Postgres cannot hold.
	const strip = `
		set data = case when event = any($4) and data::json->$3 is not null then json_build_object($3::text, data::json->$3)::text end
		where workspace_id = $1 and enrollment_id = any($2) and data is not null`
	batch.Queue(`update enrollment_steps`+strip, e.ws, ids, enrollment.StepMessages, sendEvents)
	for _, name := range detached { // and not archived yet
		batch.Queue(`update `+name+strip, e.ws, ids, enrollment.StepMessages, sendEvents)
	}
	s.Queue(batch, e.ws)
	for _, flow := range slices.SortedFunc(maps.Keys(counts), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }) {
		counts[flow].Queue(batch, e.ws, flow, enrollment.EventsShard)
	}
	batch.Queue(`
		update enrollments set status = 'exited', exit_reason = $3, step = step + 1, ended_at = now(), resume_at = null,
			waiting_since = null, first_due_at = null, awaits = null, matched_event = null, answer_step = null, blocked_reason = null
		where workspace_id = $1 and id = any($2) and ended_at is null`, e.ws, ids, enrollment.ExitErased)
	return e.tx.SendBatch(ctx, batch).Close()
}
