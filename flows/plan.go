package flows

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/graph"
)

// Plan shows what publishing a version, or rolling back to it, would do to active
// enrollments, and what would change. It changes nothing, and refuses what the flow's
// status does not allow.
func (f *Flows) Plan(ctx context.Context, ws, flow uuid.UUID, n int, in InFlight) (Plan, error) {
	now, v, err := f.seen(ctx, ws, flow, n, in)
	if err != nil {
		return Plan{}, err
	}
	would := publish
	if v.Status == versionPublished {
		would = rollback
	}
	if err := table.Check(now.Status, would); err != nil {
		return Plan{}, err
	}
	return f.plan(ctx, ws, now, v, in)
}

// Preview is Publish without a side effect: it returns the errors of Publish, or a Plan.
func (f *Flows) Preview(ctx context.Context, ws, flow uuid.UUID, n int, ifMatch *Tag, in InFlight) (Plan, error) {
	now, v, err := f.toPublish(ctx, ws, flow, n, ifMatch, in)
	if err != nil {
		return Plan{}, err
	}
	p, err := f.plan(ctx, ws, now, v, in)
	if err != nil {
		return Plan{}, err
	}
	return p, ifMatch.check(p.ETag)
}

func (f *Flows) plan(ctx context.Context, ws uuid.UUID, now Flow, v Version, in InFlight) (Plan, error) {
	flow, n := now.ID, v.Version
	would := publication{ws: ws, flow: flow, version: n, text: v.Definition}
	err := f.approve(ctx, &would, v) // only a valid draft has a plan
	if err != nil {
		return Plan{}, err
	}
	p := Plan{Version: n, Live: now.LiveVersion, InFlight: InFlight{Mode: in.mode(), Map: in.Map}, ETag: Tag{now.Version, would.planned}}
	if p.Changes, err = f.changesTo(ctx, now, would.text); err != nil {
		return Plan{}, err
	}
	err = pgx.BeginTxFunc(ctx, f.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		t, err := newForecast(ctx, tx, ws, flow, n, would.def, in)
		p.Stranded = t.stranded
		p.Nodes, p.NodesLeftOut = most(t.nodes, func(a, b PlannedNode) int {
			return cmp.Or(cmp.Compare(rank(b), rank(a)), cmp.Compare(b.Waiting+b.Due, a.Waiting+a.Due))
		})
		p.Timers, p.TimersLeftOut = most(t.timers, func(a, b TimerChange) int { return cmp.Compare(b.Waiting, a.Waiting) })
		return err
	})
	if err != nil {
		return Plan{}, answered(err, fmt.Sprintf("plan version %d of flow %s", n, flow))
	}
	if err = f.forecastEnrolled(ctx, ws, flow, v, &p); err != nil {
		return Plan{}, answered(err, fmt.Sprintf("plan version %d of flow %s", n, flow))
	}
	return p, nil
}

// mostPlanned is how many nodes and how many timers a plan has at most: a flow has up to 1,000
// versions of 200 nodes.
const mostPlanned = 1_000

// most returns the first mostPlanned by an order, in the order that they have, and how many others there are.
func most[T any](all []T, order func(a, b T) int) (first []T, others int) {
	if len(all) <= mostPlanned {
		return all, 0
	}
	places := make([]int, len(all))
	for i := range places {
		places[i] = i
	}
	slices.SortStableFunc(places, func(a, b int) int { return order(all[a], all[b]) })
	for _, i := range slices.Sorted(slices.Values(places[:mostPlanned])) {
		first = append(first, all[i])
	}
	return first, len(all) - mostPlanned
}

// rank is above 0 if publishing is refused because of a node.
func rank(n PlannedNode) int {
	if n.Action == graph.Stranded {
		return 1
	}
	return 0
}

// changesTo are the differences of a published text to the live version.
func (f *Flows) changesTo(ctx context.Context, now Flow, text json.RawMessage) ([]graph.Difference, error) {
	if now.LiveVersion == nil {
		return []graph.Difference{}, nil
	}
	live, err := f.GetVersion(ctx, now.WorkspaceID, now.ID, *now.LiveVersion)
	if err != nil {
		return nil, err
	}
	return graph.Compare(now.WorkspaceID, live.Definition, text)
}

// forecast is the effect on active enrollments of other versions.
type forecast struct {
	nodes    []PlannedNode
	timers   []TimerChange
	stranded int64
}

// newForecast counts the active enrollments of versions other than n. It runs in the
// transaction whose result depends on it.
func newForecast(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, n int, to *graph.Definition, in InFlight) (forecast, error) {
	t := forecast{timers: []TimerChange{}}
	groups, err := countGroups(ctx, tx, ws, flow, n)
	if err != nil {
		return t, err
	}
	if err := checkMap(ctx, tx, ws, flow, to, in.Map); err != nil {
		return t, err
	}
	t.nodes = []PlannedNode{}
	for len(groups) > 0 { // by version
		version, n := groups[0].Version, 1
		for n < len(groups) && groups[n].Version == version {
			n++
		}
		from, err := readDefinition(ctx, tx, ws, flow, version)
		if err != nil {
			return t, err
		}
		t.examine(version, from, to, in, groups[:n])
		groups = groups[n:]
	}
	slices.SortFunc(t.nodes, func(a, b PlannedNode) int {
		return cmp.Or(cmp.Compare(a.Version, b.Version), cmp.Compare(a.Node, b.Node))
	})
	return t, nil
}

// examine decides for the groups of one version. A node that is gone strands the
// enrollments on it, and those that can still reach it: they advance until the move takes
// them over.
func (t *forecast) examine(version int, from, to *graph.Definition, in InFlight, groups []group) {
	var gone []string
	for node := range from.Nodes {
		if in.mode() == inFlightMove && graph.ActionFor(from, node, to, in.Map).Kind == graph.Stranded {
			gone = append(gone, node)
		}
	}
	at, towards := map[string]bool{}, graph.Reaching(from, gone)
	for _, s := range groups {
		at[s.Node] = true
		s.Type = from.Nodes[s.Node].Type
		t.fillIn(&s, from, to, in)
		t.nodes = append(t.nodes, s.PlannedNode)
		if towards[s.Node] {
			t.stranded += s.Waiting + s.Due
		}
	}
	if len(gone) == 0 {
		return
	}
	ahead := graph.Reachable(from, slices.Collect(maps.Keys(at)))
	for _, node := range gone {
		if ahead[node] && !at[node] { // no enrollment is on it yet
			t.nodes = append(t.nodes, PlannedNode{Version: version, Node: node, Type: from.Nodes[node].Type, Action: graph.Stranded})
		}
	}
}

// fillIn adds the action on one group, and on its wait.
func (t *forecast) fillIn(s *group, from, to *graph.Definition, in InFlight) {
	switch in.mode() {
	case inFlightStay:
		s.Action = graph.Stays
		return
	case inFlightExit:
		s.Action = graph.Exits
		return
	}
	f := graph.ActionFor(from, s.Node, to, in.Map)
	s.Action, s.To = f.Kind, f.Node
	inWait := s.open
	if f.Timer == graph.TimerRestarted { // also matched waits: the new wait is another one
		inWait = s.begun
	}
	if f.Kind == graph.Moves && inWait > 0 {
		t.timers = append(t.timers,
			TimerChange{Version: s.Version, Node: s.Node, To: f.Node, Waiting: inWait, Change: f.Timer, Seconds: f.Shift.Seconds()})
	}
}

// group is the enrollments on one node of one version.
type group struct {
	PlannedNode
	begun int64 // whose wait has begun, including due ones
	open  int64 // of these: without a matched event
}

// countGroups counts the active enrollments of versions other than n, by node.
func countGroups(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, n int) ([]group, error) {
	rows, _ := tx.Query(ctx, `
		select version, node, count(*) filter (where resume_at > now()), count(*) filter (where resume_at <= now()),
			count(*) filter (where not (`+entering+`)), count(*) filter (where not (`+entering+` or `+hasMatched+`))
		from enrollments where workspace_id = $1 and `+enrollment.AnyShard+` and flow_id = $2 and resume_at is not null and version <> $3
		group by version, node order by version, node`, ws, flow, n)
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (g group, err error) {
		err = row.Scan(&g.Version, &g.Node, &g.Waiting, &g.Due, &g.begun, &g.open)
		return g, err
	})
	return found, lemma.Wrap(err, "count active enrollments in flow %s", flow)
}

// readDefinition reads the definition of a version, once the workspace has a processor.
func readDefinition(ctx context.Context, q enrollment.Querier, ws, flow uuid.UUID, version int) (*graph.Definition, error) {
	text, err := readText(ctx, q, ws, flow, version)
	if err != nil {
		return nil, err
	}
	return graph.Decode(ws, text)
}

func readText(ctx context.Context, q enrollment.Querier, ws, flow uuid.UUID, version int) (json.RawMessage, error) {
	var text string
	err := q.QueryRow(ctx, `select definition from flow_versions where workspace_id = $1 and flow_id = $2 and version = $3`, ws, flow,
		version).Scan(&text)
	return json.RawMessage(text), lemma.Wrap(err, "read version %d of flow %s", version, flow)
}

// checkMap refuses a map to unknown nodes, or from nodes that no published version has. The
// database compares the names: a flow has many versions, and each may be large.
func checkMap(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, to *graph.Definition, nodes map[string]*string) error {
	if len(nodes) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(nodes))
	rows, _ := tx.Query(ctx, `
		select distinct n.name from flow_versions v cross join unnest(v.nodes) as n (name)
		where v.workspace_id = $1 and v.flow_id = $2 and n.name = any($3)`, ws, flow, names)
	var name string
	known := map[string]bool{}
	if _, err := pgx.ForEachRow(rows, []any{&name}, func() error { known[name] = true; return nil }); err != nil {
		return fmt.Errorf("read nodes of flow %s: %w", flow, err)
	}
	var fields []lemma.Field
	for _, node := range names {
		at := "/in_flight/map" + lemma.Pointer(node)
		if !known[node] {
			fields = append(fields, lemma.Field{Pointer: at, Code: "unknown_node", Detail: "no published version has this node"})
		}
		if target := nodes[node]; target != nil {
			if _, ok := to.Nodes[*target]; !ok {
				fields = append(fields,
					lemma.Field{Pointer: at, Code: "unknown_node", Detail: fmt.Sprintf("the version has no node %q", *target)})
			}
		}
	}
	if len(fields) > 0 {
		return &lemma.Error{Kind: lemma.Invalid, Message: "the map of nodes is not valid", Fields: fields}
	}
	return nil
}
