package flows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/audience"
	"lemma/flows/graph"
)

// plannedFor bounds how long a plan reads an audience.
const plannedFor = 10 * time.Second

// foreseeEnrolled counts whom the first look at the audience would enroll if the
// version were live. That the audience cannot be read, or not in time, is said
// in the plan, which tells the rest all the same.
func (f *Flows) foreseeEnrolled(ctx context.Context, ws, flow uuid.UUID, v Version, p *Plan) error {
	reading, stop := context.WithTimeout(ctx, plannedFor)
	defer stop()
	n, err := f.wouldEnroll(reading, ws, flow, v)
	var known *lemma.Error
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		p.Enrolls = &n
	case reading.Err() != nil:
		p.Unknown = fmt.Sprintf("the audience was not read within %s", plannedFor)
	case errors.As(err, &known) && known.Kind != lemma.Internal:
		p.Unknown = troubleOf(err) + ": " + lemma.Public(err)
	default:
		return err
	}
	return nil
}

// graphWithAudience compiles any version by its audience as that is now.
func (f *Flows) graphWithAudience(ctx context.Context, ws, flow uuid.UUID, v Version) (*graph.Graph, *audience.Audience, error) {
	def, err := graph.Decode(v.Definition)
	if err != nil {
		return nil, nil, err
	}
	facts := graph.Facts{Published: v.Status != versionDraft}
	var a *audience.Audience
	if id, named := lemma.ParseID(lemma.PrefixAudience, def.AudienceID); named {
		found, err := f.audiences.Get(ctx, ws, id)
		if err != nil {
			return nil, nil, err
		}
		a = &found
		facts.Columns = columnFacts(found)
	}
	g, err := graph.Compile(v.Definition, graph.Flow{WorkspaceID: ws, FlowID: flow}, facts)
	return g, a, err
}

// columnFacts are an audience's columns as a definition is checked by them.
func columnFacts(a audience.Audience) []graph.Column {
	columns := make([]graph.Column, len(a.Columns))
	for i, column := range a.Columns {
		columns[i] = graph.Column{Name: column.Name, Type: string(column.Type)}
	}
	return columns
}

// wouldEnroll reads the audience as a look at it does.
func (f *Flows) wouldEnroll(ctx context.Context, ws, flow uuid.UUID, v Version) (int64, error) {
	g, a, err := f.graphWithAudience(ctx, ws, flow, v)
	if err != nil {
		return 0, err
	}
	triggers := g.Triggers()
	i := slices.IndexFunc(triggers, func(t graph.CompiledTrigger) bool { return t.Type == fromAudience })
	if i < 0 || a == nil {
		return 0, nil
	}
	c := &foreseenChunk{Flows: f, ws: ws, flow: flow, graph: g, condition: triggers[i].Condition, now: time.Now()}
	if c.recurred, err = f.wouldRecur(ctx, ws, flow, g); err != nil {
		return 0, err
	}
	var columns []string
	if c.condition != nil && c.condition.Uses().Profile {
		columns = columnsOf(g, a)
	}
	if _, err = f.audiences.Stream(ctx, ws, a.ID, columns, func(row audience.Row) error { return c.add(ctx, row) }); err != nil {
		return 0, err
	}
	err = c.count(ctx)
	return c.enrolls, err
}

// foreseenChunk is some people of an audience of whom it is asked whether they
// would enroll.
type foreseenChunk struct {
	*Flows
	ws, flow  uuid.UUID
	graph     *graph.Graph
	condition *graph.Condition
	recurred  bool
	now       time.Time

	asking  []repetition
	enrolls int64
}

// add decides by the row, as a look does.
func (c *foreseenChunk) add(ctx context.Context, row audience.Row) error {
	if !isProfileKey(row.Key) {
		return nil
	}
	if c.condition != nil {
		who := person{Row: row}
		is, err := c.condition.Eval(graph.Vars{Trigger: triggerData("", "", c.now, nil), Profile: who.columns(), Now: c.now})
		if !is || err != nil {
			return nil
		}
	}
	key, err := c.graph.Key(graph.Occurrence{ProfileKey: row.Key, At: c.now})
	if err != nil {
		return err
	}
	if c.asking = append(c.asking, repetition{c.graph, c.flow, row.Key, key}); len(c.asking) < pollChunk {
		return nil
	}
	return c.count(ctx)
}

// count asks of the chunk what an insert would be refused for.
func (c *foreseenChunk) count(ctx context.Context) error {
	left, err := c.notEnrolled(ctx, c.ws, c.flow, c.asking, c.graph.Definition().Overlap == "allow")
	if err != nil {
		return err
	}
	var again map[int]earlier
	if c.recurred {
		again, err = repeated(ctx, c.pool, c.ws, left)
	}
	c.enrolls, c.asking = c.enrolls+int64(len(left)-len(again)), c.asking[:0]
	return err
}

// wouldRecur says whether enrollments of the flow have keys of several
// recurrences, or would have if the version were live.
func (f *Flows) wouldRecur(ctx context.Context, ws, flow uuid.UUID, g *graph.Graph) (recurred bool, err error) {
	var live *int
	if err = f.pool.QueryRow(ctx, `select recurred, live_version from flows where workspace_id = $1 and id = $2`, ws, flow).Scan(&recurred, &live); err != nil || recurred {
		return recurred, err
	}
	return f.recursOtherwise(ctx, f.pool, ws, flow, live, g.Definition())
}

// notEnrolled leaves those whom neither the uniqueness key nor a journey that
// is on its way would refuse.
func (f *Flows) notEnrolled(ctx context.Context, ws, flow uuid.UUID, asking []repetition, overlap bool) ([]repetition, error) {
	if len(asking) == 0 {
		return nil, nil
	}
	profiles, keys := make([]string, len(asking)), make([]pgtype.UUID, len(asking))
	for i, a := range asking {
		profiles[i], keys[i] = a.profile, wire(a.key)
	}
	rows, err := f.pool.Query(ctx, `
		select r.i::int from unnest($3::text[], $4::uuid[]) with ordinality as r (profile_key, key, i)
		where (select true from enrollments e where e.workspace_id = $1 and e.flow_id = $2 and e.uniqueness_key = r.key limit 1) is null
		  and ($5 or (select true from enrollments e where e.workspace_id = $1 and e.profile_key = r.profile_key and e.flow_id = $2 and e.slot >= $6
				and e.status = 'active' order by e.slot limit 1) is null)`, ws, flow, profiles, keys, overlap, uuid.Nil)
	if err != nil {
		return nil, err
	}
	var left []repetition
	var i int
	_, err = pgx.ForEachRow(rows, []any{&i}, func() error { left = append(left, asking[i-1]); return nil })
	return left, err
}
