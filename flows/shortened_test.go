package flows_test

import (
	"testing"
	"time"

	"lemma/flows"
	"lemma/flows/enrollment"
)

// A delay that a move shortens to less than has passed ends at the move, so that the wait
// behind it has its whole time.
func TestADelayThatBecomesTooShortEndsNow(t *testing.T) {
	b := setup(t, 1)
	version := func(delay string) string {
		return `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"d","nodes":{
			"d":{"type":"delay","for":"` + delay + `","next":"w"},
			"w":{"type":"wait_for_event","event":"bought","timeout":"PT1H","next":"bought","on_timeout":"late"},
			"bought":{"type":"exit","goal":true},"late":{"type":"exit"}}}`
	}
	flow := b.Live(version("P3D"))
	b.RecordEvent("c1", "go")
	b.Settle()
	b.Pass(3 * time.Hour)
	_, err := b.CreateVersion(t.Context(), b.Workspace, flow, b.Definition(version("PT1H")))
	b.Must(err)
	_, err = b.Publish(t.Context(), b.Workspace, flow, 2, nil, flows.InFlight{Mode: "move"}, nil)
	b.Must(err)
	b.FinishMoves()
	b.Settle()
	if e := b.Enrollment(flow, "c1"); e.Node != "w" {
		t.Fatalf("its wait is over: %+v", e)
	}
	b.RecordEvent("c1", "bought")
	b.Settle()
	if e := b.Enrollment(flow, "c1"); e.Status != enrollment.Completed || e.ExitReason != enrollment.ExitGoal {
		t.Errorf("%+v", e)
	}
}
