package flows_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/flows"
	"lemma/flows/flowstest"
	"lemma/flows/graph"
)

// inPlace moves each enrollment to the node that it is on.
var inPlace = flows.InFlight{Mode: "move"}

func sleeping(d string) string { return strings.ReplaceAll(flowstest.Napping, "P3D", d) }

// A wait that ended in a pause is changed by a publish in the pause like any other, and
// the plan shows it.
func TestAPlanCountsDueWaits(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(flowstest.Napping)
	b.RecordEvent("c1", "go")
	b.Settle()
	b.Must(flowstest.Second(b.Pause(bg, b.Workspace, flow, nil)))
	b.Pass(4 * 24 * time.Hour)
	v, err := b.CreateVersion(bg, b.Workspace, flow, b.Definition(sleeping("P9D")))
	b.Must(err)
	plan, err := b.Plan(bg, b.Workspace, flow, v.Version, inPlace)
	b.Must(err)
	want := []flows.TimerChange{{Version: 1, Node: "nap", To: "nap", Waiting: 1, Change: graph.TimerShifted,
		Seconds: (6 * 24 * time.Hour).Seconds()}}
	if diff := cmp.Diff(want, plan.Timers); diff != "" || plan.Nodes[0].Due != 1 {
		t.Errorf("%+v: %s", plan.Nodes, diff)
	}
	was := b.Enrollment(flow, "c1").ResumeAt
	b.Must(flowstest.Second(b.Publish(bg, b.Workspace, flow, v.Version, nil, inPlace, nil)))
	b.Must(b.MoveAround(bg))
	if by := b.Enrollment(flow, "c1").ResumeAt.Sub(*was); by.Seconds() != want[0].Seconds {
		t.Errorf("the wait is shifted by %s", by)
	}
}

// Two versions have a node of one name, and enrollments on it in both.
func TestAPlanNamesTheVersionOfAWait(t *testing.T) {
	b := setup(t, 2)
	flow := b.Live(flowstest.Napping)
	b.RecordEvent("c1", "go")
	b.PublishNext(flow, sleeping("P5D"), flows.InFlight{})
	b.RecordEvent("c2", "go")
	b.Settle()
	v, err := b.CreateVersion(bg, b.Workspace, flow, b.Definition(sleeping("P5D")))
	b.Must(err)
	plan, err := b.Plan(bg, b.Workspace, flow, v.Version, inPlace)
	b.Must(err)
	want := []flows.TimerChange{
		{Version: 1, Node: "nap", To: "nap", Waiting: 1, Change: graph.TimerShifted, Seconds: (2 * 24 * time.Hour).Seconds()},
		{Version: 2, Node: "nap", To: "nap", Waiting: 1, Change: graph.TimerKept},
	}
	if diff := cmp.Diff(want, plan.Timers); diff != "" {
		t.Error(diff)
	}
}

// A map may name the nodes of every published version. Their definitions are not read: there
// may be many, and large ones.
func TestAMapNamesNodesOfOldVersions(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.Napping)
	b.PublishNext(flow, flowstest.Minimal, flows.InFlight{})
	v, err := b.CreateVersion(bg, b.Workspace, flow, b.Definition(strings.ReplaceAll(flowstest.Minimal, "end", "draft")))
	b.Must(err)
	b.Exec(`update flow_versions set definition = '{' where flow_id = $1 and version = 1`, flow)
	b.Must(flowstest.Second(b.Plan(bg, b.Workspace, flow, 2, flows.InFlight{Mode: "move", Map: map[string]*string{"nap": new("end")}})))
	for node, target := range map[string]string{"lost": "draft", "draft": "draft", "nap": "lost"} {
		in := flows.InFlight{Mode: "move", Map: map[string]*string{node: &target}}
		_, err := b.Plan(bg, b.Workspace, flow, v.Version, in)
		if fault := b.Wants(lemma.Invalid, err); len(fault.Fields) != 1 || fault.Fields[0].Pointer != "/in_flight/map/"+node {
			t.Errorf("%s to %s: %+v", node, target, fault.Fields)
		}
	}
	in := flows.InFlight{Mode: "move", Map: map[string]*string{"nap": new("draft"), "end": nil}}
	b.Must(flowstest.Second(b.Publish(bg, b.Workspace, flow, v.Version, nil, in, nil)))
}

// A matched wait keeps its time unless it is replaced: the plan shows both as the move
// does them.
func TestAPlanAndAMoveOfMatchedWaits(t *testing.T) {
	listening := `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"w",
		"nodes":{"w":{"type":"wait_for_event","event":"bought","timeout":"P3D","next":"end","on_timeout":"end"},"end":{"type":"exit"}}}`
	for name, c := range map[string]struct {
		next    string
		timers  []flows.TimerChange
		matched int // matched waits after the move
	}{
		"a longer wait": {strings.ReplaceAll(listening, "P3D", "P9D"), []flows.TimerChange{}, 1},
		"another wait": {strings.ReplaceAll(listening, "bought", "paid"),
			[]flows.TimerChange{{Version: 1, Node: "w", To: "w", Waiting: 1, Change: graph.TimerRestarted}}, 0},
		"the same again": {listening, []flows.TimerChange{}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 1)
			flow := b.Live(listening)
			b.RecordEvent("c1", "go")
			b.Settle()
			b.Must(flowstest.Second(b.Pause(bg, b.Workspace, flow, nil)))
			b.RecordEvent("c1", "bought")
			v, err := b.CreateVersion(bg, b.Workspace, flow, b.Definition(c.next))
			b.Must(err)
			plan, err := b.Plan(bg, b.Workspace, flow, v.Version, inPlace)
			b.Must(err)
			if diff := cmp.Diff(c.timers, plan.Timers); diff != "" {
				t.Error(diff)
			}
			b.Must(flowstest.Second(b.Publish(bg, b.Workspace, flow, v.Version, nil, inPlace, nil)))
			b.Must(b.MoveAround(bg))
			b.WantCount(c.matched, `select count(*) from enrollments where workspace_id = $1 and matched_event is not null`, b.Workspace)
		})
	}
}

// A dry run is refused like publishing, before anything is counted.
func TestAPreviewIsRefusedLikePublishing(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.Napping)
	v, err := b.CreateVersion(bg, b.Workspace, flow, b.Definition(sleeping("P9D")))
	b.Must(err)
	now := b.Flow(flow)
	plan, err := b.Preview(bg, b.Workspace, flow, v.Version, &flows.Tag{Version: now.Version}, flows.InFlight{})
	b.Must(err)
	if plan.ETag.Version != now.Version || len(plan.Changes) == 0 {
		t.Errorf("%+v", plan)
	}
	refused := func(kind lemma.Kind, n int, ifMatch *flows.Tag, in flows.InFlight) {
		t.Helper()
		_, tried := b.Preview(bg, b.Workspace, flow, n, ifMatch, in)
		_, done := b.Publish(bg, b.Workspace, flow, n, ifMatch, in, nil)
		if detail, meant := b.Wants(kind, tried), b.Wants(kind, done); detail.Message != meant.Message {
			t.Errorf("%s instead of %s", detail.Message, meant.Message)
		}
	}
	refused(lemma.Stale, 2, &flows.Tag{}, flows.InFlight{})
	refused(lemma.Stale, 2, &flows.Tag{Version: now.Version, Planned: "other"}, flows.InFlight{})
	refused(lemma.Invalid, 2, nil, flows.InFlight{Mode: "fly"})
	refused(lemma.NotFound, 7, nil, flows.InFlight{})
	b.Must(flowstest.Second(b.Publish(bg, b.Workspace, flow, 2, nil, flows.InFlight{}, nil)))
	refused(lemma.WrongStatus, 1, nil, flows.InFlight{}) // it was published before
	b.Must(flowstest.Second(b.Plan(bg, b.Workspace, flow, 1, flows.InFlight{})))
	b.Must(flowstest.Second(b.CreateVersion(bg, b.Workspace, flow, b.Definition(flowstest.Napping))))
	b.Must(flowstest.Second(b.Archive(bg, b.Workspace, flow, nil)))
	refused(lemma.WrongStatus, 3, nil, flows.InFlight{})
	for _, n := range []int{1, 2, 3} {
		_, err := b.Plan(bg, b.Workspace, flow, n, flows.InFlight{})
		b.Wants(lemma.WrongStatus, err)
	}
}

// After a plan another admin changes the draft: publishing with the plan's ETag publishes
// the planned version, or fails.
func TestWhatWasPlannedIsPublished(t *testing.T) {
	b := setup(t, 0)
	flow := b.NewDraft(flowstest.Napping).ID
	seen := b.Flow(flow)
	found, err := b.Validate(bg, b.Workspace, flow, 1)
	b.Must(err)
	plan, err := b.Plan(bg, b.Workspace, flow, 1, flows.InFlight{})
	b.Must(err)
	if found.ETag.Version != seen.Version || plan.ETag != found.ETag {
		t.Errorf("ETag %d of the flow, %v of the validation, %v of the plan", seen.Version, found.ETag, plan.ETag)
	}
	b.Must(flowstest.Second(b.UpdateVersion(bg, b.Workspace, flow, 1, new(1), b.Definition(sleeping("PT1S")))))
	_, err = b.Publish(bg, b.Workspace, flow, 1, &plan.ETag, flows.InFlight{}, nil)
	b.Wants(lemma.Stale, err)
	if f := b.Flow(flow); f.LiveVersion != nil {
		t.Errorf("%+v", f)
	}
	again, err := b.Plan(bg, b.Workspace, flow, 1, flows.InFlight{})
	b.Must(err)
	b.Must(flowstest.Second(b.Publish(bg, b.Workspace, flow, 1, &again.ETag, flows.InFlight{}, nil)))

	// Refused changes leave the tag: of a stale draft, and of a published version.
	_, err = b.CreateVersion(bg, b.Workspace, flow, b.Definition(flowstest.Napping))
	b.Must(err)
	was := b.Flow(flow)
	for n, kind := range map[int]lemma.Kind{1: lemma.WrongStatus, 2: lemma.Stale, 3: lemma.NotFound} {
		_, err := b.UpdateVersion(bg, b.Workspace, flow, n, new(7), b.Definition(flowstest.Minimal))
		b.Wants(kind, err)
	}
	if diff := cmp.Diff(was, b.Flow(flow)); diff != "" {
		t.Error(diff)
	}
}

// Internal errors name the operation.
func TestErrorsNameTheOperation(t *testing.T) {
	b := setup(t, 0)
	flow := b.NewDraft(flowstest.Napping).ID
	over, cancel := context.WithCancel(bg)
	cancel()
	for want, err := range map[string]error{
		"delete flow " + flow.String(): b.Delete(over, b.Workspace, flow),
		"create version of flow " + flow.String(): flowstest.Second(b.CreateVersion(over, b.Workspace, flow,
			b.Definition(flowstest.Napping))),
		"update version 1 of flow " + flow.String(): flowstest.Second(b.UpdateVersion(over, b.Workspace, flow, 1, nil,
			b.Definition(flowstest.Napping))),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), want+": ") {
			t.Errorf("%v does not begin with %q", err, want)
		}
	}
}
