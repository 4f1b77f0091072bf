package flows_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
)

// heldUp is a flow with 80 enrollments that became due a day ago, in a pause.
func (b *bundle) heldUp(text string) uuid.UUID {
	b.T.Helper()
	flow := b.Live(text)
	var all []intake.Event
	for i := range 80 {
		all = append(all, intake.Event{ProfileKey: fmt.Sprint(i), Name: "go"})
	}
	b.Must(flowstest.Second(b.RecordAll(bg, b.Workspace, all)))
	b.Settle()
	b.Must(flowstest.Second(b.Pause(bg, b.Workspace, flow, nil)))
	b.Exec(`update enrollments set resume_at = now() - interval '1 day' where workspace_id = $1`, b.Workspace)
	return flow
}

func (b *bundle) completed() int {
	return b.Count(`select count(*) from enrollments where workspace_id = $1 and status = 'completed'`, b.Workspace)
}

// A second pause, by mistake or for a failing provider, does not shorten a long release:
// the rest takes as long as was left.
func TestAPauseDoesNotShortenARelease(t *testing.T) {
	b := setup(t, 0)
	flow := b.heldUp(flowstest.HourAfter("go"))
	b.Must(flowstest.Second(b.Resume(bg, b.Workspace, flow, new(24*time.Hour), nil)))
	b.Settle()
	for _, verb := range []string{"resume", "drain"} {
		b.Must(flowstest.Second(b.Pause(bg, b.Workspace, flow, nil)))
		resume := func() (flows.Flow, error) { return b.Resume(bg, b.Workspace, flow, nil, nil) }
		if verb == "drain" {
			resume = func() (flows.Flow, error) { return b.Drain(bg, b.Workspace, flow, nil) }
		}
		f, err := resume()
		b.Must(err)
		if left := f.CatchUpUntil.Sub(*f.ResumedAt); left < 23*time.Hour || left > 24*time.Hour {
			t.Fatalf("after %s the rest is released over %s", verb, left)
		}
		b.Settle()
	}
	if n := b.completed(); n > 3*enrollment.Shards {
		t.Errorf("%d are released at once", n)
	}
	// A given catch-up replaces what was left.
	b.Must(flowstest.Second(b.Pause(bg, b.Workspace, flow, nil)))
	b.Must(flowstest.Second(b.Resume(bg, b.Workspace, flow, new(time.Duration(0)), nil)))
	b.Settle()
	if n := b.completed(); n != 80 {
		t.Errorf("%d have arrived", n)
	}
}

// An enrollment that is moved during a release keeps its order in the release.
func TestAMoveDoesNotShortenARelease(t *testing.T) {
	b := setup(t, 0)
	text := flowstest.HourAfter("go")
	flow := b.heldUp(text)
	b.Must(flowstest.Second(b.Resume(bg, b.Workspace, flow, new(24*time.Hour), nil)))
	b.Settle()
	b.PublishNext(flow, strings.ReplaceAll(text, `"wait"`, `"pause"`),
		flows.InFlight{Mode: "move", Map: map[string]*string{"wait": new("end")}})
	b.Must(b.MoveAround(bg))
	if n := b.Count(`select count(*) from enrollments where workspace_id = $1 and status = 'active' and version = 2`, b.Workspace); n < 70 {
		t.Fatalf("%d were moved", n)
	}
	b.Settle()
	if n := b.completed(); n > 2*enrollment.Shards {
		t.Errorf("%d are released at once", n)
	}
	b.Exec(`update flows set catch_up_until = now() where id = $1`, flow)
	b.Settle()
	if n := b.completed(); n != 80 {
		t.Errorf("%d have arrived", n)
	}
}

// A poll after a pause finds all profiles that joined the audience in the pause; their
// enrollments begin spread over the release.
func TestAPollAfterAPauseCatchesUp(t *testing.T) {
	b := setup(t, 50)
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"audience","every":"PT1M"}],"recurrence":{"policy":"once"},
		"start":"hello","nodes":{"hello":{$send,"next":"end"},"end":{"type":"exit"}}}`)
	b.Must(flowstest.Second(b.Pause(bg, b.Workspace, flow, nil)))
	f, err := b.Resume(bg, b.Workspace, flow, new(24*time.Hour), nil)
	b.Must(err)
	b.PollOne()
	if n := b.Count(`select count(*) from enrollments where workspace_id = $1 and status = 'active' and resume_at between now() and $2`,
		b.Workspace,
		f.CatchUpUntil); n < 48 {
		t.Fatalf("%d are due during the release", n)
	}
	if n := b.Count(`select count(*) from enrollments where workspace_id = $1 and resume_at < now() + interval '12 hours'`,
		b.Workspace); n < 10 || n > 40 {
		t.Errorf("%d of 50 are due in the first half", n)
	}
	b.Settle()
	if n := b.Notifications(); n > 2 {
		t.Errorf("%d messages at once", n)
	}
}
