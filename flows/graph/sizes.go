package graph

import (
	"fmt"

	"lemma"
)

// sizes finds parts that have too many items to be checked one by one.
func sizes(d *Definition) (faults []lemma.Field) {
	atMost := func(pointer string, n, most int, what string) {
		if n > most && len(faults) < maxFaults {
			faults = append(faults, lemma.Field{Pointer: pointer, Code: "too_many", Detail: fmt.Sprintf("at most %d %s", most, what)})
		}
	}
	atMost("/triggers", len(d.Triggers), MaxCases, "triggers")
	atMost("/recurrence/fields", len(d.Recurrence.Fields), maxFields, "names")
	atMost("/exit_on", len(d.ExitOn), MaxCases, "exit conditions")
	if atMost("/nodes", len(d.Nodes), MaxNodes, "nodes"); len(d.Nodes) > MaxNodes {
		return faults
	}
	for _, id := range sorted(d.Nodes) {
		pointer, n := at("/nodes", id), d.Nodes[id]
		atMost(at(pointer, "headers"), len(n.Headers), maxFields, "headers")
		atMost(at(pointer, "columns"), len(n.Columns), maxFields, "names")
		atMost(at(pointer, "cases"), len(n.Cases), MaxCases, "cases")
		atMost(at(pointer, "arms"), len(n.Arms), MaxCases, "arms")
		atMost(at(pointer, "on_status"), len(n.OnStatus), maxFields, "statuses")
	}
	return faults
}
