package flows_test

import (
	"testing"

	"github.com/google/uuid"

	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
)

// An erasure ends enrollments of two flows. Each flow counts the exit on the node
// where the enrollment was, as it counts a manual exit.
func TestErasedProfilesAreCountedOnTheirNodes(t *testing.T) {
	b := setup(t, 3)
	one, other := b.Live(flowstest.UntilTomorrow("once", "go")), b.Live(flowstest.UntilTomorrow("once", "go"))
	b.RecordOfAll(3, "go")
	b.Settle()
	b.Must(flowstest.Second(b.Exit(bg, b.Workspace, b.Enrollment(one, "c2").ID, "")))
	before := flowstest.Counted(b.Metrics.Steps.WithLabelValues(enrollment.StepExited))
	b.erase("c1")
	b.erase("c1") // again: nothing is left to count
	for flow, exited := range map[uuid.UUID]int64{one: 2, other: 1} {
		c, err := b.Counts(bg, b.Workspace, flow, 0)
		b.Must(err)
		wait := c.Nodes[1]
		if wait.Node != "wait" || wait.Processed[enrollment.StepExited] != exited || wait.Current != 3-exited || c.Exited != exited {
			t.Errorf("%d of 3 enrollments have exited: %+v", exited, wait)
		}
	}
	if n := flowstest.Counted(b.Metrics.Steps.WithLabelValues(enrollment.StepExited)) - before; n != 2 {
		t.Errorf("an erasure that ended 2 enrollments is counted as %v steps", n)
	}
	b.Invariants()
}
