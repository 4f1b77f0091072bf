package execution

import (
	"errors"

	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/flows/graph"
	"lemma/processors/processorstest"
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
	evaluate := func(simulated bool) bool {
		t := &Execution{Route: &Route{WorkspaceID: workspace}, simulated: simulated}
		is, err := t.evaluate(condition, vars)
		return is && err == nil
	}
	leave := processorstest.Take(simulating, workspace)
	if !evaluate(false) {
		t.Error("a worker's condition is not true")
	}
	leave()
	err = processorstest.Waits(t, simulating, workspace, func() error {
		if !evaluate(true) {
			return errors.New("the condition is not true")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
