package intake

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/flows/enrollment"
)

// An enrollment that has not entered refuses later triggers of its profile. When it is
// itself refused at its entry, the newest of these triggers is offered again. The others
// then wait behind the enrollment that this one makes, and so on, so that the newest
// trigger that qualifies enrolls. Direct requests were answered, and an audience is
// polled again: only events are offered again.

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
	_, err := tx.Exec(ctx, `select pg_advisory_xact_lock`+eachBucket, int32(binary.BigEndian.Uint32(ws[12:])), slices.Collect(maps.Keys(buckets)))
	if err != nil {
		return fmt.Errorf("lock profiles: %w", err)
	}
	return nil
}

// Reoffered is what came of triggers that were offered again.
type Reoffered struct {
	results []Result
	due     map[enrollment.Shard]bool
}

// Reoffer offers triggers again that were refused because of enrollments which the
// caller's transaction has refused at their entry: of each the newest. A trigger that is
// refused again keeps its refusal, with the new reason.
func (in *Intake) Reoffer(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, refused []uuid.UUID) (Reoffered, error) {
	t := &transaction{Intake: in, tx: tx, ws: ws}
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
	all, behind, err := t.takeBack(ctx, flow, refused, slices.Collect(maps.Keys(t.listeners)))
	if err != nil {
		return Reoffered{}, fmt.Errorf("find triggers to offer again: %w", err)
	}
	done := make([]Recorded, len(all))
	for _, round := range rounds(all) {
		if err := t.enroll(ctx, round, all, done); err != nil {
			return Reoffered{}, err
		}
	}
	r := Reoffered{due: t.due}
	var ids, next []pgtype.UUID
	for i, d := range done {
		r.results = append(r.results, d.Results...)
		for _, one := range d.Results {
			if one.Outcome == enrollment.Enrolled {
				ids, next = append(ids, behind[i]), append(next, enrollment.PgUUID(*one.EnrollmentID))
			}
		}
	}
	return r, t.putBehind(ctx, flow, ids, next)
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
	g, err := t.exec.Versions.Get(ctx, t.tx, t.ws, f.id, f.version)
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

// refusedBehind is true of a refusal r of an event because of the enrollment e. The
// reason is written so that refusals are found by the index that has the profile.
const refusedBehind = `r.workspace_id = $1 and r.flow_id = $2 and r.profile_key = e.profile_key and r.enrollment_id = e.id
	and (r.reason in ('already_active', 'already_enrolled')) is true and r.event_key is not null`

// takeBack deletes the refusal of the newest event behind each enrollment and returns
// the events, and behind which enrollment each was. They enroll as of the time at which
// they were received.
func (t *transaction) takeBack(ctx context.Context, flow uuid.UUID, refused []uuid.UUID, names []string) (all []*Trigger, behind []pgtype.UUID, err error) {
	ids := make([]pgtype.UUID, len(refused))
	for i, id := range refused {
		ids[i] = enrollment.PgUUID(id)
	}
	rows, err := t.tx.Query(ctx, `
		with newest as (
			select e.id, v.* from unnest($3::uuid[]) as asked (id)
			cross join lateral (select id, profile_key from enrollments where workspace_id = $1 and id = asked.id limit 1) e
			cross join lateral (
				select r.key as refusal, r.profile_key, v.key, v.source_id, v.name, v.properties, v.occurred_at, v.received_at from refusals r
				cross join lateral (
					select key, source_id, name, properties, occurred_at, received_at from trigger_events
					where workspace_id = $1 and key = r.event_key and profile_key = r.profile_key and name = any($4) limit 1
				) v
				where `+refusedBehind+` order by r.at desc, v.received_at desc limit 1
			) v
		), gone as (
			delete from refusals r using newest n where r.workspace_id = $1 and r.flow_id = $2 and r.key = n.refusal returning r.key
		)
		select n.id, n.profile_key, n.key, coalesce(n.source_id, ''), n.name, n.properties, n.occurred_at, greatest(n.received_at, now() - $5::interval)
		from newest n join gone g on g.key = n.refusal order by n.received_at`, t.ws, flow, ids, names, offeredSince)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		o, id := &Trigger{source: enrollment.FromEvent, place: len(all)}, pgtype.UUID{}
		if err := rows.Scan(&id, &o.profile, &o.Key, &o.sourceID, &o.Name, &o.properties, &o.At, &o.applied); err != nil {
			return nil, nil, err
		}
		all, behind = append(all, o), append(behind, id)
	}
	return all, behind, rows.Err()
}

// putBehind names the new enrollments in the refusals of the triggers that were behind
// the refused ones: they are what refuses these now.
func (t *transaction) putBehind(ctx context.Context, flow uuid.UUID, ids, next []pgtype.UUID) error {
	if len(ids) == 0 {
		return nil
	}
	_, err := t.tx.Exec(ctx, `
		update refusals u set enrollment_id = n.next
		from (
			select r.key, p.next from unnest($3::uuid[], $4::uuid[]) as p (id, next)
			cross join lateral (select id, profile_key from enrollments where workspace_id = $1 and id = p.id limit 1) e
			cross join lateral (select r.key from refusals r where `+refusedBehind+` order by r.at desc limit $5) r
		) n
		where u.workspace_id = $1 and u.flow_id = $2 and u.key = n.key`, t.ws, flow, ids, next, offeredMost)
	if err != nil {
		return fmt.Errorf("name enrollments in refusals: %w", err)
	}
	return nil
}
