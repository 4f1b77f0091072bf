package flows_test

import (
	"testing"
	"time"

	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/pgtest"
)

// A delay that a move shortens to less than has passed ends at the move, so that the wait
// behind it has its whole time. One that was over before keeps its time.
func TestADelayThatBecomesTooShortEndsNow(t *testing.T) {
	b := setup(t, 2)
	version := func(delay string) string {
		return `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"d","nodes":{
			"d":{"type":"delay","for":"` + delay + `","next":"w"},
			"w":{"type":"wait_for_event","event":"bought","timeout":"PT1H","next":"bought","on_timeout":"late"},
			"bought":{"type":"exit","goal":true},"late":{"type":"exit"}}}`
	}
	flow := b.Live(version("P3D"))
	b.RecordOfAll(2, "go")
	b.Settle()
	b.Pass(3 * time.Hour)
	over := pgtest.One[time.Time](t, b.Pool, `
		update enrollments set resume_at = now() - interval '10 minutes', first_due_at = now() - interval '10 minutes'
		where workspace_id = $1 and profile_key = 'c2' returning resume_at`, b.Workspace)
	_, err := b.CreateVersion(t.Context(), b.Workspace, flow, b.Definition(version("PT1H")))
	b.Must(err)
	_, err = b.Publish(t.Context(), b.Workspace, flow, 2, nil, flows.InFlight{Mode: "move"}, nil)
	b.Must(err)
	b.FinishMoves()
	if b.Count(`select count(*) from enrollments where workspace_id = $1 and profile_key = 'c2' and version = 2
		and resume_at = $2 and first_due_at = $2`, b.Workspace, over) != 1 {
		t.Errorf("a wait that was over at %s has another time: %+v", over, b.Enrollment(flow, "c2"))
	}
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
