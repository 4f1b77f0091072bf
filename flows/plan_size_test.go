package flows_test

import (
	"errors"
	"slices"
	"testing"

	"lemma"
	"lemma/flows"
	"lemma/flows/flowstest"
)

// A flow has enrollments in very many versions: a plan shows the nodes that strand them and those
// of most enrollments, and counts the others.
func TestAPlanOfManyVersions(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(flowstest.Napping)
	b.RecordEvent("c1", "go")
	b.Settle()
	v, err := b.CreateVersion(bg, b.Workspace, flow, b.Definition(sleeping("P5D")))
	b.Must(err)
	copies := func(from, to, each int) {
		b.Exec(`insert into flow_versions select (jsonb_populate_record(v, jsonb_build_object('version', n, 'request', gen_random_uuid()))).*
			from flow_versions v cross join generate_series($2::int, $3::int) n where v.flow_id = $1 and v.version = 1`, flow, from, to)
		b.Exec(`insert into enrollments select (jsonb_populate_record(e, jsonb_build_object('version', n, 'id', gen_random_uuid(),
				'overlap_key', gen_random_uuid(), 'uniqueness_key', gen_random_uuid()))).*
			from enrollments e cross join generate_series($2::int, $3::int) n cross join generate_series(1, $4::int)
			where e.flow_id = $1 and e.version = 1`, flow, from, to, each)
	}
	copies(3, 3, 3)
	copies(4, 1003, 1)
	copies(2000, 2249, 1) // their node is in no other version
	b.Exec(`update flow_versions set definition = replace(definition, '"nap"', '"doze' || version || '"') where version >= 2000`)
	b.Exec(`update enrollments set node = 'doze' || version where version >= 2000`)
	plan, err := b.Plan(bg, b.Workspace, flow, v.Version, inPlace)
	b.Must(err)
	if len(plan.Nodes) != 1000 || plan.NodesLeftOut != 252 || len(plan.Timers) != 1000 || plan.TimersLeftOut != 2 || plan.Stranded != 250 {
		t.Errorf("%d nodes and %d, %d timers and %d, %d stranded", len(plan.Nodes), plan.NodesLeftOut, len(plan.Timers), plan.TimersLeftOut,
			plan.Stranded)
	}
	stranded := 0
	for _, n := range plan.Nodes {
		if n.Version >= 2000 {
			stranded++
		}
	}
	isSorted := slices.IsSortedFunc(plan.Nodes, func(a, b flows.PlannedNode) int { return a.Version - b.Version })
	if stranded != 250 || plan.Nodes[1].Waiting != 3 || plan.Timers[1].Waiting != 3 || !isSorted {
		t.Errorf("%d stranded; %v and %v are second; sorted: %t", stranded, plan.Nodes[1], plan.Timers[1], isSorted)
	}
	_, err = b.Publish(bg, b.Workspace, flow, v.Version, nil, inPlace, nil)
	var e *lemma.Error
	if !errors.As(err, &e) || e.Code != "would_strand" || len(e.Fields) != 200 {
		t.Errorf("publishing: %v", err)
	}
}
