package intake

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma/audience"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
	"lemma/flows/graph"
)

// CountNew reads the audience of a version as a poll does, and counts the profiles that
// the first poll would enroll if the version were live. recurred means that enrollments of
// the flow have, or would have, keys of several recurrences. Without an audience, or a
// trigger on it, the count is 0.
func (in *Intake) CountNew(ctx context.Context, ws, flow uuid.UUID, g *graph.Graph, a *audience.Audience, recurred bool) (int64, error) {
	triggers := g.Triggers()
	i := slices.IndexFunc(triggers, func(t graph.CompiledTrigger) bool { return t.Type == enrollment.FromAudience })
	if i < 0 || a == nil {
		return 0, nil
	}
	now, err := in.clock.Now(ctx)
	if err != nil {
		return 0, err
	}
	c := &forecastChunk{Intake: in, ws: ws, flow: flow, graph: g, condition: triggers[i].Condition, recurred: recurred, now: now,
		firsts: newFirsts()}
	var columns []string
	if c.condition != nil && c.condition.Uses().Profile {
		columns = execution.ColumnsOf(g, a)
	}
	if _, err := in.audiences.Stream(ctx, ws, a.ID, columns, func(row audience.Row) error { return c.add(ctx, row) }); err != nil {
		return 0, err
	}
	err = c.count(ctx)
	return c.enrolls, err
}

// forecastChunk is a chunk of the audience's profiles that may enroll.
type forecastChunk struct {
	*Intake
	ws, flow  uuid.UUID
	graph     *graph.Graph
	condition *graph.Condition
	recurred  bool
	now       time.Time
	firsts    *firsts

	pending []Repetition
	enrolls int64
}

// add decides by the row, as a poll does.
func (c *forecastChunk) add(ctx context.Context, row audience.Row) error {
	if !enrollment.IsProfileKey(row.Key) || !c.firsts.add(row.Key) {
		return nil
	}
	if c.condition != nil {
		is, err := decide(c.condition, c.ws, row, enrollment.TriggerData("", "", c.now, nil), c.now)
		if !is || err != nil {
			return nil //nolint:nilerr // a condition that cannot be evaluated excludes the profile
		}
	}
	profile := strings.Clone(row.Key) // a part of the memory of many rows
	key, err := c.graph.Key(graph.Occurrence{ProfileKey: profile, At: c.now})
	if err != nil {
		return err
	}
	if c.pending = append(c.pending, Repetition{c.graph, c.flow, profile, key}); len(c.pending) < pollChunk {
		return nil
	}
	return c.count(ctx)
}

// count counts the profiles of the chunk that an insert would not refuse.
func (c *forecastChunk) count(ctx context.Context) error {
	left, err := c.notEnrolled(ctx, c.ws, c.flow, c.pending, c.graph.Definition().Overlap == "allow")
	if err != nil {
		return err
	}
	var again map[int]Earlier
	if c.recurred {
		again, err = Repeated(ctx, c.pool, c.ws, left)
	}
	c.enrolls, c.pending = c.enrolls+int64(len(left)-len(again)), c.pending[:0]
	return err
}

// notEnrolled returns the profiles that neither a uniqueness key nor an active
// enrollment would refuse.
func (in *Intake) notEnrolled(ctx context.Context, ws, flow uuid.UUID, pending []Repetition, overlap bool) ([]Repetition, error) {
	if len(pending) == 0 {
		return nil, nil
	}
	profiles, keys := make([]string, len(pending)), make([]pgtype.UUID, len(pending))
	for i, a := range pending {
		profiles[i], keys[i] = a.ProfileKey, enrollment.PgUUID(a.Key)
	}
	rows, _ := in.pool.Query(ctx, `
		select r.i::int from unnest($3::text[], $4::uuid[]) with ordinality as r (profile_key, key, i)
		where (select true from enrollment_keys k where k.workspace_id = $1 and k.flow_id = $2 and k.uniqueness_key = r.key limit 1) is null
		  and ($5 or (select true from enrollments e where e.workspace_id = $1 and e.profile_key = r.profile_key and e.flow_id = $2
			and e.overlap_key >= $6
				and e.status = 'active' order by e.overlap_key limit 1) is null)`, ws, flow, profiles, keys, overlap, uuid.Nil)
	var left []Repetition
	var i int
	_, err := pgx.ForEachRow(rows, []any{&i}, func() error { left = append(left, pending[i-1]); return nil })
	return left, err
}
