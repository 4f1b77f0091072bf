package flows

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma/flows/graph"
)

// The recurrence of a flow after it was changed. The uniqueness key decides
// between triggers of one recurrence; an enrollment of another has a key of
// another making, and is compared by the trigger that it was made for.

// repetition asks whether a profile was enrolled in a flow before for what its
// recurrence takes for the same trigger. The key is what it would enroll under.
type repetition struct {
	graph   *graph.Graph
	flow    uuid.UUID
	profile string
	key     uuid.UUID
}

// earlier is an enrollment that a trigger repeats. Of a profile that was erased
// it is not told which: it is not named.
type earlier struct {
	id    uuid.UUID
	named bool
}

// repeated finds which of the triggers repeat an earlier enrollment, by their
// place. An enrollment that was refused at the entry counts for nothing.
func repeated(ctx context.Context, q querier, ws uuid.UUID, asked []repetition) (map[int]earlier, error) {
	var once, others []int
	for i, a := range asked {
		switch a.graph.Definition().Recurrence.Policy {
		case graph.PerEvent: // each event is another, and is recorded once
		case graph.Once:
			once = append(once, i)
		default:
			others = append(others, i)
		}
	}
	found := map[int]earlier{}
	if err := everEnrolled(ctx, q, ws, asked, once, found); err != nil {
		return nil, err
	}
	return found, enrolledForTheSame(ctx, q, ws, asked, others, found)
}

// enrollmentsOf are those of a profile in a flow, by the two indexes that have
// them: r is (flow_id, profile_key, erased_key, i), and $6 the least slot.
const enrollmentsOf = `
	unnest($2::uuid[], $3::text[], $4::text[], $5::int[]) as r (flow_id, profile_key, erased_key, i)
	cross join lateral (
		(select id, profile_key, enrolled_at from enrollments
		where workspace_id = $1 and profile_key = r.profile_key and flow_id = r.flow_id and slot >= $6 and status = 'active' order by slot)
		union all
		select e.* from unnest(array[r.profile_key, r.erased_key]) as known (name) cross join lateral (
			select id, profile_key, enrolled_at from enrollments
			where workspace_id = $1 and profile_key = known.name and flow_id = r.flow_id and status <> 'active' and status <> 'refused' offset 0) e`

func enrollmentArgs(ws uuid.UUID, asked []repetition, which []int) []any {
	n := len(which)
	flows, profiles, erased, places := make([]pgtype.UUID, n), make([]string, n), make([]string, n), make([]int32, n)
	for to, i := range which {
		flows[to], profiles[to], erased[to], places[to] = wire(asked[i].flow), asked[i].profile, erasedAs(asked[i].profile), int32(i)
	}
	return []any{ws, flows, profiles, erased, places, uuid.Nil}
}

// everEnrolled is the question of the recurrence once.
func everEnrolled(ctx context.Context, q querier, ws uuid.UUID, asked []repetition, which []int, found map[int]earlier) error {
	if len(which) == 0 {
		return nil
	}
	rows, err := q.Query(ctx, `select r.i, e.id, e.profile_key = r.profile_key from `+enrollmentsOf+` limit 1) e`, enrollmentArgs(ws, asked, which)...)
	if err != nil {
		return err
	}
	var i int
	var id uuid.UUID
	var named bool
	_, err = pgx.ForEachRow(rows, []any{&i, &id, &named}, func() error {
		found[i] = earlier{id, named}
		return nil
	})
	return err
}

// enrolledForTheSame is the question of all other recurrences: what key would
// the trigger of an earlier enrollment have now.
func enrolledForTheSame(ctx context.Context, q querier, ws uuid.UUID, asked []repetition, which []int, found map[int]earlier) error {
	if len(which) == 0 {
		return nil
	}
	rows, err := q.Query(ctx, `
		select r.i, e.id, e.profile_key = r.profile_key, e.enrolled_at, coalesce(s.data, '{}') from `+enrollmentsOf+`) e
		cross join lateral (select s.data from enrollment_steps s where s.workspace_id = $1 and s.enrollment_id = e.id and s.step = 0 limit 1) s`, enrollmentArgs(ws, asked, which)...)
	if err != nil {
		return err
	}
	var i int
	var id uuid.UUID
	var named bool
	var at time.Time
	var data string
	_, err = pgx.ForEachRow(rows, []any{&i, &id, &named, &at, &data}, func() error {
		if key, ok := keyNow(asked[i].graph, asked[i].profile, at, data); ok && key == asked[i].key {
			found[i] = earlier{id, named}
		}
		return nil
	})
	return err
}

// keyNow is the key that an enrollment would have by the recurrence of now. A
// trigger that is not known any more, since its profile was erased, happened
// when it enrolled.
func keyNow(g *graph.Graph, profile string, enrolledAt time.Time, data string) (uuid.UUID, bool) {
	trigger := triggerOf(data)
	o := graph.Occurrence{ProfileKey: profile, At: enrolledAt}
	o.Properties, _ = trigger["properties"].(map[string]any)
	if text, ok := trigger["at"].(string); ok {
		if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
			o.At = at
		}
	}
	key, err := g.Key(o)
	return key, err == nil
}

const enrolledBefore = "the recurrence of the flow lets this profile enroll no more for now"

// refuseRepeated refuses those who were enrolled, while another recurrence held,
// for what the one that holds now takes for the same. Whoever could still add
// such an enrollment was kept out when the version changed, so a look is enough;
// those of one recurrence are decided by their key.
func (t *take) refuseRepeated(ctx context.Context, asking []*candidate) ([]*candidate, error) {
	var looked []*candidate
	var asked []repetition
	for _, c := range asking {
		if !c.flow.recurred {
			continue
		}
		g, err := t.graphs.get(ctx, t.tx, t.ws, c.flow.id, c.flow.version)
		if err != nil {
			return nil, err
		}
		looked, asked = append(looked, c), append(asked, repetition{g, c.flow.id, c.profile, c.key})
	}
	if len(looked) == 0 {
		return asking, nil
	}
	found, err := repeated(ctx, t.tx, t.ws, asked)
	if err != nil {
		return nil, err
	}
	for i, was := range found {
		if was.named {
			looked[i].rival = &was.id
		}
		looked[i].refuse(AlreadyEnrolled, enrolledBefore)
	}
	return slices.DeleteFunc(asking, func(c *candidate) bool { return c.outcome != "" }), nil
}

// recursOtherwise says whether a definition lets profiles enroll by another
// recurrence than the live version; nil: there is none.
func (f *Flows) recursOtherwise(ctx context.Context, q querier, ws, flow uuid.UUID, live *int, def *graph.Definition) (bool, error) {
	if live == nil {
		return false, nil
	}
	was, err := readDefinition(ctx, q, ws, flow, *live)
	if err != nil {
		return false, err
	}
	return !was.Recurrence.Same(def.Recurrence), nil
}

// warnOfRecurrence says what another recurrence means to those who were
// enrolled by the one of the live version.
func (c *checked) warnOfRecurrence(ctx context.Context, live *int) error {
	if c.def == nil {
		return nil
	}
	otherwise, err := c.recursOtherwise(ctx, c.pool, c.ws, c.flow, live, c.def)
	if otherwise {
		c.warnings = append(c.warnings, fmt.Sprintf("the recurrence differs from that of version %d, which is live: a profile that was enrolled before enrolls again wherever the new one allows it", *live))
	}
	return err
}
