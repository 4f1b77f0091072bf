package execution

import (
	"runtime"
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
	g, err := graph.Compile([]byte(`{"triggers":[{"type":"event","event":"go","condition":"trigger.name == 'go'"}],
		"recurrence":{"policy":"once"},"start":"end","nodes":{"end":{"type":"exit"}}}`), graph.Flow{WorkspaceID: workspace}, graph.Facts{})
	if err != nil {
		t.Fatal(err)
	}
	condition, vars := g.Triggers()[0].Condition, graph.Vars{Trigger: map[string]any{"name": "go"}, Now: time.Now()}
	var leave []func()
	for range max(1, runtime.GOMAXPROCS(0)-1) {
		leave = append(leave, simulating.Enter(workspace))
	}
	evaluate := func(simulated bool) bool {
		t := &Execution{Route: &Route{WorkspaceID: workspace}, simulated: simulated}
		is, err := t.evaluate(condition, vars)
		return is && err == nil
	}
	if !evaluate(false) {
		t.Error("a worker's condition is not true")
	}
	done := make(chan bool, 1)
	go func() { done <- evaluate(true) }()
	select {
	case <-done:
		t.Fatal("it does not wait")
	case <-time.After(50 * time.Millisecond):
	}
	for _, l := range leave {
		l()
	}
	if !<-done {
		t.Error("the condition is not true")
	}
}
