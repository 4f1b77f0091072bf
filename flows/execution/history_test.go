package execution_test

import (
	"strings"
	"testing"

	"lemma/cache"
	"lemma/flows/flowstest"
)

// A version that another server had under the same number is read and compiled again, also if
// it was being compiled when the other one answered.
func TestVersionsKeepToAHistory(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.Minimal)
	n := b.Another()
	var h cache.History
	n.Follow(&h)
	h.Continue("a")
	nodes := func() string {
		t.Helper()
		g, err := n.Execution.Versions.Get(t.Context(), b.Pool, b.Workspace, flow, 1)
		b.Must(err)
		r, err := n.Execution.Route(t.Context(), b.Workspace, flow, 1)
		b.Must(err)
		if r.Graph != g {
			t.Error("the route has another graph")
		}
		var names []string
		for name := range g.Definition().Nodes {
			names = append(names, name)
		}
		return strings.Join(names, " ")
	}
	first := nodes()
	rename := func(to string) {
		b.Exec(`update flow_versions set definition = replace(definition::text, $1, $2)::json where flow_id = $3`,
			`"`+first+`"`, `"`+to+`"`, flow)
	}
	rename("second")
	if got := nodes(); got != first {
		t.Errorf("the version is not in memory, which the test needs: %s", got)
	}
	n.Hook.Do = func(stage string) {
		if stage == "compile" { // the text of b was read
			n.Hook.Do = nil
			b.Exec(`update flow_versions set definition = replace(definition::text, '"second"', '"third"')::json where flow_id = $1`, flow)
			h.Continue("c")
		}
	}
	h.Continue("b")
	_, err := n.Execution.Versions.Get(t.Context(), b.Pool, b.Workspace, flow, 1)
	b.Must(err)
	if got := nodes(); got != "third" {
		t.Errorf("the version of another server is executed: %s", got)
	}
}
