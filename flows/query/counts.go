package query

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/execution"
	"lemma/flows/graph"
	"lemma/notifications"
)

// Counts are the numbers of one version's enrollments by node and by outcome.
type Counts struct {
	Version      int
	Enrolled     int64 // all enrollments but the refused ones
	Active       int64
	Completed    int64
	Exited       int64
	Refused      int64            // refused at the entry, when the profile was checked
	ExitReasons  map[string]int64 // of those that exited
	Goals        int64            // of those that ended: by the goal
	Nodes        []NodeCount      // in the order of the graph
	Refusals     map[string]int64 // reason -> triggers; of the flow, within their retention
	BlockedBy    map[string]int64 // code -> enrollments of the version that are due and cannot advance
	AudiencePoll *AudiencePoll    // of the flow; nil: it does not poll its audience

	MessagesBlocked *MessagesBlocked // of the version; nil: no message waits for its audience
}

// NodeCount is one node of a version. The one without an id is the entry: enrolled, and
// not yet on the first node.
type NodeCount struct {
	Node      string
	Type      string
	Current   int64            // enrollments on the node now
	Due       int64            // of these: due
	Blocked   int64            // of these: due, and cannot advance
	Processed map[string]int64 // event -> number
	ByPath    map[string]int64 // branch, split and webhook: next node -> number; nil for others
	// Send: its messages by outcome (written, sent, failed, orphaned, skipped, cancelled,
	// pending); nil for others.
	Messages map[string]int64
	// Send: its messages by delivery state, as carriers reported it; nil for others.
	Deliveries map[string]int64
	Engagement notifications.Engagement // send: what recipients did with its messages
}

// Counts counts one version; 0 is the live one. Current enrollments and outcomes are
// counted from the enrollments, and processed ones from the counts by node.
func (r *Reader) Counts(ctx context.Context, ws, flow uuid.UUID, version int) (Counts, error) {
	v, err := r.versionOf(ctx, ws, flow, version)
	if err != nil {
		return Counts{}, err
	}
	c := Counts{Version: v.Version, ExitReasons: map[string]int64{}, BlockedBy: map[string]int64{}, Nodes: nodesOf(ws, v)}
	nodes := map[string]*NodeCount{}
	for i := range c.Nodes {
		nodes[c.Nodes[i].Node] = &c.Nodes[i]
	}
	if err := r.countEnrollments(ctx, ws, flow, &c, nodes); err != nil {
		return Counts{}, fmt.Errorf("count enrollments of flow %s: %w", flow, err)
	}
	if err := r.countMessages(ctx, ws, flow, v.Version, nodes); err != nil {
		return Counts{}, fmt.Errorf("count messages of flow %s: %w", flow, err)
	}
	if err := r.countProcessed(ctx, ws, flow, v.Version, nodes); err != nil {
		return Counts{}, fmt.Errorf("count steps of flow %s: %w", flow, err)
	}
	if c.Refusals, err = r.countRefusals(ctx, ws, flow); err != nil {
		return Counts{}, err
	}
	if c.MessagesBlocked, err = r.messagesBlocked(ctx, ws, flow, v.Version, c.Nodes); err != nil {
		return Counts{}, err
	}
	c.AudiencePoll, err = r.readPoll(ctx, ws, flow)
	return c, err
}

// versionOf reads a version; 0 is the live one.
func (r *Reader) versionOf(ctx context.Context, ws, flow uuid.UUID, version int) (flows.Version, error) {
	if version == 0 {
		now, err := r.flows.Get(ctx, ws, flow)
		switch {
		case err != nil:
			return flows.Version{}, err
		case now.LiveVersion == nil:
			return flows.Version{}, &lemma.Error{Kind: lemma.WrongStatus, Message: "no version of the flow was published yet: name one",
				Status: string(now.Status), Allowed: now.Allowed}
		}
		version = *now.LiveVersion
	}
	return r.flows.GetVersion(ctx, ws, flow, version)
}

// nodesOf lists the nodes of a version in topological order; those of a draft that is no
// graph yet by id.
func nodesOf(ws uuid.UUID, v flows.Version) []NodeCount {
	list := []NodeCount{{Node: "", Type: execution.Entry, Processed: map[string]int64{}}}
	def, err := graph.Decode(ws, v.Definition)
	if err != nil {
		return list
	}
	order := slices.Sorted(maps.Keys(def.Nodes))
	if g, err := graph.Compile(v.Definition, graph.Flow{WorkspaceID: ws, FlowID: v.FlowID}, graph.Facts{Published: true}); err == nil {
		order = g.Order()
	}
	for _, id := range order {
		n := NodeCount{Node: id, Type: def.Nodes[id].Type, Processed: map[string]int64{}}
		switch n.Type {
		case graph.Branch, graph.Split, graph.Webhook:
			n.ByPath = map[string]int64{}
		case graph.Send:
			n.Messages, n.Deliveries = map[string]int64{}, map[string]int64{}
			for _, what := range becomes {
				n.Messages[what] = 0
			}
		}
		list = append(list, n)
	}
	return list
}

// becomes are the outcomes by which messages are counted. Skipped ones are also counted as
// written, whether they were skipped before or after.
var becomes = []string{"written", "sent", "failed", "orphaned", "skipped", "cancelled", "pending", "processing"}

// countEnrollments is one statement. It counts the active enrollments, and adds up the counts of those
// that ended: these are many more. Enrollments of a paused flow are due like any others: the flow's
// status shows that they do not advance.
func (r *Reader) countEnrollments(ctx context.Context, ws, flow uuid.UUID, c *Counts, nodes map[string]*NodeCount) error {
	rows, _ := r.pool.Query(ctx, `
		select 'active', '', node, coalesce(blocked_reason, ''), count(*), count(*) filter (where resume_at <= now())
		from enrollments
		where workspace_id = $1 and `+enrollment.AnyShard+` and flow_id = $2 and resume_at is not null and version = $3
		group by node, blocked_reason
		union all
		select event, next, '', '', sum(processed)::bigint, 0 from flow_node_counts
		where workspace_id = $1 and flow_id = $2 and version = $3 and event in ('completed', 'exited', 'refused')
		group by event, next`, ws, flow, enrollment.VersionNumber(c.Version))
	var status, reason, node, blocked string
	var n, due int64
	_, err := pgx.ForEachRow(rows, []any{&status, &reason, &node, &blocked, &n, &due}, func() error {
		c.add(status, reason, n)
		if status == enrollment.Active && blocked != "" {
			c.BlockedBy[blocked] += n
			if at := nodes[node]; at != nil {
				at.Blocked += n
			}
		}
		if at := nodes[node]; status == enrollment.Active && at != nil {
			at.Current, at.Due = at.Current+n, at.Due+due
		}
		return nil
	})
	return err
}

func (c *Counts) add(status, reason string, n int64) {
	switch status {
	case enrollment.Active:
		c.Active += n
	case enrollment.Completed:
		c.Completed += n
	case enrollment.Exited:
		c.Exited += n
	case enrollment.Refused:
		c.Refused += n
		return // the refusals have the reasons
	}
	c.Enrolled += n
	if reason != "" {
		c.ExitReasons[reason] += n
	}
	if reason == enrollment.ExitGoal {
		c.Goals += n
	}
}

// countProcessed adds up the shards.
func (r *Reader) countProcessed(ctx context.Context, ws, flow uuid.UUID, version int, nodes map[string]*NodeCount) error {
	rows, _ := r.pool.Query(ctx, `
		select node, event, next, sum(processed)::bigint from flow_node_counts
		where workspace_id = $1 and flow_id = $2 and version = $3 group by node, event, next`, ws, flow, enrollment.VersionNumber(version))
	var node, event, next string
	var n int64
	_, err := pgx.ForEachRow(rows, []any{&node, &event, &next, &n}, func() error {
		at := nodes[node]
		switch {
		case at == nil:
		case event == enrollment.CountSkipped:
			if at.Messages != nil {
				at.Messages["written"], at.Messages["skipped"] = at.Messages["written"]+n, at.Messages["skipped"]+n
			}
		default:
			at.Processed[event] += n
			if next != "" && at.ByPath != nil && !enrollment.Ends(event) {
				at.ByPath[next] += n
			}
		}
		return nil
	})
	return err
}

// countMessages adds up the outcomes of the notifications of send nodes, from the counters
// of their batches. Notifications that were written as skipped are in no batch:
// countProcessed adds them.
func (r *Reader) countMessages(ctx context.Context, ws, flow uuid.UUID, version int, nodes map[string]*NodeCount) error {
	contents := map[uuid.UUID]*NodeCount{}
	for node, at := range nodes {
		if at.Messages != nil {
			contents[enrollment.ContentID(flow, version, node)] = at
		}
	}
	if len(contents) == 0 {
		return nil
	}
	rows, _ := r.pool.Query(ctx, `
		select b.content_id, sum(b.size) filter (where b.attempt = 1), sum(b.sent), sum(b.failed), sum(b.orphaned), sum(b.skipped),
			sum(b.cancelled), sum(b.calling)
		from flow_origins o cross join lateral ( -- by the key of each origin, not from the batches of the workspace
			select b.content_id, b.attempt, b.size, b.sent, b.failed, b.orphaned, b.skipped, b.cancelled, b.calling from batches b
			where b.workspace_id = o.workspace_id and b.origin_id = o.origin_id and b.content_id = any($3) offset 0
		) b
		where o.workspace_id = $1 and o.flow_id = $2
		group by b.content_id`, ws, flow, slices.Collect(maps.Keys(contents)))
	var content uuid.UUID
	var written, sent, failed, orphaned, skipped, cancelled, processing int64
	_, err := pgx.ForEachRow(rows, []any{&content, &written, &sent, &failed, &orphaned, &skipped, &cancelled, &processing}, func() error {
		m := contents[content].Messages
		m["written"], m["sent"], m["failed"], m["orphaned"], m["skipped"], m["cancelled"] = written, sent, failed, orphaned, skipped, cancelled
		m["processing"] = processing
		m["pending"] = written - sent - failed - orphaned - skipped - cancelled - processing
		return nil
	})
	if err != nil {
		return err
	}
	if err := r.countDeliveries(ctx, ws, flow, contents); err != nil {
		return err
	}
	return r.countEngagement(ctx, ws, flow, contents)
}

// countDeliveries adds up the delivery states of the notifications of send nodes.
func (r *Reader) countDeliveries(ctx context.Context, ws, flow uuid.UUID, contents map[uuid.UUID]*NodeCount) error {
	rows, _ := r.pool.Query(ctx, `
		select d.content_id, d.state, sum(d.count)::bigint
		from flow_origins o join delivery_counts d on d.workspace_id = o.workspace_id and d.origin_id = o.origin_id
		where o.workspace_id = $1 and o.flow_id = $2 and d.content_id = any($3)
		group by d.content_id, d.state`, ws, flow, slices.Collect(maps.Keys(contents)))
	var content uuid.UUID
	var state string
	var n int64
	_, err := pgx.ForEachRow(rows, []any{&content, &state, &n}, func() error {
		contents[content].Deliveries[state] = n
		return nil
	})
	return err
}

// countEngagement adds up what recipients did with the notifications of send nodes.
func (r *Reader) countEngagement(ctx context.Context, ws, flow uuid.UUID, contents map[uuid.UUID]*NodeCount) error {
	rows, _ := r.pool.Query(ctx, `
		select e.content_id, `+notifications.EngagementSums+`
		from flow_origins o join engagement_counts e on e.workspace_id = o.workspace_id and e.origin_id = o.origin_id
		where o.workspace_id = $1 and o.flow_id = $2 and e.content_id = any($3)
		group by e.content_id`, ws, flow, slices.Collect(maps.Keys(contents)))
	var content uuid.UUID
	var sum notifications.Engagement
	_, err := pgx.ForEachRow(rows, []any{&content, &sum}, func() error {
		contents[content].Engagement = sum
		return nil
	})
	return err
}
