package intake

import (
	"context"
	"fmt"
	"maps"
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

// An enrollment that has not entered refuses later triggers of its profile. When it is
// itself refused at its entry, the newest of these triggers is offered again. The others
// then wait behind the enrollment that this one makes, or that refuses it because it is
// active, and so on, so that the newest trigger that qualifies enrolls. Direct requests were answered, and an audience is
// polled again: only events are offered again. A trigger does not qualify any more when an
// event of exit_on was received after it, which would have ended its enrollment.

const (
	// offeredMost is how many triggers behind a refused enrollment are kept to be offered.
	offeredMost = 100

	// offeredSince is how long before its row an enrollment begins at most: lists find
	// enrollments by ids that are not older than two days.
	offeredSince = 47 * time.Hour
)

// LockProfiles locks the profiles of enrollments that are about to be refused at their
// entry, before the enrollments are locked. A trigger that such an enrollment refuses is
// committed before, or finds the enrollment refused: see lockProfiles.
func (in *Intake) LockProfiles(ctx context.Context, tx pgx.Tx, ws uuid.UUID, profiles []string) error {
	if len(profiles) == 0 {
		return nil
	}
	buckets := map[int32]bool{}
	for _, p := range profiles {
		buckets[bucketOf(p)] = true
	}
	_, err := tx.Exec(ctx, `select pg_advisory_xact_lock`+eachBucket, eventsout.LockSpace(ws), slices.Collect(maps.Keys(buckets)))
	return lemma.Wrap(err, "lock profiles")
}

// Reoffered is what came of triggers that were offered again.
type Reoffered struct {
	results []Result
	due     map[enrollment.Shard]bool
}

// Reoffer offers triggers again that were refused because of enrollments which the
// caller's transaction has refused at their entry: of each the newest that qualifies. If
// another enrollment of the profile is active, the triggers wait behind that one. A trigger
// that is refused again keeps its refusal, with the new reason. If the conditions take
// too long, it returns an error for several enrollments: the caller bisects its chunk. Of one
// enrollment it refuses the triggers whose events of exit_on are not checked.
func (in *Intake) Reoffer(ctx context.Context, tx pgx.Tx, versions *execution.Ready, ws, flow uuid.UUID,
	refused []uuid.UUID) (Reoffered, error) {
	t := &transaction{Intake: in, tx: tx, ws: ws, versions: versions, alone: len(refused) == 1}
	if len(refused) == 0 {
		return Reoffered{}, nil
	}
	if err := t.readFlow(ctx, flow); err != nil {
		return Reoffered{}, err
	}
	if t.flows[flow].status != flowLive { // it is draining
		return Reoffered{}, nil
	}
	if err := t.listenTo(ctx, t.flows[flow]); err != nil {
		return Reoffered{}, err
	}
	var r Reoffered
	for range offeredMost {
		if t.outOfTime() && !t.alone {
			return Reoffered{}, errConditionTime
		}
		left, err := t.offer(ctx, flow, refused, &r)
		if err != nil {
			return Reoffered{}, err
		}
		if refused = left; len(left) == 0 {
			break
		}
	}
	r.due = t.due
	return r, enrollment.LowerBounds(ctx, tx, r.due)
}

// offer offers the newest trigger behind each enrollment. It returns the enrollments of
// which the next trigger may qualify, since this one was refused for a reason of its own.
func (t *transaction) offer(ctx context.Context, flow uuid.UUID, refused []uuid.UUID, r *Reoffered) (left []uuid.UUID, err error) {
	all, behind, err := t.takeBack(ctx, refused, slices.Collect(maps.Keys(t.listeners)))
	if err != nil {
		return nil, fmt.Errorf("find triggers to offer again: %w", err)
	}
	if err := t.findExits(ctx, flow, all); err != nil {
		return nil, fmt.Errorf("find events of exit_on: %w", err)
	}
	done := make([]Recorded, len(all))
	for _, round := range rounds(all) {
		if err := t.enroll(ctx, round, all, done); err != nil {
			return nil, err
		}
	}
	var ids, next []pgtype.UUID
	for i, d := range done {
		r.results = append(r.results, d.Results...)
		if id := active(d.Results); id != nil {
			ids, next = append(ids, behind[i]), append(next, enrollment.PgUUID(*id))
		} else {
			left = append(left, behind[i].Bytes)
		}
	}
	return left, t.putBehind(ctx, ids, next)
}

// active is the enrollment that a trigger made, or that refused it because it is active:
// it refuses every other trigger of the profile too. That of already_enrolled may not, since
// other triggers may have other keys.
func active(results []Result) *uuid.UUID {
	for _, one := range results {
		if one.Outcome == enrollment.Enrolled || one.Reason == enrollment.AlreadyActive {
			return one.EnrollmentID
		}
	}
	return nil
}

// CountReoffered counts what Reoffer did and wakes workers, when its transaction has
// committed.
func (in *Intake) CountReoffered(r Reoffered) {
	for _, one := range r.results {
		in.metrics.Triggered(one.Outcome, one.Reason, 1)
	}
	in.waker.WakeShards(r.due)
}

// listenTo sets the listeners of one flow: the triggers of its live version. A version
// that this release cannot read has none.
func (t *transaction) listenTo(ctx context.Context, f liveFlow) error {
	t.listeners = map[string][]listener{}
	g, err := t.versions.Get(ctx, t.tx, f.id, f.version)
	if err != nil && lemma.KindOf(err) != lemma.Internal {
		return nil
	}
	if err != nil {
		return err
	}
	for name, uses := range g.Listens() {
		if slices.Contains(uses, UseTrigger) {
			t.listeners[name] = []listener{{f.id, f.version, UseTrigger}}
		}
	}
	return nil
}

// refusedBehind is true of a refusal r of an event because of the enrollment e. It does
// not name the flow, so that only the index by enrollment fits (refusals_behind). The
// lock of the enrollment excludes other writers of these rows, so they are written by ctid.
const refusedBehind = `r.workspace_id = $1 and r.enrollment_id = e.id
	and (r.reason in ('already_active', 'already_enrolled')) is true and r.event_key is not null`

// takeBack deletes the refusal of the newest event behind each enrollment and returns
// the events, the newest first, and behind which enrollment each was. They enroll as of the time at which
// they were received. No other transaction offers them: the enrollments are locked.
func (t *transaction) takeBack(ctx context.Context, refused []uuid.UUID, names []string) (all []*Trigger, behind []pgtype.UUID, err error) {
	ids := make([]pgtype.UUID, len(refused))
	for i, id := range refused {
		ids[i] = enrollment.PgUUID(id)
	}
	rows, _ := t.tx.Query(ctx, `
		select e.id, n.refusal, n.at, n.profile_key, n.key, coalesce(n.source_id, ''), n.name, n.properties, n.occurred_at, n.received_at,
			greatest(n.received_at, now() - $4::interval)
		from unnest($2::uuid[]) as e (id)
		cross join lateral (
			select r.ctid as refusal, r.at, r.profile_key, v.* from refusals r cross join lateral (
				select key, source_id, name, properties, occurred_at, received_at from trigger_events
				where workspace_id = $1 and key = r.event_key and profile_key = r.profile_key and name = any($3) limit 1
			) v
			where `+refusedBehind+` order by r.at desc, v.received_at desc limit 1
		) n order by n.received_at desc`, t.ws, ids, names, offeredSince)
	var id pgtype.UUID
	var refusal pgtype.TID
	var refusals []pgtype.TID
	o := Trigger{source: enrollment.FromEvent}
	row := []any{&id, &refusal, &o.refusedAt, &o.profile, &o.Key, &o.sourceID, &o.Name, &o.properties, &o.At, &o.received, &o.applied}
	_, err = pgx.ForEachRow(rows, row, func() error {
		one := o
		one.place = len(all)
		all, behind, refusals = append(all, &one), append(behind, id), append(refusals, refusal)
		return nil
	})
	if err != nil || len(all) == 0 {
		return nil, nil, err
	}
	_, err = t.tx.Exec(ctx, `delete from refusals where ctid = any($2::tid[]) and (workspace_id = $1) is true`, t.ws, refusals)
	return all, behind, err
}

// putBehind names the active enrollments in the refusals of the triggers that were behind
// the refused ones: they are what refuses these now.
func (t *transaction) putBehind(ctx context.Context, ids, next []pgtype.UUID) error {
	if len(ids) == 0 {
		return nil
	}
	rows, _ := t.tx.Query(ctx, `
		select r.ctid, e.next from unnest($2::uuid[], $3::uuid[]) as e (id, next)
		cross join lateral (select r.ctid from refusals r where `+refusedBehind+` order by r.at desc limit $4) r`, t.ws, ids, next, offeredMost)
	var refusal pgtype.TID
	var to pgtype.UUID
	var refusals []pgtype.TID
	var tos []pgtype.UUID
	_, err := pgx.ForEachRow(rows, []any{&refusal, &to}, func() error {
		refusals, tos = append(refusals, refusal), append(tos, to)
		return nil
	})
	if err != nil {
		return fmt.Errorf("find triggers behind enrollments: %w", err)
	}
	if len(refusals) == 0 {
		return nil
	}
	_, err = t.tx.Exec(ctx, `
		update refusals u set enrollment_id = r.next
		from (select at, next from unnest($2::tid[], $3::uuid[]) as r (at, next) limit $4) r
		where u.ctid = r.at and (u.workspace_id = $1) is true`, t.ws, refusals, tos, len(refusals))
	return lemma.Wrap(err, "name enrollments in refusals")
}
