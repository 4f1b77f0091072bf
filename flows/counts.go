package flows

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/flows/graph"
)

// Counts are where the people of one version are and how they got there.
type Counts struct {
	Version     int
	Enrolled    int64 // who ever came in: all the others but Refused together
	Active      int64
	Completed   int64
	Exited      int64
	Failed      int64
	Refused     int64            // enrolled, and taken back when the profile was looked at
	ExitReasons map[string]int64 // of those who ended
	Goals       int64            // of those who ended: it was what the flow is for
	Nodes       []NodeCount      // in the order of the graph
	Refusals    map[string]int64 // reason -> triggers; of the flow, within their retention
}

// NodeCount is one node of a version. The one without a name is the entry:
// enrolled, and not yet on the first node.
type NodeCount struct {
	Node     string
	Type     string
	Standing int64            // here now
	Due      int64            // of these: their time has come
	Passed   map[string]int64 // event -> how many
}

// entry is what stands in for the type of the node before the first.
const entry = "entry"

// Counts counts one version; 0 is the live one. Where people stand and how they
// ended is counted from the enrollments themselves, what passed a node from the
// books that are kept of it.
func (f *Flows) Counts(ctx context.Context, ws, flow uuid.UUID, version int) (Counts, error) {
	v, err := f.versionOf(ctx, ws, flow, version)
	if err != nil {
		return Counts{}, err
	}
	c := Counts{Version: v.Version, ExitReasons: map[string]int64{}, Nodes: nodesOf(v)}
	nodes := map[string]*NodeCount{}
	for i := range c.Nodes {
		nodes[c.Nodes[i].Node] = &c.Nodes[i]
	}
	if err := f.countEnrollments(ctx, ws, flow, &c, nodes); err != nil {
		return Counts{}, fmt.Errorf("count enrollments of flow %s: %w", flow, err)
	}
	if err := f.countPassed(ctx, ws, flow, v.Version, nodes); err != nil {
		return Counts{}, fmt.Errorf("count steps of flow %s: %w", flow, err)
	}
	c.Refusals, err = f.countRefusals(ctx, ws, flow)
	return c, err
}

// versionOf reads a version; 0 is the live one.
func (f *Flows) versionOf(ctx context.Context, ws, flow uuid.UUID, version int) (Version, error) {
	if version == 0 {
		now, err := f.Get(ctx, ws, flow)
		switch {
		case err != nil:
			return Version{}, err
		case now.LiveVersion == nil:
			return Version{}, &lemma.Error{Kind: lemma.WrongState, Message: "no version of the flow was published yet: name one", Status: string(now.Status), Allowed: now.Allowed}
		}
		version = *now.LiveVersion
	}
	return f.GetVersion(ctx, ws, flow, version)
}

// nodesOf lists the nodes of a version in the order in which people come to
// them; those of a draft that is no graph yet by name.
func nodesOf(v Version) []NodeCount {
	list := []NodeCount{{Node: "", Type: entry, Passed: map[string]int64{}}}
	def, err := graph.Decode(v.Definition)
	if err != nil {
		return list
	}
	order := slices.Sorted(maps.Keys(def.Nodes))
	if g, err := graph.Compile(v.Definition, graph.Flow{FlowID: v.FlowID}, graph.Facts{}); err == nil {
		order = g.Order()
	}
	for _, id := range order {
		list = append(list, NodeCount{Node: id, Type: def.Nodes[id].Type, Passed: map[string]int64{}})
	}
	return list
}

// countEnrollments is one statement. A paused flow's people are due as any
// other's: that nobody moves them is what the flow's status says.
func (f *Flows) countEnrollments(ctx context.Context, ws, flow uuid.UUID, c *Counts, nodes map[string]*NodeCount) error {
	rows, err := f.pool.Query(ctx, `
		select status, coalesce(exit_reason, ''), case when status = 'active' then node else '' end, count(*),
			count(*) filter (where status = 'active' and resume_at <= now())
		from enrollments where workspace_id = $1 and flow_id = $2 and version = $3
		group by 1, 2, 3`, ws, flow, int32Of(c.Version))
	if err != nil {
		return err
	}
	var status, reason, node string
	var n, due int64
	_, err = pgx.ForEachRow(rows, []any{&status, &reason, &node, &n, &due}, func() error {
		c.add(status, reason, n)
		if at := nodes[node]; status == Active && at != nil {
			at.Standing, at.Due = at.Standing+n, at.Due+due
		}
		return nil
	})
	return err
}

func (c *Counts) add(status, reason string, n int64) {
	switch status {
	case Active:
		c.Active += n
	case Completed:
		c.Completed += n
	case Exited:
		c.Exited += n
	case RefusedAt:
		c.Refused += n
		return // why is among the refusals
	default:
		c.Failed += n
	}
	c.Enrolled += n
	if reason != "" {
		c.ExitReasons[reason] += n
	}
	if reason == ExitGoal {
		c.Goals += n
	}
}

// countPassed adds up the turns.
func (f *Flows) countPassed(ctx context.Context, ws, flow uuid.UUID, version int, nodes map[string]*NodeCount) error {
	rows, err := f.pool.Query(ctx, `
		select node, event, sum(passed)::bigint from flow_node_counts
		where workspace_id = $1 and flow_id = $2 and version = $3 group by node, event`, ws, flow, int32Of(version))
	if err != nil {
		return err
	}
	var node, event string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&node, &event, &n}, func() error {
		if at := nodes[node]; at != nil {
			at.Passed[event] = n
		}
		return nil
	})
	return err
}
