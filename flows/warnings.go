package flows

import (
	"fmt"
	"regexp"
	"slices"

	"lemma/flows/graph"
)

// What is allowed in a version and seldom meant, beside what validate.go says
// where it looks anyway.

// warnOfArms: by its name alone, nobody can tell which of two arms somebody took.
func (c *checked) warnOfArms(id string, n graph.Node) {
	seen := map[string]int{}
	for _, arm := range n.Arms {
		if seen[arm.Name]++; arm.Name != "" && seen[arm.Name] == 2 {
			c.warnings = append(c.warnings, fmt.Sprintf("node %s has several arms named %q: histories and counts will not tell them apart", id, arm.Name))
		}
	}
}

// warnOfOverlap: once is once, so that nobody is in the flow twice at a time.
func (c *checked) warnOfOverlap() {
	if c.def.Overlap == "allow" && c.def.Recurrence.Policy == graph.Once {
		c.warnings = append(c.warnings, `overlap is "allow" and recurrence "once": a profile enrolls once at all, so nothing overlaps`)
	}
}

var namesPeople = regexp.MustCompile(`(?i)\bpeople\b`)

// warnOfPeople: a query that does not ask who stands at the branch goes through
// all of its tables each time.
func (c *checked) warnOfPeople(id string, n graph.Node) {
	without := func(one graph.Case) bool { return one.SQL != "" && !namesPeople.MatchString(one.SQL) }
	if slices.ContainsFunc(n.Cases, without) {
		c.warnings = append(c.warnings, fmt.Sprintf("node %s has a case in SQL that does not name people, those who stand there: it reads the keys of everybody each time", id))
	}
}
