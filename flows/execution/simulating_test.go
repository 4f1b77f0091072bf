package execution

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/flows/graph"
)

// Conditions of simulations are evaluated on the processors that their workspace leaves to others;
// those of workers have other bounds.
func TestSimulatedConditionsWaitForAProcessor(t *testing.T) {
	t.Parallel()
	workspace := uuid.New()
	g, err := graph.Compile([]byte(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"b",
		"nodes":{"b":{"type":"branch","cases":[{"if":"events.go.last.n == 1.0","next":"end"}],"else":"end"},"end":{"type":"exit"}}}`),
		graph.Flow{WorkspaceID: workspace}, graph.Facts{})
	if err != nil {
		t.Fatal(err)
	}
	node, _ := g.Node("b")
	condition := node.Cases[0].Cond
	varsOf := func(last any) graph.Vars {
		return graph.Vars{Events: map[string]any{"go": map[string]any{"last": last}}, Now: time.Now()}
	}
	read, release := make(chan bool), make(chan bool)
	held := func() map[string]any {
		read <- true
		<-release
		return map[string]any{"n": 1.0}
	}
	var holding sync.WaitGroup
	for range max(1, runtime.GOMAXPROCS(0)-1) {
		holding.Go(func() { _, _ = condition.EvalInTurn(workspace, varsOf(held)) })
		<-read
	}
	evaluate := func(simulated bool) bool {
		t := &Execution{Route: &Route{WorkspaceID: workspace}, simulated: simulated}
		is, err := t.evaluate(condition, varsOf(map[string]any{"n": 1.0}))
		return is && err == nil
	}
	if !evaluate(false) {
		t.Error("a worker's condition is not true")
	}
	done := make(chan bool)
	go func() { done <- evaluate(true) }()
	select {
	case <-done:
		t.Error("it does not wait for a processor")
	case <-time.After(50 * time.Millisecond):
		close(release)
		if !<-done {
			t.Error("the condition is not true")
		}
	}
	holding.Wait()
}
