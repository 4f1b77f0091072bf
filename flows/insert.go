package flows

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// insert writes the enrollments. Two unique keys may refuse one: that of the
// recurrence, and that of who is on the way. A conflict is an answer.
func (t *take) insert(ctx context.Context, asking []*candidate) error {
	if len(asking) == 0 {
		return nil
	}
	n := len(asking)
	ids, flows, keys, slots := make([]pgtype.UUID, n), make([]pgtype.UUID, n), make([]pgtype.UUID, n), make([]pgtype.UUID, n)
	versions, turns, profiles, sources, places := make([]int32, n), make([]int16, n), make([]string, n), make([]string, n), make([]int32, n)
	times := make([]pgtype.Timestamptz, n)
	for i, c := range asking {
		ids[i], flows[i], keys[i], slots[i] = wire(c.id), wire(c.flow.id), wire(c.key), wire(uuid.Nil)
		versions[i], turns[i], profiles[i], sources[i] = int32(c.flow.version), turnOf(c.id), c.profile, c.source
		places[i], times[i] = int32(c.place), pgtype.Timestamptz{Time: c.occurrence.turn, Valid: !c.occurrence.turn.IsZero()}
		if c.overlap {
			slots[i] = ids[i]
		}
	}
	rows, err := t.tx.Query(ctx, `
		insert into enrollments (workspace_id, id, flow_id, uniqueness_key, slot, version, turn, profile_key, source, node, enrolled_at, resume_at)
		select $1, r.id, r.flow_id, r.key, r.slot, r.version, r.turn, r.profile_key, r.source, '', coalesce(r.at, `+inTurn("$12")+`), now()
		from unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::int[], $7::smallint[], $8::text[], $9::text[], $10::int[], $11::timestamptz[])
			as r (id, flow_id, key, slot, version, turn, profile_key, source, place, at)
		on conflict do nothing returning id`, t.ws, ids, flows, keys, slots, versions, turns, profiles, sources, places, times, t.base)
	if err != nil {
		return err
	}
	inserted := make(map[uuid.UUID]bool, n)
	var id pgtype.UUID
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { inserted[id.Bytes] = true; return nil }); err != nil {
		return err
	}
	for _, c := range asking {
		if inserted[c.id] {
			c.outcome = Enrolled
		}
	}
	return nil
}

// refuseOverlap refuses those who are on the way already in a slot of their own:
// they came in while a version of the flow allowed that, which the one that is
// live now does not. Whoever could still add one of these was kept out when the
// version changed, so a look is enough.
func (t *take) refuseOverlap(ctx context.Context, asking []*candidate) ([]*candidate, error) {
	var looked []*candidate
	var flows []pgtype.UUID
	var profiles []string
	for _, c := range asking {
		if c.flow.overlapped && !c.overlap {
			looked, flows, profiles = append(looked, c), append(flows, wire(c.flow.id)), append(profiles, c.profile)
		}
	}
	if len(looked) == 0 {
		return asking, nil
	}
	rows, err := t.tx.Query(ctx, `
		select r.i::int, e.id from unnest($2::uuid[], $3::text[]) with ordinality as r (flow_id, profile_key, i)
		cross join lateral (
			select id from enrollments where workspace_id = $1 and profile_key = r.profile_key and flow_id = r.flow_id and slot > $4 and status = 'active'
			order by slot limit 1
		) e`, t.ws, flows, profiles, uuid.Nil)
	if err != nil {
		return nil, err
	}
	var i int
	var id uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&i, &id}, func() error {
		rival := id
		looked[i-1].rival = &rival
		looked[i-1].refuse(AlreadyActive, "the profile is on its way through the flow")
		return nil
	})
	return slices.DeleteFunc(asking, func(c *candidate) bool { return c.outcome != "" }), err
}

// Turns is into how many shares a flow's enrollments are dealt: as many workers
// can advance it at a time.
const Turns = 4

func turnOf(enrollment uuid.UUID) int16 { return int16(enrollment[15] & (Turns - 1)) }

// findRivals tells whom the insert passed over which enrollment stands in the
// way. It is a statement of its own: only a new snapshot sees what a
// transaction beside this one has just committed. One look is all there is; a
// rival that has ended meanwhile is no reason to try again. Whose journey it was
// who has been erased is not told. The order by slot leaves a planner no other
// index than that of who is on the way.
func (t *take) findRivals(ctx context.Context, asking []*candidate) error {
	left := slices.DeleteFunc(slices.Clone(asking), func(c *candidate) bool { return c.outcome != "" })
	if len(left) == 0 {
		return nil
	}
	flows, keys, profiles := make([]pgtype.UUID, len(left)), make([]pgtype.UUID, len(left)), make([]string, len(left))
	for i, c := range left {
		c.refuse(AlreadyActive, "the profile is on its way through the flow")
		flows[i], keys[i], profiles[i] = wire(c.flow.id), wire(c.key), c.profile
	}
	rows, err := t.tx.Query(ctx, `
		select r.i::int, case when e.profile_key = r.profile_key then e.id end, e.same
		from unnest($2::uuid[], $3::uuid[], $4::text[]) with ordinality as r (flow_id, key, profile_key, i)
		cross join lateral (
			select id, profile_key, true as same from enrollments where workspace_id = $1 and flow_id = r.flow_id and uniqueness_key = r.key
			union all
			(select id, profile_key, false from enrollments where workspace_id = $1 and profile_key = r.profile_key and flow_id = r.flow_id and slot >= $5 and slot <= $5 and status = 'active'
			order by slot limit 1)
			order by same desc limit 1
		) e`, t.ws, flows, keys, profiles, uuid.Nil)
	if err != nil {
		return err
	}
	var i int
	var id *uuid.UUID
	var same bool
	_, err = pgx.ForEachRow(rows, []any{&i, &id, &same}, func() error {
		c := left[i-1]
		c.rival, id = id, nil
		if same {
			c.refuse(AlreadyEnrolled, enrolledBefore)
		}
		return nil
	})
	return err
}
