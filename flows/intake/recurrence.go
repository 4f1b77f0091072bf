package intake

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma/flows/enrollment"
	"lemma/flows/graph"
)

// A flow's recurrence can change. The uniqueness key decides between triggers of one
// recurrence. An enrollment of another recurrence has another kind of key, and its trigger
// is compared instead.

// Repetition is a candidate: was the profile enrolled in the flow for a trigger that its
// recurrence treats as the same? Key is the uniqueness key of the candidate.
type Repetition struct {
	Graph      *graph.Graph
	FlowID     uuid.UUID
	ProfileKey string
	Key        uuid.UUID
}

// Earlier is an enrollment that a trigger repeats. That of an erased profile is not named.
type Earlier struct {
	ID    uuid.UUID
	named bool
}

// Repeated finds which of the triggers repeat an earlier enrollment, by their index. An
// enrollment that was refused at the entry does not count.
func Repeated(ctx context.Context, q enrollment.Querier, ws uuid.UUID, asked []Repetition) (map[int]Earlier, error) {
	return (&comparison{}).repeated(ctx, q, ws, asked)
}

// comparison finds repetitions. It reads the earlier enrollments of a profile once.
type comparison struct {
	known map[enrolled]map[uuid.UUID]Earlier // by the keys that they would have now
	kept  int                                // keys in known
	// How many profiles may have older enrollments, which were not read.
	limited int
}

// enrolled is a profile in a flow.
type enrolled struct {
	flow    uuid.UUID
	profile string
}

// mostCompared bounds the earlier enrollments of a profile in a flow that a trigger is compared with: the
// newest. Each is read with its trigger, which may have 32 KiB.
const mostCompared = 1000

// mostKept bounds the keys that a comparison keeps in memory.
const mostKept = 100_000

func (c *comparison) repeated(ctx context.Context, q enrollment.Querier, ws uuid.UUID, asked []Repetition) (map[int]Earlier, error) {
	var once, others []int
	for i, a := range asked {
		switch a.Graph.Definition().Recurrence.Policy {
		case graph.PerEvent: // each event is different, and is recorded once
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
	return found, c.enrolledForTheSame(ctx, q, ws, asked, others, found)
}

// enrollmentsOf are those of a profile in a flow, by the index of active and that of ended
// ones: r is (flow_id, profile_key, erased_key, i), and $6 the least overlap key.
const enrollmentsOf = `
	unnest($2::uuid[], $3::text[], $4::text[], $5::int[]) as r (flow_id, profile_key, erased_key, i)
	cross join lateral (
		(select id, profile_key, enrolled_at from enrollments
		where workspace_id = $1 and profile_key = r.profile_key and flow_id = r.flow_id and overlap_key >= $6 and status = 'active'
			order by overlap_key)
		union all
		select e.id, e.profile_key, e.enrolled_at from unnest(array[r.profile_key, r.erased_key]) as known (name) cross join lateral (
			select id, profile_key, enrolled_at from enrollments
			where workspace_id = $1 and profile_key = known.name and flow_id = r.flow_id and status <> 'active' and status <> 'refused' offset 0) e`

func enrollmentArgs(ws uuid.UUID, asked []Repetition, which []int) []any {
	n := len(which)
	flows, profiles, erased, places := make([]pgtype.UUID, n), make([]string, n), make([]string, n), make([]int32, n)
	for to, i := range which {
		flows[to], profiles[to], erased[to], places[to] = enrollment.PgUUID(asked[i].FlowID), asked[i].ProfileKey,
			enrollment.ErasedKey(asked[i].ProfileKey), int32(i)
	}
	return []any{ws, flows, profiles, erased, places, uuid.Nil}
}

// everEnrolled finds enrollments for the recurrence once.
func everEnrolled(ctx context.Context, q enrollment.Querier, ws uuid.UUID, asked []Repetition, which []int, found map[int]Earlier) error {
	if len(which) == 0 {
		return nil
	}
	rows, _ := q.Query(ctx, `select r.i, e.id, e.profile_key = r.profile_key from `+enrollmentsOf+` limit 1) e`,
		enrollmentArgs(ws, asked, which)...)
	var i int
	var id uuid.UUID
	var named bool
	_, err := pgx.ForEachRow(rows, []any{&i, &id, &named}, func() error {
		found[i] = Earlier{id, named}
		return nil
	})
	return err
}

// enrolledForTheSame finds them for all other recurrences: by the key that the trigger of
// an earlier enrollment would have now.
func (c *comparison) enrolledForTheSame(ctx context.Context, q enrollment.Querier, ws uuid.UUID, asked []Repetition, which []int,
	found map[int]Earlier) error {
	if c.known == nil || c.kept > mostKept {
		c.known, c.kept = map[enrolled]map[uuid.UUID]Earlier{}, 0
	}
	var unknown []int
	for _, i := range which {
		of := enrolled{asked[i].FlowID, asked[i].ProfileKey}
		if _, known := c.known[of]; !known {
			c.known[of] = map[uuid.UUID]Earlier{}
			unknown = append(unknown, i)
		}
	}
	if err := c.read(ctx, q, ws, asked, unknown); err != nil {
		return err
	}
	for _, i := range which {
		if one, is := c.known[enrolled{asked[i].FlowID, asked[i].ProfileKey}][asked[i].Key]; is {
			found[i] = one
		}
	}
	return nil
}

// read adds the earlier enrollments of profiles.
func (c *comparison) read(ctx context.Context, q enrollment.Querier, ws uuid.UUID, asked []Repetition, which []int) error {
	if len(which) == 0 {
		return nil
	}
	rows, _ := q.Query(ctx, `
		select r.i, e.id, e.profile_key = r.profile_key, e.enrolled_at, coalesce(s.data, '{}') from `+enrollmentsOf+`
			order by enrolled_at desc limit $7) e
		left join lateral (select s.data from enrollment_steps s where s.workspace_id = $1 and s.enrollment_id = e.id
			and s.step = 0 limit 1) s on true`, append(enrollmentArgs(ws, asked, which), mostCompared)...)
	var i int
	var id uuid.UUID
	var named bool
	var at time.Time
	var data []byte
	read := map[int]int{}
	_, err := pgx.ForEachRow(rows, []any{&i, &id, &named, &at, &data}, func() error {
		a := &asked[i]
		if read[i]++; read[i] == mostCompared {
			c.limited++
		}
		if key, ok := keyNow(a.Graph, a.ProfileKey, at, data); ok {
			of := c.known[enrolled{a.FlowID, a.ProfileKey}]
			if _, newer := of[key]; !newer {
				of[key] = Earlier{id, named}
				c.kept++
			}
		}
		return nil
	})
	return err
}

// keyNow is the key that an enrollment would have by the current recurrence. The trigger
// of an erased profile, or one whose step was dropped by its retention, is unknown: it counts
// as of the time of enrolling, and as without fields. Only what the key needs is decoded.
func keyNow(g *graph.Graph, profile string, enrolledAt time.Time, data []byte) (uuid.UUID, bool) {
	var step struct {
		Trigger struct {
			At         string          `json:"at"`
			Properties json.RawMessage `json:"properties"`
		} `json:"trigger"`
	}
	o := graph.Occurrence{ProfileKey: profile, At: enrolledAt}
	if json.Unmarshal(data, &step) == nil {
		if at, err := time.Parse(time.RFC3339Nano, step.Trigger.At); err == nil {
			o.At = at
		}
		o.Properties = fieldsOf(step.Trigger.Properties, g.Definition().Recurrence.Fields)
	}
	key, err := g.Key(o)
	return key, err == nil
}

// fieldsOf decodes some properties.
func fieldsOf(properties json.RawMessage, names []string) map[string]any {
	var raw map[string]json.RawMessage
	if len(names) == 0 || json.Unmarshal(properties, &raw) != nil {
		return nil
	}
	fields := map[string]any{}
	for _, name := range names {
		d := json.NewDecoder(bytes.NewReader(raw[name]))
		d.UseNumber() // as in enrollment.ReadObject
		var value any
		if d.Decode(&value) == nil {
			fields[name] = value
		}
	}
	return fields
}

const enrolledBefore = "the recurrence of the flow lets this profile enroll no more for now"

// refuseRepeated refuses profiles that another recurrence enrolled for a trigger that the
// current one treats as the same. The change of the version excluded concurrent
// enrollments of that kind, so one query is enough; the key decides between those of one
// recurrence.
func (t *transaction) refuseRepeated(ctx context.Context, pending []*candidate) ([]*candidate, error) {
	var compared []*candidate
	var asked []Repetition
	for _, c := range pending {
		if !c.flow.recurred {
			continue
		}
		g, err := t.versions.Get(ctx, t.tx, c.flow.id, c.flow.version)
		if err != nil {
			return nil, err
		}
		compared, asked = append(compared, c), append(asked, Repetition{g, c.flow.id, c.profile, c.key})
	}
	if len(compared) == 0 {
		return pending, nil
	}
	begun, limited := time.Now(), t.comparison.limited
	found, err := t.comparison.repeated(ctx, t.tx, t.ws, asked)
	t.evaluated += time.Since(begun)
	t.metrics.Compared.Add(float64(t.comparison.limited - limited))
	if err != nil {
		return nil, err
	}
	for i, was := range found {
		if was.named {
			compared[i].conflicting = &was.ID
		}
		compared[i].refuse(enrollment.AlreadyEnrolled, enrolledBefore)
	}
	return slices.DeleteFunc(pending, func(c *candidate) bool { return c.outcome != "" }), nil
}
