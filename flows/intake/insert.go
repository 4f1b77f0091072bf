package intake

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma/flows/enrollment"
)

// insert writes the enrollments. Two unique keys may refuse one: the recurrence's, and
// that of active enrollments. A conflict is a result. All keys are written before the
// first enrollment, both in the order of the candidates, so that no two transactions wait
// for each other: see "filter in order" in enrollment/plans.go. The key of an active
// profile is released again: see releaseKeys.
func (t *transaction) insert(ctx context.Context, pending []*candidate) error {
	if len(pending) == 0 {
		return nil
	}
	n := len(pending)
	ids, flows, keys, overlapKeys := make([]pgtype.UUID, n), make([]pgtype.UUID, n), make([]pgtype.UUID, n), make([]pgtype.UUID, n)
	versions, shards, profiles, places := make([]int32, n), make([]int16, n), make([]string, n), make([]int32, n)
	times := make([]pgtype.Timestamptz, n)
	for i, c := range pending {
		ids[i], flows[i], keys[i] = enrollment.PgUUID(c.id), enrollment.PgUUID(c.flow.id), enrollment.PgUUID(c.key)
		versions[i], shards[i], profiles[i] = int32(c.flow.version), enrollment.ShardOf(c.id), c.profile
		places[i], times[i] = int32(c.place), pgtype.Timestamptz{Time: c.applied, Valid: !c.applied.IsZero()}
		if c.overlap {
			overlapKeys[i] = ids[i]
		}
	}
	rows, _ := t.tx.Query(ctx, `
		with held as (
			insert into enrollment_keys (workspace_id, flow_id, uniqueness_key, enrollment_id)
			select $1, r.flow_id, r.key, r.id from unnest($2::uuid[], $3::uuid[], $4::uuid[]) as r (id, flow_id, key)
			on conflict (flow_id, uniqueness_key, workspace_id) do nothing returning enrollment_id
		)
		insert into enrollments (workspace_id, id, flow_id, uniqueness_key, overlap_key, version, shard, profile_key, source, node,
			enrolled_at, resume_at)
		select $1, r.id, r.flow_id, r.key, coalesce(r.overlap_key, $13), r.version, r.shard, r.profile_key, $9, '',
			coalesce(r.at, `+byOrder("$12")+`), now()
		from unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::int[], $7::smallint[], $8::text[], $10::int[], $11::timestamptz[])
			as r (id, flow_id, key, overlap_key, version, shard, profile_key, place, at)
		where (r.id in (select enrollment_id from held)) is true
		on conflict (workspace_id, profile_key, flow_id, overlap_key) where status = 'active' do nothing returning id`,
		t.ws, ids, flows, keys, enrollment.OrNone(overlapKeys), versions, shards, profiles, pending[0].source, places,
		enrollment.OrNone(times), t.base, uuid.Nil)
	inserted := make(map[uuid.UUID]bool, n)
	var id pgtype.UUID
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { inserted[id.Bytes] = true; return nil }); err != nil {
		return err
	}
	for _, c := range pending {
		if inserted[c.id] {
			c.outcome = enrollment.Enrolled
		}
	}
	return nil
}

// MaxActive is the number of active enrollments from which on a profile is not enrolled in
// flows that allow overlap: an event of the profile evaluates conditions for each of them,
// in one transaction.
const MaxActive = 1000

// refuseTooMany refuses profiles with so many active enrollments in all flows, where the
// version allows overlap.
func (t *transaction) refuseTooMany(ctx context.Context, pending []*candidate) ([]*candidate, error) {
	var overlapping []*candidate
	var profiles []string
	for _, c := range pending {
		if c.overlap {
			overlapping, profiles = append(overlapping, c), append(profiles, c.profile)
		}
	}
	if len(overlapping) == 0 {
		return pending, nil
	}
	rows, _ := t.tx.Query(ctx, `
		select r.i::int from unnest($2::text[]) with ordinality as r (profile_key, i)
		cross join lateral (
			select id from enrollments where workspace_id = $1 and profile_key = r.profile_key and status = 'active'
			order by flow_id, overlap_key offset $3 limit 1
		) e`, t.ws, profiles, t.mostActive-1)
	var i int
	_, err := pgx.ForEachRow(rows, []any{&i}, func() error {
		overlapping[i-1].refuse(enrollment.TooManyActive, "the profile has %d active enrollments", t.mostActive)
		return nil
	})
	return slices.DeleteFunc(pending, func(c *candidate) bool { return c.outcome != "" }), err
}

// refuseOverlap refuses profiles with an active enrollment that has its own overlap key:
// they enrolled while a version of the flow allowed overlap, which the live version does
// not. The change of the version excluded concurrent enrollments of that kind, so one
// query is enough.
func (t *transaction) refuseOverlap(ctx context.Context, pending []*candidate) ([]*candidate, error) {
	var overlapping []*candidate
	var flows []pgtype.UUID
	var profiles []string
	for _, c := range pending {
		if c.flow.overlapped && !c.overlap {
			overlapping, flows, profiles = append(overlapping, c), append(flows, enrollment.PgUUID(c.flow.id)), append(profiles, c.profile)
		}
	}
	if len(overlapping) == 0 {
		return pending, nil
	}
	rows, _ := t.tx.Query(ctx, `
		select r.i::int, e.id from unnest($2::uuid[], $3::text[]) with ordinality as r (flow_id, profile_key, i)
		cross join lateral (
			select id from enrollments where workspace_id = $1 and profile_key = r.profile_key and flow_id = r.flow_id and overlap_key > $4
				and status = 'active'
			order by overlap_key limit 1
		) e`, t.ws, flows, profiles, uuid.Nil)
	var i int
	var id uuid.UUID
	_, err := pgx.ForEachRow(rows, []any{&i, &id}, func() error {
		conflicting := id
		overlapping[i-1].conflicting = &conflicting
		overlapping[i-1].refuse(enrollment.AlreadyActive, "the profile has an active enrollment in the flow")
		return nil
	})
	return slices.DeleteFunc(pending, func(c *candidate) bool { return c.outcome != "" }), err
}

// findConflicts finds the conflicting enrollment of each candidate that the insert
// skipped. It is a separate statement: only a new snapshot contains what a concurrent
// transaction has just committed. It runs once; a conflicting enrollment that has ended
// meanwhile is no reason to retry. An enrollment of an erased profile is not named. See
// "order by the index" in enrollment/plans.go.
func (t *transaction) findConflicts(ctx context.Context, pending []*candidate) error {
	left := slices.DeleteFunc(slices.Clone(pending), func(c *candidate) bool { return c.outcome != "" })
	if len(left) == 0 {
		return nil
	}
	flows, keys, profiles := make([]pgtype.UUID, len(left)), make([]pgtype.UUID, len(left)), make([]string, len(left))
	for i, c := range left {
		c.refuse(enrollment.AlreadyActive, "the profile has an active enrollment in the flow")
		flows[i], keys[i], profiles[i] = enrollment.PgUUID(c.flow.id), enrollment.PgUUID(c.key), c.profile
	}
	rows, _ := t.tx.Query(ctx, `
		select r.i::int, case when e.profile_key = r.profile_key then e.id end, e.same
		from unnest($2::uuid[], $3::uuid[], $4::text[]) with ordinality as r (flow_id, key, profile_key, i)
		cross join lateral (
			select h.id, h.profile_key, true as same from enrollment_keys k
			cross join lateral (select id, profile_key from enrollments where workspace_id = $1 and id = k.enrollment_id limit 1) h
			where k.workspace_id = $1 and k.flow_id = r.flow_id and k.uniqueness_key = r.key
			union all
			(select id, profile_key, false from enrollments where workspace_id = $1 and profile_key = r.profile_key and flow_id = r.flow_id
				and overlap_key >= $5 and overlap_key <= $5 and status = 'active'
			order by overlap_key limit 1)
			order by same desc limit 1
		) e`, t.ws, flows, keys, profiles, uuid.Nil)
	var i int
	var id *uuid.UUID
	var same bool
	_, err := pgx.ForEachRow(rows, []any{&i, &id, &same}, func() error {
		c := left[i-1]
		c.conflicting, id = id, nil
		if same {
			c.refuse(enrollment.AlreadyEnrolled, enrolledBefore)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return t.releaseKeys(ctx, left)
}

// releaseKeys releases the keys that insert took for candidates that were then
// refused because the profile is active: they may enroll later.
func (t *transaction) releaseKeys(ctx context.Context, refused []*candidate) error {
	var ids, flows, keys []pgtype.UUID
	for _, c := range refused {
		if c.reason == enrollment.AlreadyActive {
			ids, flows, keys = append(ids, enrollment.PgUUID(c.id)), append(flows, enrollment.PgUUID(c.flow.id)), append(keys,
				enrollment.PgUUID(c.key))
		}
	}
	if len(ids) == 0 {
		return nil
	}
	_, err := t.tx.Exec(ctx, `
		delete from enrollment_keys k
		using (select $1::uuid as workspace_id, r.* from unnest($2::uuid[], $3::uuid[], $4::uuid[]) as r (id, flow_id, key) limit $5) r
		where k.flow_id = r.flow_id and k.uniqueness_key = r.key and k.workspace_id = r.workspace_id and k.enrollment_id = r.id`,
		t.ws, ids, flows, keys, len(ids))
	return err
}
