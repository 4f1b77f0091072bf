package flows

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/notifications"
)

// written are the names of notifications, and the enrollment of each.
type written struct {
	names []notifications.Name
	of    []uuid.UUID
}

func (w *written) add(l lasting, key uuid.UUID) {
	w.names = append(w.names, notifications.Name{OriginID: enrollment.OriginOf(l.flow, l.id), Key: key})
	w.of = append(w.of, l.id)
}

// messages finds the notifications that send nodes wrote for the profile. found are the
// enrollments that the page erases: at least one. The others stay as they are for the next page.
//
// The nodes are in an enrollment's steps, and the names follow from them. Steps may have been
// dropped by their retention: then all nodes that the flow has had are tried. These can be
// 200,000, which takes a second. All versions count, since an enrollment may move to an older one.
func (e *erasure) messages(ctx context.Context, locked []lasting) (found []lasting, w written, err error) {
	sends, err := e.sends(ctx, locked)
	if err != nil {
		return nil, w, err
	}
	// Enrollments with steps take no time. Those without are in order of their flows, so that the
	// nodes of a flow are read once, and are not kept.
	slices.SortStableFunc(locked, func(a, b lasting) int {
		switch {
		case a.steps == b.steps:
			return bytes.Compare(a.flow[:], b.flow[:])
		case a.steps:
			return -1
		default:
			return 1
		}
	})
	var flow uuid.UUID
	var nodes []string
	until := time.Now().Add(e.traceTime)
	for i, l := range locked {
		if i > 0 && (len(w.names) >= eraseMessages || time.Now().After(until)) {
			return locked[:i], w, nil
		}
		if l.steps {
			for _, s := range sends[l.id] {
				for number := range s.messages {
					w.add(l, enrollment.MessageKey(l.id, s.node, number))
				}
			}
			continue
		}
		if flow != l.flow {
			flow = l.flow
			if nodes, err = e.nodes(ctx, flow); err != nil {
				return nil, w, err
			}
		}
		if err := e.tryNodes(ctx, l, nodes, &w); err != nil {
			return nil, w, err
		}
	}
	return locked, w, nil
}

// send is how many notifications a send node wrote for an enrollment.
type send struct {
	node     string
	messages int
}

// sends are the sends in the steps of enrollments, by enrollment.
func (e *erasure) sends(ctx context.Context, of []lasting) (map[uuid.UUID][]send, error) {
	rows, _ := e.tx.Query(ctx, `
		select enrollment_id, node, coalesce(data::json->>$4, '1')::int from enrollment_steps
		where workspace_id = $1 and enrollment_id = any($2) and event = any($3)`, e.ws, pgIDs(of), sendEvents, enrollment.StepMessages)
	found := map[uuid.UUID][]send{}
	var id uuid.UUID
	var s send
	_, err := pgx.ForEachRow(rows, []any{&id, &s.node, &s.messages}, func() error {
		found[id] = append(found[id], s)
		return nil
	})
	return found, lemma.Wrap(err, "read steps")
}

// nodes are the nodes of all versions of a flow.
func (e *erasure) nodes(ctx context.Context, flow uuid.UUID) ([]string, error) {
	rows, _ := e.tx.Query(ctx, `select distinct unnest(nodes) from flow_versions where workspace_id = $1 and flow_id = $2`, e.ws, flow)
	nodes, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return nodes, lemma.Wrap(err, "read the nodes of flow %s", flow)
}

// tryNodes adds the notifications of an enrollment at nodes that exist.
func (e *erasure) tryNodes(ctx context.Context, l lasting, nodes []string, w *written) error {
	for number := 0; len(nodes) > 0; number++ {
		keys := make([]uuid.UUID, len(nodes))
		for i, node := range nodes {
			keys[i] = enrollment.MessageKey(l.id, node, number)
		}
		exist, err := notifications.Existing(ctx, e.tx, e.ws, enrollment.OriginOf(l.flow, l.id), keys)
		if err != nil {
			return err
		}
		left := make([]string, len(exist)) // a node that has no message of this number has none of a higher one
		for to, i := range exist {
			w.add(l, keys[i])
			left[to] = nodes[i]
		}
		nodes = left
	}
	return nil
}
