package flows

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
	"lemma/flows/execution"
	"lemma/flows/graph"
)

// plannedFor bounds how long a plan reads an audience.
const plannedFor = 10 * time.Second

// forecastEnrolled counts the profiles that the first poll of the audience would enroll if
// the version were live. If the audience cannot be read in time, or the caller may not read
// rows, the plan has the reason instead of the count: a caller could read the rows by the
// counts of conditions.
func (f *Flows) forecastEnrolled(ctx context.Context, ws, flow uuid.UUID, v Version, p *Plan) error {
	if !audience.MayReadRows(ctx) {
		p.Unknown = "missing_scope: counting them needs the scope audiences:query"
		return nil
	}
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
		p.Unknown = execution.BlockedReason(err) + ": " + lemma.Public(err)
	default:
		return err
	}
	return nil
}

// graphWithAudience compiles any version with its audience's current columns.
func (f *Flows) graphWithAudience(ctx context.Context, ws, flow uuid.UUID, v Version) (*graph.Graph, *audience.Audience, error) {
	def, err := graph.Decode(ws, v.Definition)
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
		facts.Columns = execution.ColumnFacts(found)
	}
	g, err := graph.Compile(v.Definition, graph.Flow{WorkspaceID: ws, FlowID: flow}, facts)
	return g, a, err
}

// wouldRecur reports whether enrollments of the flow have keys of several recurrences,
// or would have if the version were live.
func (f *Flows) wouldRecur(ctx context.Context, ws, flow uuid.UUID, g *graph.Graph) (recurred bool, err error) {
	var live *int
	if err = f.pool.QueryRow(ctx, `select recurred, live_version from flows where workspace_id = $1 and id = $2`, ws,
		flow).Scan(&recurred, &live); err != nil || recurred {
		return recurred, err
	}
	return f.recursOtherwise(ctx, f.pool, ws, flow, live, g.Definition())
}

// wouldEnroll counts the profiles that the first poll would enroll.
func (f *Flows) wouldEnroll(ctx context.Context, ws, flow uuid.UUID, v Version) (int64, error) {
	g, a, err := f.graphWithAudience(ctx, ws, flow, v)
	if err != nil {
		return 0, err
	}
	recurred, err := f.wouldRecur(ctx, ws, flow, g)
	if err != nil {
		return 0, err
	}
	return f.Intake.CountNew(ctx, ws, flow, g, a, recurred)
}
