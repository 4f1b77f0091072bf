package flows

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma"
)

// napping is a flow of one wait.
const napping = `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"nap",
	"nodes":{"nap":{"type":"delay","for":"P3D","next":"end"},"end":{"type":"exit"}}}`

// inPlace moves everybody to the node where they stand.
var inPlace = InFlight{Mode: "move"}

func sleeping(d string) string { return strings.ReplaceAll(napping, "P3D", d) }

// Whoever fell due in a pause is due still when the pause is mended: her wait
// changes like any other, and the plan tells it.
func TestAPlanTellsWaitsThatAreDue(t *testing.T) {
	b := setup(t, 1)
	flow := b.live(napping)
	b.tell("c1", "go")
	b.settleDown()
	b.must(second(b.Pause(bg, b.ws, flow, nil)))
	b.pass(4 * 24 * time.Hour)
	v, err := b.CreateVersion(bg, b.ws, flow, b.definition(sleeping("P9D")))
	b.must(err)
	plan, err := b.Plan(bg, b.ws, flow, v.Version, inPlace)
	b.must(err)
	want := []TimerChange{{Version: 1, Node: "nap", To: "nap", Waiting: 1, Change: timerShifted, Seconds: (6 * 24 * time.Hour).Seconds()}}
	if diff := cmp.Diff(want, plan.Timers); diff != "" || plan.Nodes[0].Due != 1 {
		t.Errorf("%+v: %s", plan.Nodes, diff)
	}
	was := b.enrollment(flow, "c1").ResumeAt
	b.must(second(b.Publish(bg, b.ws, flow, v.Version, nil, inPlace, nil)))
	b.must(b.moveAround(bg))
	if by := b.enrollment(flow, "c1").ResumeAt.Sub(*was); by.Seconds() != want[0].Seconds {
		t.Errorf("the wait is shifted by %s", by)
	}
}

// Two versions have a node of one name, and people on it in both.
func TestAPlanTellsInWhichVersionAWaitIs(t *testing.T) {
	b := setup(t, 2)
	flow := b.live(napping)
	b.tell("c1", "go")
	b.publish(flow, sleeping("P5D"), InFlight{})
	b.tell("c2", "go")
	b.settleDown()
	v, err := b.CreateVersion(bg, b.ws, flow, b.definition(sleeping("P5D")))
	b.must(err)
	plan, err := b.Plan(bg, b.ws, flow, v.Version, inPlace)
	b.must(err)
	want := []TimerChange{
		{Version: 1, Node: "nap", To: "nap", Waiting: 1, Change: timerShifted, Seconds: (2 * 24 * time.Hour).Seconds()},
		{Version: 2, Node: "nap", To: "nap", Waiting: 1, Change: timerKept},
	}
	if diff := cmp.Diff(want, plan.Timers); diff != "" {
		t.Error(diff)
	}
}

// Who has heard what she waited for keeps her time, and loses it only with the
// wait itself: the plan says of both what the move does.
func TestAPlanAndAMoveOfWhoHasHeard(t *testing.T) {
	listening := `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"w",
		"nodes":{"w":{"type":"wait_for_event","event":"bought","timeout":"P3D","next":"end","on_timeout":"end"},"end":{"type":"exit"}}}`
	for name, c := range map[string]struct {
		next   string
		timers []TimerChange
		heard  int // who still has heard after the move
	}{
		"a longer wait":  {strings.ReplaceAll(listening, "P3D", "P9D"), []TimerChange{}, 1},
		"another wait":   {strings.ReplaceAll(listening, "bought", "paid"), []TimerChange{{Version: 1, Node: "w", To: "w", Waiting: 1, Change: timerRestarted}}, 0},
		"the same again": {listening, []TimerChange{}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 1)
			flow := b.live(listening)
			b.tell("c1", "go")
			b.settleDown()
			b.must(second(b.Pause(bg, b.ws, flow, nil)))
			b.tell("c1", "bought")
			v, err := b.CreateVersion(bg, b.ws, flow, b.definition(c.next))
			b.must(err)
			plan, err := b.Plan(bg, b.ws, flow, v.Version, inPlace)
			b.must(err)
			if diff := cmp.Diff(c.timers, plan.Timers); diff != "" {
				t.Error(diff)
			}
			b.must(second(b.Publish(bg, b.ws, flow, v.Version, nil, inPlace, nil)))
			b.must(b.moveAround(bg))
			if n := b.count(`select count(*) from enrollments where workspace_id = $1 and heard is not null`); n != c.heard {
				t.Errorf("%d have heard", n)
			}
		})
	}
}

// A dry run is refused where publishing would be, before anybody is counted.
func TestARehearsalIsRefusedLikePublishing(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(napping)
	v, err := b.CreateVersion(bg, b.ws, flow, b.definition(sleeping("P9D")))
	b.must(err)
	now := b.flow(flow)
	plan, err := b.Rehearse(bg, b.ws, flow, v.Version, &now.Version, InFlight{})
	b.must(err)
	if plan.ETag != now.Version || len(plan.Changes) == 0 {
		t.Errorf("%+v", plan)
	}
	refused := func(kind lemma.Kind, n int, ifMatch *int, in InFlight) {
		t.Helper()
		_, tried := b.Rehearse(bg, b.ws, flow, n, ifMatch, in)
		_, done := b.Publish(bg, b.ws, flow, n, ifMatch, in, nil)
		if said, meant := b.wants(kind, tried), b.wants(kind, done); said.Message != meant.Message {
			t.Errorf("%s instead of %s", said.Message, meant.Message)
		}
	}
	refused(lemma.Stale, 2, ptr(0), InFlight{})
	refused(lemma.Invalid, 2, nil, InFlight{Mode: "fly"})
	refused(lemma.NotFound, 7, nil, InFlight{})
	b.must(second(b.Publish(bg, b.ws, flow, 2, nil, InFlight{}, nil)))
	refused(lemma.WrongState, 1, nil, InFlight{}) // it was published before
	b.must(second(b.Plan(bg, b.ws, flow, 1, InFlight{})))
	b.must(second(b.CreateVersion(bg, b.ws, flow, b.definition(napping))))
	b.must(second(b.Archive(bg, b.ws, flow, nil)))
	refused(lemma.WrongState, 3, nil, InFlight{})
	for _, n := range []int{1, 2, 3} {
		_, err := b.Plan(bg, b.ws, flow, n, InFlight{})
		b.wants(lemma.WrongState, err)
	}
}

// An admin plans, another changes the draft, and the first publishes what she
// has seen, or nothing.
func TestWhatWasPlannedIsPublished(t *testing.T) {
	b := setup(t, 0)
	flow := b.draft(napping).ID
	seen := b.flow(flow)
	found, err := b.Validate(bg, b.ws, flow, 1)
	b.must(err)
	plan, err := b.Plan(bg, b.ws, flow, 1, InFlight{})
	b.must(err)
	if found.ETag != seen.Version || plan.ETag != seen.Version {
		t.Errorf("ETag %d of the flow, %d of the validation, %d of the plan", seen.Version, found.ETag, plan.ETag)
	}
	b.must(second(b.UpdateVersion(bg, b.ws, flow, 1, ptr(1), b.definition(sleeping("PT1S")))))
	_, err = b.Publish(bg, b.ws, flow, 1, &plan.ETag, InFlight{}, nil)
	b.wants(lemma.Stale, err)
	if f := b.flow(flow); f.LiveVersion != nil {
		t.Errorf("%+v", f)
	}
	again, err := b.Plan(bg, b.ws, flow, 1, InFlight{})
	b.must(err)
	b.must(second(b.Publish(bg, b.ws, flow, 1, &again.ETag, InFlight{}, nil)))

	// What changes nothing leaves the tag: a stale draft, and one that was published.
	_, err = b.CreateVersion(bg, b.ws, flow, b.definition(napping))
	b.must(err)
	was := b.flow(flow)
	for n, kind := range map[int]lemma.Kind{1: lemma.WrongState, 2: lemma.Stale, 3: lemma.NotFound} {
		_, err := b.UpdateVersion(bg, b.ws, flow, n, ptr(7), b.definition(minimal))
		b.wants(kind, err)
	}
	if diff := cmp.Diff(was, b.flow(flow)); diff != "" {
		t.Error(diff)
	}
}

// What breaks off on our side says what was being done.
func TestErrorsSayWhatWasBeingDone(t *testing.T) {
	b := setup(t, 0)
	flow := b.draft(napping).ID
	over, cancel := context.WithCancel(bg)
	cancel()
	for want, err := range map[string]error{
		"delete flow " + flow.String():              b.Delete(over, b.ws, flow),
		"create version of flow " + flow.String():   second(b.CreateVersion(over, b.ws, flow, b.definition(napping))),
		"update version 1 of flow " + flow.String(): second(b.UpdateVersion(over, b.ws, flow, 1, nil, b.definition(napping))),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), want+": ") {
			t.Errorf("%v does not begin with %q", err, want)
		}
	}
}
