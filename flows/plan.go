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
	"lemma/flows/graph"
)

// Plan tells what publishing a version, or rolling back to it, would do to
// those who are on their way, and what would change. It changes nothing, and
// refuses what the flow's status does not allow.
func (f *Flows) Plan(ctx context.Context, ws, flow uuid.UUID, n int, in InFlight) (Plan, error) {
	now, v, err := f.seen(ctx, ws, flow, n, in)
	if err != nil {
		return Plan{}, err
	}
	would := publish
	if v.Status == versionPublished {
		would = rollback
	}
	if !slices.Contains(from[would], now.Status) {
		return Plan{}, wrongState(now.Status, would)
	}
	return f.plan(ctx, ws, now, v, in)
}

// Rehearse is Publish without a side effect: it refuses what Publish would
// refuse before it looks at people, and answers a Plan.
func (f *Flows) Rehearse(ctx context.Context, ws, flow uuid.UUID, n int, ifMatch *int, in InFlight) (Plan, error) {
	now, v, err := f.toPublish(ctx, ws, flow, n, ifMatch, in)
	if err != nil {
		return Plan{}, err
	}
	return f.plan(ctx, ws, now, v, in)
}

func (f *Flows) plan(ctx context.Context, ws uuid.UUID, now Flow, v Version, in InFlight) (Plan, error) {
	flow, n := now.ID, v.Version
	if v.Status == versionDraft { // what cannot be published would do nothing
		if err := f.approve(ctx, &publication{ws: ws, flow: flow, version: n}, v); err != nil {
			return Plan{}, err
		}
	}
	to, err := graph.Decode(v.Definition)
	if err != nil {
		return Plan{}, err
	}
	p := Plan{Version: n, Live: now.LiveVersion, InFlight: InFlight{Mode: in.mode(), Map: in.Map}, ETag: now.Version}
	if p.Changes, err = f.changesTo(ctx, ws, now, v, to); err != nil {
		return Plan{}, err
	}
	err = pgx.BeginTxFunc(ctx, f.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		t, err := foresee(ctx, tx, ws, flow, n, to, in)
		p.Nodes, p.Stranded, p.Timers = t.nodes, t.stranded, t.timers
		return err
	})
	if err != nil {
		return Plan{}, answered(err, fmt.Sprintf("plan version %d of flow %s", n, flow))
	}
	if err = f.foreseeEnrolled(ctx, ws, flow, v, &p); err != nil {
		return Plan{}, answered(err, fmt.Sprintf("plan version %d of flow %s", n, flow))
	}
	return p, nil
}

// changesTo are the differences to the live version, as it would be published.
func (f *Flows) changesTo(ctx context.Context, ws uuid.UUID, now Flow, v Version, def *graph.Definition) ([]Change, error) {
	if now.LiveVersion == nil {
		return []Change{}, nil
	}
	live, err := f.GetVersion(ctx, ws, now.ID, *now.LiveVersion)
	if err != nil {
		return nil, err
	}
	pinned, err := f.pin(ctx, ws, v.Definition, def)
	if err != nil {
		return nil, fmt.Errorf("pin templates of version %d of flow %s: %w", v.Version, now.ID, err)
	}
	return changes(live.Definition, pinned)
}

// foreseen is what would become of those who are on the way in other versions.
type foreseen struct {
	nodes    []Standing
	timers   []TimerChange
	stranded int64
}

// foresee looks at everybody who is on the way in versions other than n. It
// runs in the transaction whose answer depends on it.
func foresee(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, n int, to *graph.Definition, in InFlight) (foreseen, error) {
	t := foreseen{timers: []TimerChange{}}
	groups, err := standing(ctx, tx, ws, flow, n)
	if err != nil {
		return t, err
	}
	if err := knownNodes(ctx, tx, ws, flow, to, in.Map); err != nil {
		return t, err
	}
	t.nodes = []Standing{}
	for _, version := range versionsOf(groups) {
		from, err := readDefinition(ctx, tx, ws, flow, version)
		if err != nil {
			return t, err
		}
		t.look(version, from, to, in, groups)
	}
	slices.SortFunc(t.nodes, func(a, b Standing) int { return cmp.Or(cmp.Compare(a.Version, b.Version), cmp.Compare(a.Node, b.Node)) })
	return t, nil
}

// look follows everybody of one version. A node that is gone strands those who
// stand on it, and those who can still come to it as well: they walk on until
// the move takes them over.
func (t *foreseen) look(version int, from, to *graph.Definition, in InFlight, groups []group) {
	var gone []string
	for node := range from.Nodes {
		if in.mode() == inFlightMove && fateOf(from, node, to, in.Map).kind == fateStranded {
			gone = append(gone, node)
		}
	}
	at := map[string]bool{}
	for _, s := range groups {
		if s.Version != version {
			continue
		}
		at[s.Node] = true
		s.Type = from.Nodes[s.Node].Type
		t.fillIn(&s, from, to, in)
		t.nodes = append(t.nodes, s.Standing)
		if ahead := reachable(from, []string{s.Node}); slices.ContainsFunc(gone, func(id string) bool { return ahead[id] }) {
			t.stranded += s.Waiting + s.Due
		}
	}
	ahead := reachable(from, slices.Collect(maps.Keys(at)))
	for _, node := range gone {
		if ahead[node] && !at[node] { // nobody stands there yet
			t.nodes = append(t.nodes, Standing{Version: version, Node: node, Type: from.Nodes[node].Type, Fate: fateStranded})
		}
	}
}

// fillIn fills in what becomes of one group, and of its wait.
func (t *foreseen) fillIn(s *group, from, to *graph.Definition, in InFlight) {
	switch in.mode() {
	case inFlightStay:
		s.Fate = fateStays
		return
	case inFlightExit:
		s.Fate = fateExits
		return
	}
	f := fateOf(from, s.Node, to, in.Map)
	s.Fate, s.To = f.kind, f.node
	inWait := s.open
	if f.timer == timerRestarted { // also of those who have heard what they waited for: they wait for another
		inWait = s.begun
	}
	if f.kind == fateMoves && inWait > 0 {
		t.timers = append(t.timers, TimerChange{Version: s.Version, Node: s.Node, To: f.node, Waiting: inWait, Change: f.timer, Seconds: f.shift.Seconds()})
	}
}

// group is everybody on one node of one version.
type group struct {
	Standing
	begun int64 // whose wait has begun, also if they are due
	open  int64 // of these: who have not heard what they wait for
}

// standing counts who is on the way in versions other than n, and where.
func standing(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, n int) ([]group, error) {
	rows, err := tx.Query(ctx, `
		select version, node, count(*) filter (where resume_at > now()), count(*) filter (where resume_at <= now()),
			count(*) filter (where not (`+entering+`)), count(*) filter (where not (`+entering+` or `+hasHeard+`))
		from enrollments where workspace_id = $1 and `+anyTurn+` and flow_id = $2 and status = 'active' and version <> $3
		group by version, node order by version, node`, ws, flow, n)
	if err != nil {
		return nil, fmt.Errorf("count who is on the way in flow %s: %w", flow, err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (g group, err error) {
		err = row.Scan(&g.Version, &g.Node, &g.Waiting, &g.Due, &g.begun, &g.open)
		return g, err
	})
	if err != nil {
		return nil, fmt.Errorf("count who is on the way in flow %s: %w", flow, err)
	}
	return found, nil
}

func versionsOf(groups []group) []int {
	var all []int
	for _, s := range groups {
		all = append(all, s.Version)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// readDefinition reads what a version says.
func readDefinition(ctx context.Context, q querier, ws, flow uuid.UUID, version int) (*graph.Definition, error) {
	var text string
	err := q.QueryRow(ctx, `select definition from flow_versions where workspace_id = $1 and flow_id = $2 and version = $3`, ws, flow, version).Scan(&text)
	if err != nil {
		return nil, fmt.Errorf("read version %d of flow %s: %w", version, flow, err)
	}
	return graph.Decode(json.RawMessage(text))
}

// knownNodes refuses a map that leads nowhere, or from where nobody ever was.
func knownNodes(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, to *graph.Definition, nodes map[string]*string) error {
	if len(nodes) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, `select definition from flow_versions where workspace_id = $1 and flow_id = $2 and status = 'published'`, ws, flow)
	if err != nil {
		return fmt.Errorf("read versions of flow %s: %w", flow, err)
	}
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("read versions of flow %s: %w", flow, err)
	}
	known := map[string]bool{}
	for _, text := range texts {
		d, err := graph.Decode(json.RawMessage(text))
		if err != nil {
			return err
		}
		for id := range d.Nodes {
			known[id] = true
		}
	}
	var fields []lemma.Field
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		at := "/in_flight/map" + pointer(node)
		if !known[node] {
			fields = append(fields, lemma.Field{Pointer: at, Code: "unknown_node", Detail: "no published version has this node"})
		}
		if target := nodes[node]; target != nil {
			if _, ok := to.Nodes[*target]; !ok {
				fields = append(fields, lemma.Field{Pointer: at, Code: "unknown_node", Detail: fmt.Sprintf("the version has no node %q", *target)})
			}
		}
	}
	if len(fields) > 0 {
		return &lemma.Error{Kind: lemma.Invalid, Message: "the map of nodes is not valid", Fields: fields}
	}
	return nil
}
