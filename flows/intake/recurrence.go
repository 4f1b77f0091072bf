package intake

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma/flows/enrollment"
	"lemma/flows/graph"
)

// The recurrence of a flow after it was changed. The uniqueness key decides
// between triggers of one recurrence; an enrollment of another has a key of
// another making, and is compared by the trigger that it was made for.

// Repetition asks whether a profile was enrolled in a flow before for what its
// recurrence takes for the same trigger. The key is what it would enroll under.
type Repetition struct {
	Graph      *graph.Graph
	FlowID     uuid.UUID
	ProfileKey string
	Key        uuid.UUID
}

// Earlier is an enrollment that a trigger repeats. That of an erased profile is not
// named.
type Earlier struct {
	ID    uuid.UUID
	named bool
}

// Repeated finds which of the triggers repeat an earlier enrollment, by their
// place. An enrollment that was refused at the entry counts for nothing.
func Repeated(ctx context.Context, q enrollment.Querier, ws uuid.UUID, asked []Repetition) (map[int]Earlier, error) {
	var once, others []int
	for i, a := range asked {
		switch a.Graph.Definition().Recurrence.Policy {
		case graph.PerEvent: // each event is another, and is recorded once
		case graph.Once:
			once = append(once, i)
		default:
			others = append(others, i)
		}
	}
	found := map[int]Earlier{}
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

func enrollmentArgs(ws uuid.UUID, asked []Repetition, which []int) []any {
	n := len(which)
	flows, profiles, erased, places := make([]pgtype.UUID, n), make([]string, n), make([]string, n), make([]int32, n)
	for to, i := range which {
		flows[to], profiles[to], erased[to], places[to] = enrollment.PgUUID(asked[i].FlowID), asked[i].ProfileKey, enrollment.ErasedKey(asked[i].ProfileKey), int32(i)
	}
	return []any{ws, flows, profiles, erased, places, uuid.Nil}
}

// everEnrolled is the question of the recurrence once.
func everEnrolled(ctx context.Context, q enrollment.Querier, ws uuid.UUID, asked []Repetition, which []int, found map[int]Earlier) error {
	if len(which) == 0 {
		return nil
	}
	rows, err := q.Query(ctx, `select r.i, e.id, e.profile_key = r.profile_key from `+enrollmentsOf+` limit 1) e`,
		enrollmentArgs(ws, asked, which)...)
	if err != nil {
		return err
	}
	var i int
	var id uuid.UUID
	var named bool
	_, err = pgx.ForEachRow(rows, []any{&i, &id, &named}, func() error {
		found[i] = Earlier{id, named}
		return nil
	})
	return err
}

// enrolledForTheSame is the question of all other recurrences: what key would
// the trigger of an earlier enrollment have now.
func enrolledForTheSame(ctx context.Context, q enrollment.Querier, ws uuid.UUID, asked []Repetition, which []int,
	found map[int]Earlier) error {
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
		if key, ok := keyNow(asked[i].Graph, asked[i].ProfileKey, at, data); ok && key == asked[i].Key {
			found[i] = Earlier{id, named}
		}
		return nil
	})
	return err
}

// keyNow is the key that an enrollment would have by the recurrence of now. A
// trigger that is not known any more, since its profile was erased, happened
// when it enrolled.
func keyNow(g *graph.Graph, profile string, enrolledAt time.Time, data string) (uuid.UUID, bool) {
	trigger := enrollment.TriggerOf(data)
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

// refuseRepeated refuses profiles that another recurrence enrolled for what the
// current one takes for the same. The change of the version excluded concurrent
// enrollments of that kind, so one query is enough; those of one recurrence are
// decided by their key.
func (t *transaction) refuseRepeated(ctx context.Context, asking []*candidate) ([]*candidate, error) {
	var looked []*candidate
	var asked []Repetition
	for _, c := range asking {
		if !c.flow.recurred {
			continue
		}
		g, err := t.exec.Versions.Get(ctx, t.tx, t.ws, c.flow.id, c.flow.version)
		if err != nil {
			return nil, err
		}
		looked, asked = append(looked, c), append(asked, Repetition{g, c.flow.id, c.profile, c.key})
	}
	if len(looked) == 0 {
		return asking, nil
	}
	found, err := Repeated(ctx, t.tx, t.ws, asked)
	if err != nil {
		return nil, err
	}
	for i, was := range found {
		if was.named {
			looked[i].conflicting = &was.ID
		}
		looked[i].refuse(enrollment.AlreadyEnrolled, enrolledBefore)
	}
	return slices.DeleteFunc(asking, func(c *candidate) bool { return c.outcome != "" }), nil
}
