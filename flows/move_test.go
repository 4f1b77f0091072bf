package flows_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/query"
)

// crossroads sends each profile to the node that its trigger names; nodes are the rest of
// the version.
func crossroads(nodes map[string]string) string {
	var cases, all []string
	for _, id := range slices.Sorted(maps.Keys(nodes)) {
		cases = append(cases, fmt.Sprintf(`{"if":"trigger.properties.to == '%s'","next":"%s"}`, id, id))
		all = append(all, fmt.Sprintf(`"%s":%s`, id, nodes[id]))
	}
	return `{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"cross","nodes":{
		"cross":{"type":"branch","cases":[` + strings.Join(cases, ",") + `],"else":"end"},"end":{"type":"exit"},` + strings.Join(all, ",") + `}}`
}

// before and after are two versions with an enrollment for every action.
var before = map[string]string{
	"same":     `{"type":"delay","for":"P3D","next":"end"}`,
	"longer":   `{"type":"delay","for":"P3D","next":"end"}`,
	"shorter":  `{"type":"delay","for":"P3D","next":"end"}`,
	"event":    `{"type":"wait_for_event","event":"bought","timeout":"P2D","next":"end","on_timeout":"end"}`,
	"patient":  `{"type":"wait_for_event","event":"bought","timeout":"P2D","next":"end","on_timeout":"end"}`,
	"other":    `{"type":"wait_for_event","event":"bought","timeout":"P2D","next":"end","on_timeout":"end"}`,
	"monday":   `{"type":"wait_until","weekdays":["mon","tue"],"time":"09:00","next":"end"}`,
	"tuesday":  `{"type":"wait_until","weekdays":["mon"],"time":"09:00","next":"end"}`,
	"message":  `{"type":"delay","for":"P3D","next":"end"}`,
	"renamed":  `{"type":"delay","for":"P3D","next":"end"}`,
	"dropped":  `{"type":"delay","for":"P3D","next":"end"}`,
	"answered": `{"type":"webhook","endpoint_id":"$endpoint","on_error":"end","next":"end"}`,
}

var after = map[string]string{
	"same":     before["same"],
	"longer":   `{"type":"delay","for":"P5D","next":"end"}`,
	"shorter":  `{"type":"delay","for":"PT1H","next":"end"}`,
	"event":    `{"type":"wait_for_event","event":"bought","timeout":"P2D","next":"new","on_timeout":"end"}`,
	"patient":  `{"type":"wait_for_event","event":"bought","timeout":"P4D","next":"end","on_timeout":"end"}`,
	"other":    `{"type":"wait_for_event","event":"called","timeout":"P2D","next":"end","on_timeout":"end"}`,
	"monday":   `{"type":"wait_until","weekdays":["tue","mon"],"time":"09:00","next":"end"}`,
	"tuesday":  `{"type":"wait_until","weekdays":["tue"],"time":"09:00","next":"end"}`,
	"message":  `{$send,"next":"end"}`,
	"new":      `{"type":"delay","for":"P3D","next":"end"}`,
	"answered": `{"type":"webhook","endpoint_id":"$endpoint","on_error":"end","data":{"more":1},"next":"end"}`,
}

// outcomes are the expected actions of the map below on the nodes.
var outcomes = map[string]struct {
	outcome, to, timer string
	shift              time.Duration
}{
	"same":     {"move", "same", "kept", 0},
	"longer":   {"move", "longer", "shifted", 48 * time.Hour},
	"shorter":  {"move", "shorter", "shifted", -71 * time.Hour},
	"event":    {"move", "event", "kept", 0},
	"patient":  {"move", "patient", "shifted", 48 * time.Hour},
	"other":    {"move", "other", "restarted", 0},
	"monday":   {"move", "monday", "kept", 0},
	"tuesday":  {"move", "tuesday", "restarted", 0},
	"message":  {"move", "message", "restarted", 0},
	"renamed":  {"move", "new", "restarted", 0},
	"dropped":  {"exit", "", "", 0},
	"answered": {"move", "answered", "kept", 0},
}

var overTo = flows.InFlight{Mode: "move", Map: map[string]*string{"renamed": new("new"), "dropped": nil}}

// atTheCrossroads has one enrollment on each node of before.
func atTheCrossroads(t *testing.T, change ...func(*flows.Config)) (b *bundle, flow uuid.UUID, profiles map[string]string, next string) {
	b = setup(t, len(before)+1, change...)
	endpoint := b.Endpoint()
	with := func(nodes map[string]string) string {
		return strings.ReplaceAll(crossroads(nodes), "$endpoint", endpoint)
	}
	flow, profiles = b.Live(with(before)), map[string]string{}
	for i, node := range slices.Sorted(maps.Keys(before)) {
		profiles[node] = fmt.Sprintf("c%d", i+1)
		b.RecordEvent(profiles[node], "go", flowstest.Properties(`{"to":"`+node+`"}`))
	}
	b.Settle()
	last := fmt.Sprintf("c%d", len(before)+1)
	profiles[""] = last // has not entered
	b.RecordEvent(last, "go", flowstest.Properties(`{"to":"same"}`))
	return b, flow, profiles, with(after)
}

func TestMoveDoesWhatThePlanShows(t *testing.T) {
	b, flow, profiles, next := atTheCrossroads(t, func(c *flows.Config) { c.Chunk = 5 })
	ctx := context.Background()
	was := map[string]query.Enrollment{}
	for node, profile := range profiles {
		was[node] = b.Enrollment(flow, profile)
		if was[node].Node != node {
			t.Fatalf("%s is on %q", profile, was[node].Node)
		}
	}
	_, err := b.CreateVersion(ctx, b.Workspace, flow, b.Definition(next))
	b.Must(err)
	snapshot := b.Snapshot(flow)
	plan, err := b.Plan(ctx, b.Workspace, flow, 2, overTo)
	b.Must(err)
	if b.Snapshot(flow) != snapshot || plan.Stranded != 0 || len(plan.Changes) == 0 || *plan.Live != 1 {
		t.Errorf("%+v", plan)
	}
	reported, timers := map[string]flows.PlannedNode{}, map[string]flows.TimerChange{}
	for _, s := range plan.Nodes {
		reported[s.Node] = s
	}
	for _, c := range plan.Timers {
		timers[c.Node] = c
	}
	now := time.Now()
	_, err = b.Publish(ctx, b.Workspace, flow, 2, nil, overTo, nil)
	b.Must(err)
	b.FinishMoves()

	for node, want := range outcomes {
		if got := reported[node]; got.Action != want.outcome || got.To != want.to || got.Waiting != 1 || got.Due != 0 || got.Version != 1 ||
			got.Type == "" {
			t.Errorf("the plan of %s: %+v", node, got)
		}
		if got := timers[node]; got.Change != want.timer || got.Seconds != want.shift.Seconds() {
			t.Errorf("the plan of the timer of %s: %+v", node, got)
		}
		e, old := b.Enrollment(flow, profiles[node]), was[node]
		if e.Step != old.Step+1 {
			t.Errorf("%s took %d steps", node, e.Step-old.Step)
		}
		if want.outcome == "exit" {
			if e.Status != enrollment.Exited || e.ExitReason != enrollment.ExitReplaced || e.Version != 1 || e.Node != node {
				t.Errorf("%s: %+v", node, e)
			}
			continue
		}
		if e.Version != 2 || e.Node != want.to {
			t.Errorf("%s is at %s of version %d", node, e.Node, e.Version)
		}
		waits := b.Count(`select count(*) from enrollments where workspace_id = $1 and id = $2 and waiting_since is not null`, b.Workspace,
			e.ID) == 1
		switch want.timer {
		case "restarted":
			if e.ResumeAt.Before(now) || e.ResumeAt.After(time.Now()) || waits || e.Awaits != "" {
				t.Errorf("%s does not enter its node again: %+v", node, e)
			}
		default:
			if node != "answered" && !e.ResumeAt.Equal(old.ResumeAt.Add(want.shift)) || !waits || e.Awaits != old.Awaits {
				t.Errorf("%s waits until %s, not %s: %+v", node, e.ResumeAt, old.ResumeAt.Add(want.shift), e)
			}
		}
	}
	// An enrollment that has not entered yet enters the new version.
	if e := b.Enrollment(flow, profiles[""]); e.Version != 2 || e.Node != "" || !e.ResumeAt.Equal(*was[""].ResumeAt) {
		t.Errorf("%+v", e)
	}
	if s := reported[""]; s.Action != "move" || s.Due != 1 {
		t.Errorf("%+v", s)
	}
	if moved, exited := b.Count(`select moved from flow_moves where workspace_id = $1`, b.Workspace),
		b.Count(`select exited from flow_moves where workspace_id = $1`, b.Workspace); moved != len(profiles)-1 || exited != 1 {
		t.Errorf("%d moved and %d exited", moved, exited)
	}
	b.explainsTheMove(flow, profiles["longer"])

	// The enrollments advance: the message is written, the wait begins anew.
	b.Settle()
	if e := b.Enrollment(flow, profiles["message"]); e.Status != enrollment.Completed || b.Notifications() != 1 {
		t.Errorf("%+v, %d notifications", e, b.Notifications())
	}
	if e := b.Enrollment(flow, profiles["renamed"]); e.Status != "waiting" || e.ResumeAt.Before(now.Add(71*time.Hour)) {
		t.Errorf("%+v", e)
	}
	b.Pass(2 * time.Hour)
	b.Settle()
	if e := b.Enrollment(flow, profiles["shorter"]); e.Status != enrollment.Completed {
		t.Errorf("a wait that got shorter ends earlier: %+v", e)
	}
}

// explainsTheMove checks the history of an enrollment that was moved.
func (b *bundle) explainsTheMove(flow uuid.UUID, profile string) {
	b.T.Helper()
	_, steps, _, err := b.Steps(context.Background(), b.Workspace, b.Enrollment(flow, profile).ID, -1)
	b.Must(err)
	last := steps[len(steps)-1]
	want := map[string]any{"from_version": json.Number("1"), "from_node": "longer", "by": "publish", "timer": "shifted",
		"shifted_seconds": json.Number("172800")}
	if d := cmp.Diff(want, last.Data); d != "" || last.Event != "moved" || last.Version != 2 || last.Node != "longer" {
		b.T.Errorf("%+v %s", last, d)
	}
}

func TestAnAnswerIsUsedAfterAMove(t *testing.T) {
	b, flow, profiles, next := atTheCrossroads(t)
	b.PublishNext(flow, next, overTo)
	b.FinishMoves()
	id := b.Enrollment(flow, profiles["answered"]).ID
	b.Exec(`update outbox set status = 'delivered', status_code = 200, attempts = 1, finished_at = now() where id = $1`,
		enrollment.NodeKey(id, "answered"))
	b.Settle()
	if e := b.Enrollment(flow,
		profiles["answered"]); e.Status != enrollment.Completed || b.Count(`select count(*) from outbox where workspace_id = $1`,
		b.Workspace) != 1 {
		t.Errorf("%+v: %s", e, b.Trace(id))
	}
}

func TestNoEnrollmentIsStranded(t *testing.T) {
	b := setup(t, 3)
	ctx := context.Background()
	flow := b.Live(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"a","nodes":{
		"a":{"type":"delay","for":"P1D","next":"b"},"b":{"type":"delay","for":"P1D","next":"c.d"},
			"c.d":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`)
	short := `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"a",
		"nodes":{"a":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`
	b.RecordEvent("c1", "go")
	b.Settle()
	b.Pass(25 * time.Hour)
	b.Settle() // on b
	b.RecordEvent("c2", "go")
	b.Settle() // on a, which leads to b
	_, err := b.CreateVersion(ctx, b.Workspace, flow, b.Definition(short))
	b.Must(err)

	for name, c := range map[string]struct {
		nodes    map[string]*string
		stranded int64
		faults   string
	}{
		"no map":                      {nil, 2, "/in_flight/map/b would_strand, /in_flight/map/c.d would_strand"},
		"no enrollment is there yet":  {map[string]*string{"b": new("a")}, 2, "/in_flight/map/c.d would_strand"},
		"all that are gone, one exit": {map[string]*string{"b": new("a"), "c.d": nil}, 0, ""},
	} {
		in := flows.InFlight{Mode: "move", Map: c.nodes}
		p, err := b.Plan(ctx, b.Workspace, flow, 2, in)
		b.Must(err)
		if p.Stranded != c.stranded {
			t.Errorf("%s: %d stranded: %+v", name, p.Stranded, p.Nodes)
		}
		if c.faults == "" {
			continue
		}
		_, err = b.Publish(ctx, b.Workspace, flow, 2, nil, in, nil)
		if e := b.Wants(lemma.Conflict, err); e.Code != "would_strand" || flowstest.Pointers(e) != c.faults {
			t.Errorf("%s: %s", name, flowstest.Pointers(e))
		}
	}
	if f := b.Flow(flow); *f.LiveVersion != 1 {
		t.Error("a refused publish did something")
	}
	for name, c := range map[string]struct {
		in     flows.InFlight
		faults string
	}{
		"from nowhere":    {flows.InFlight{Mode: "move", Map: map[string]*string{"x": nil}}, "/in_flight/map/x unknown_node"},
		"to nowhere":      {flows.InFlight{Mode: "move", Map: map[string]*string{"b": new("b")}}, "/in_flight/map/b unknown_node"},
		"from the entry":  {flows.InFlight{Mode: "move", Map: map[string]*string{"": new("a")}}, "/in_flight/map/ unknown_node"},
		"a map for stays": {flows.InFlight{Map: map[string]*string{"b": nil}}, "/in_flight/map not_allowed"},
		"no such mode":    {flows.InFlight{Mode: "fly"}, "/in_flight/mode invalid"},
	} {
		_, err := b.Publish(ctx, b.Workspace, flow, 2, nil, c.in, nil)
		if e := b.Wants(lemma.Invalid, err); flowstest.Pointers(e) != c.faults {
			t.Errorf("%s: %s", name, flowstest.Pointers(e))
		}
		_, err = b.Plan(ctx, b.Workspace, flow, 2, c.in)
		b.Wants(lemma.Invalid, err)
		if c.in.Mode != "move" {
			_, err = b.Rollback(ctx, b.Workspace, flow, new(1), nil, c.in, nil)
			b.Wants(lemma.Invalid, err)
		}
	}
}

func TestExitingWithAPublishAndWithARollback(t *testing.T) {
	b := setup(t, 2)
	flow := b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	b.PublishNext(flow, flowstest.Welcome, flows.InFlight{Mode: "exit"})
	b.RecordEvent("c2", "signed_up")
	b.Settle()
	b.FinishMoves()
	one, two := b.Enrollment(flow, "c1"), b.Enrollment(flow, "c2")
	if one.Status != enrollment.Exited || one.ExitReason != enrollment.ExitReplaced || two.Status != "waiting" || two.Version != 2 {
		t.Errorf("%+v, %+v", one, two)
	}
	_, err := b.Rollback(context.Background(), b.Workspace, flow, nil, nil, flows.InFlight{Mode: "move"}, nil)
	b.Must(err)
	b.FinishMoves()
	if e := b.Enrollment(flow, "c2"); e.Status != "waiting" || e.Version != 1 || !e.ResumeAt.Equal(*two.ResumeAt) {
		t.Errorf("%+v", e)
	}
}

// An enrollment that ends between the query that finds it and the transaction that would
// move it stays as it ended, and the move continues with the others.
func TestAnEnrollmentThatEndedIsNotMoved(t *testing.T) {
	for name, in := range map[string]flows.InFlight{"moved": {Mode: "move"}, "taken out": {Mode: "exit"}} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 2)
			text := strings.Replace(flowstest.UntilTomorrow("once", "go"), `"start"`,
				`"exit_on":[{"event":"bought","goal":true}],"start"`, 1)
			flow := b.Live(text)
			b.RecordEvent("c1", "go")
			b.RecordEvent("c2", "go")
			b.Settle()
			id := b.Enrollment(flow, "c1").ID
			b.PublishNext(flow, text, in)
			var ended string
			mover := b.Another()
			mover.Hook.Do = func(stage string) {
				if stage == "move: found" {
					mover.Hook.Do = nil
					if r := b.RecordEvent("c1", "bought"); r.Exited != 1 {
						t.Errorf("%+v", r)
					}
					ended = b.Row(id)
				}
			}
			n, err := mover.MoveOnce(context.Background())
			b.Must(err)
			if is := b.Row(id); n != 1 || is != ended {
				t.Errorf("%d were moved:\n%s\n%s", n, ended, is)
			}
			b.FinishMoves()
			b.Invariants()
		})
	}
}
