package api

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/client"
	"lemma/flows"
	"lemma/flows/graph"
	"lemma/flows/query"
)

// ask converts the option for package flows. The default mode is stay.
func ask(in client.InFlight) flows.InFlight {
	if in.Mode == "" {
		in.Mode = "stay"
	}
	return flows.InFlight(in)
}

type inFlightOptions struct {
	InFlight client.InFlight `json:"in_flight"`
}

type planBody struct {
	client.FlowPlan
	tag flows.Tag
}

func (b planBody) etag() int       { return b.tag.Version }
func (b planBody) planned() string { return b.tag.Planned }

// status is 200 for a plan, where publishing is 202.
func (planBody) status() int { return http.StatusOK }

func showPlan(p flows.Plan) planBody {
	b := planBody{client.FlowPlan{Version: p.Version, LiveVersion: p.Live, InFlight: client.InFlight(p.InFlight),
		Nodes: each(p.Nodes, showPlannedNode), Stranded: p.Stranded, Timers: each(p.Timers, showTimer),
		NodesLeftOut: p.NodesLeftOut, TimersLeftOut: p.TimersLeftOut,
		Changes: each(p.Changes, showChange), Enrolls: p.Enrolls, Unknown: orNull(p.Unknown)}, p.ETag}
	b.InFlight.Map = neverNull(b.InFlight.Map)
	return b
}

func showPlannedNode(n flows.PlannedNode) client.PlannedNode {
	return client.PlannedNode{Version: n.Version, Node: n.Node, Type: n.Type, Waiting: n.Waiting, Due: n.Due,
		Action: n.Action, To: orNull(n.To)}
}

func showTimer(t flows.TimerChange) client.TimerChange { return client.TimerChange(t) }

func (s *server) planFlowVersion(ctx context.Context, c *call, in inFlightOptions) (planBody, error) {
	plan, err := s.Flows.Plan(ctx, c.workspace(), c.id, c.version, ask(in.InFlight))
	return showPlan(plan), inDefinition(err)
}

// flowTag is the ETag of a flow or a plan in If-Match; nil without one.
func (c *call) flowTag() *flows.Tag {
	if c.ifMatch == nil {
		return nil
	}
	return &flows.Tag{Version: *c.ifMatch, Planned: c.planned}
}

// publishFlowVersion returns the flow, or with dry_run a plan.
func (s *server) publishFlowVersion(ctx context.Context, c *call, in inFlightOptions) (any, error) {
	if c.dryRun() {
		plan, err := s.Flows.Preview(ctx, c.workspace(), c.id, c.version, c.flowTag(), ask(in.InFlight))
		return showPlan(plan), inDefinition(err)
	}
	now, err := s.Flows.Publish(ctx, c.workspace(), c.id, c.version, c.flowTag(), ask(in.InFlight), c.actor())
	return showFlow(now), inDefinition(err)
}

type rollback struct {
	ToVersion *int            `json:"to_version"`
	InFlight  client.InFlight `json:"in_flight"`
}

func (s *server) rollbackFlow(ctx context.Context, c *call, in rollback) (flowBody, error) {
	now, err := s.Flows.Rollback(ctx, c.workspace(), c.id, in.ToVersion, c.ifMatch, ask(in.InFlight), c.actor())
	return showFlow(now), inDefinition(err)
}

// flowVerb is the handler of a verb that takes an id and returns the flow.
func (s *server) flowVerb(ctx context.Context, c *call,
	do func(ctx context.Context, ws, flow uuid.UUID, by *flows.Actor) (flows.Flow, error)) (flowBody, error) {
	now, err := do(ctx, c.workspace(), c.id, c.actor())
	return showFlow(now), err
}

func (s *server) pauseFlow(ctx context.Context, c *call, _ none) (flowBody, error) {
	return s.flowVerb(ctx, c, s.Flows.Pause)
}

func (s *server) drainFlow(ctx context.Context, c *call, _ none) (flowBody, error) {
	return s.flowVerb(ctx, c, s.Flows.Drain)
}

func (s *server) archiveFlow(ctx context.Context, c *call, _ none) (flowBody, error) {
	return s.flowVerb(ctx, c, s.Flows.Archive)
}

type resumption struct {
	CatchUp *string `json:"catch_up"`
}

func (s *server) resumeFlow(ctx context.Context, c *call, in resumption) (flowBody, error) {
	catchUp, err := in.duration()
	if err != nil {
		return flowBody{}, err
	}
	now, err := s.Flows.Resume(ctx, c.workspace(), c.id, catchUp, c.actor())
	return showFlow(now), err
}

// longestCatchUp bounds catch_up.
const longestCatchUp = 24 * time.Hour

func (in resumption) duration() (*time.Duration, error) {
	if in.CatchUp == nil {
		return nil, nil
	}
	catchUp, err := graph.ParseDuration(*in.CatchUp)
	switch {
	case err != nil:
		return nil, lemma.Fault("/catch_up", "bad_format", "must be a duration such as PT10M (ISO 8601)")
	case catchUp < 0 || catchUp > longestCatchUp:
		return nil, lemma.Fault("/catch_up", "out_of_range", "must be between PT0S and P1D")
	}
	return &catchUp, nil
}

func showLogLine(l query.LogLine) client.FlowLogLine {
	return client.FlowLogLine{CreatedAt: l.At.UTC(), Action: l.Action, Version: l.Version, APIKeyID: idOrNull(lemma.PrefixKey, l.APIKeyID),
		Detail: neverNull(l.Detail)}
}

func (s *server) readFlowHistory(ctx context.Context, c *call, _ none) (list[client.FlowLogLine], error) {
	found, next, err := s.FlowReader.History(ctx, c.workspace(), c.id, c.page())
	return listOf(found, next, err, showLogLine)
}
