package flows

import (
	"fmt"
	"regexp"
	"slices"

	"lemma/flows/graph"
)

// Further warnings: see checked.warn.

// warnOfArms warns of arms with the same name: histories cannot distinguish them.
func (c *checked) warnOfArms(id string, n graph.Node) {
	seen := map[string]int{}
	for _, arm := range n.Arms {
		if seen[arm.Name]++; arm.Name != "" && seen[arm.Name] == 2 {
			c.warnings = append(c.warnings,
				fmt.Sprintf("node %s has several arms named %q: histories and counts cannot distinguish them", id, arm.Name))
		}
	}
}

// warnOfOverlap warns of overlap that the recurrence "once" makes impossible.
func (c *checked) warnOfOverlap() {
	if c.def.Overlap == "allow" && c.def.Recurrence.Policy == graph.Once {
		c.warnings = append(c.warnings, `overlap is "allow" and recurrence "once": a profile enrolls only once, so nothing overlaps`)
	}
}

var namesPeople = regexp.MustCompile(`(?i)\bpeople\b`)

// warnOfPeople warns of a query that does not restrict itself to the profiles at the
// branch: it reads whole tables each time.
func (c *checked) warnOfPeople(id string, n graph.Node) {
	without := func(one graph.Case) bool { return one.SQL != "" && !namesPeople.MatchString(one.SQL) }
	if slices.ContainsFunc(n.Cases, without) {
		c.warnings = append(c.warnings, fmt.Sprintf("node %s has a case in SQL that does not use people, the profiles at the node: it reads "+
			"all "+
			"keys each time", id))
	}
}
