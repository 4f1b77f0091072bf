package flows

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
)

// moveAllOver works until no move is open.
func (b *bundle) moveAllOver() {
	b.t.Helper()
	for range 1000 {
		n, err := b.moveSome(context.Background())
		b.must(err)
		if n == 0 && b.count(`select count(*) from flow_moves where workspace_id = $1 and finished_at is null`) == 0 {
			return
		}
	}
	b.t.Fatal("a move does not end")
}

// crossroads sends everybody to the node that the trigger names; nodes are the
// rest of the version.
func crossroads(nodes map[string]string) string {
	var cases, all []string
	for _, id := range slices.Sorted(maps.Keys(nodes)) {
		cases = append(cases, fmt.Sprintf(`{"if":"trigger.properties.to == '%s'","next":"%s"}`, id, id))
		all = append(all, fmt.Sprintf(`"%s":%s`, id, nodes[id]))
	}
	return `{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"cross","nodes":{
		"cross":{"type":"branch","cases":[` + strings.Join(cases, ",") + `],"else":"end"},"end":{"type":"exit"},` + strings.Join(all, ",") + `}}`
}

// before and after are two versions in which every fate has somebody.
var before = map[string]string{
	"same":     `{"type":"delay","for":"P3D","next":"end"}`,
	"longer":   `{"type":"delay","for":"P3D","next":"end"}`,
	"shorter":  `{"type":"delay","for":"P3D","next":"end"}`,
	"event":    `{"type":"wait_for_event","event":"bought","timeout":"P2D","next":"end","on_timeout":"end"}`,
	"patient":  `{"type":"wait_for_event","event":"bought","timeout":"P2D","next":"end","on_timeout":"end"}`,
	"other":    `{"type":"wait_for_event","event":"bought","timeout":"P2D","next":"end","on_timeout":"end"}`,
	"monday":   `{"type":"wait_until","weekdays":["mon","tue"],"time":"09:00","next":"end"}`,
	"tuesday":  `{"type":"wait_until","weekdays":["mon"],"time":"09:00","next":"end"}`,
	"letter":   `{"type":"delay","for":"P3D","next":"end"}`,
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
	"letter":   `{$send,"next":"end"}`,
	"new":      `{"type":"delay","for":"P3D","next":"end"}`,
	"answered": `{"type":"webhook","endpoint_id":"$endpoint","on_error":"end","data":{"more":1},"next":"end"}`,
}

// fates are what the map below makes of the nodes, in words of the test's own.
var fates = map[string]struct {
	fate, to, timer string
	shift           time.Duration
}{
	"same":     {"moves", "same", "kept", 0},
	"longer":   {"moves", "longer", "shifted", 48 * time.Hour},
	"shorter":  {"moves", "shorter", "shifted", -71 * time.Hour},
	"event":    {"moves", "event", "kept", 0},
	"patient":  {"moves", "patient", "shifted", 48 * time.Hour},
	"other":    {"moves", "other", "restarted", 0},
	"monday":   {"moves", "monday", "kept", 0},
	"tuesday":  {"moves", "tuesday", "restarted", 0},
	"letter":   {"moves", "letter", "restarted", 0},
	"renamed":  {"moves", "new", "restarted", 0},
	"dropped":  {"exits", "", "", 0},
	"answered": {"moves", "answered", "kept", 0},
}

var overTo = InFlight{Mode: "move", Map: map[string]*string{"renamed": ptr("new"), "dropped": nil}}

// atTheCrossroads puts one person on each node of before.
func atTheCrossroads(t *testing.T, change ...func(*Config)) (b *bundle, flow uuid.UUID, who map[string]string, next string) {
	b = setup(t, len(before)+1, change...)
	endpoint := b.endpoint()
	with := func(nodes map[string]string) string {
		return strings.ReplaceAll(crossroads(nodes), "$endpoint", endpoint)
	}
	flow, who = b.live(with(before)), map[string]string{}
	for i, node := range slices.Sorted(maps.Keys(before)) {
		who[node] = fmt.Sprintf("c%d", i+1)
		b.tell(who[node], "go", properties(`{"to":"`+node+`"}`))
	}
	b.settleDown()
	last := fmt.Sprintf("c%d", len(before)+1)
	who[""] = last // has yet to enter
	b.tell(last, "go", properties(`{"to":"same"}`))
	return b, flow, who, with(after)
}

func TestMoveMakesEveryFateTrueThatThePlanTold(t *testing.T) {
	b, flow, who, next := atTheCrossroads(t, func(c *Config) { c.Lot = 5 })
	ctx := context.Background()
	was := map[string]Enrollment{}
	for node, profile := range who {
		was[node] = b.enrollment(flow, profile)
		if was[node].Node != node {
			t.Fatalf("%s stands on %q", profile, was[node].Node)
		}
	}
	_, err := b.CreateVersion(ctx, b.ws, flow, b.definition(next))
	b.must(err)
	everybody := b.everybody(flow)
	plan, err := b.Plan(ctx, b.ws, flow, 2, overTo)
	b.must(err)
	if b.everybody(flow) != everybody || plan.Stranded != 0 || len(plan.Changes) == 0 || *plan.Live != 1 {
		t.Errorf("%+v", plan)
	}
	told, timers := map[string]Standing{}, map[string]TimerChange{}
	for _, s := range plan.Nodes {
		told[s.Node] = s
	}
	for _, c := range plan.Timers {
		timers[c.Node] = c
	}
	now := time.Now()
	_, err = b.Publish(ctx, b.ws, flow, 2, nil, overTo, nil)
	b.must(err)
	b.moveAllOver()

	for node, want := range fates {
		if got := told[node]; got.Fate != want.fate || got.To != want.to || got.Waiting != 1 || got.Due != 0 || got.Version != 1 || got.Type == "" {
			t.Errorf("the plan tells of %s: %+v", node, got)
		}
		if got := timers[node]; got.Change != want.timer || got.Seconds != want.shift.Seconds() {
			t.Errorf("the plan tells of the timer of %s: %+v", node, got)
		}
		e, old := b.enrollment(flow, who[node]), was[node]
		if e.Step != old.Step+1 {
			t.Errorf("%s took %d steps", node, e.Step-old.Step)
		}
		if want.fate == "exits" {
			if e.Status != Exited || e.ExitReason != ExitReplaced || e.Version != 1 || e.Node != node {
				t.Errorf("%s: %+v", node, e)
			}
			continue
		}
		if e.Version != 2 || e.Node != want.to {
			t.Errorf("%s is at %s of version %d", node, e.Node, e.Version)
		}
		waits := b.count(`select count(*) from enrollments where workspace_id = $1 and id = $2 and waiting_since is not null`, e.ID) == 1
		switch want.timer {
		case "restarted":
			if e.ResumeAt.Before(now) || e.ResumeAt.After(time.Now()) || waits || e.Awaits != "" {
				t.Errorf("%s does not enter afresh: %+v", node, e)
			}
		default:
			if node != "answered" && !e.ResumeAt.Equal(old.ResumeAt.Add(want.shift)) || !waits || e.Awaits != old.Awaits {
				t.Errorf("%s waits until %s, not %s: %+v", node, e.ResumeAt, old.ResumeAt.Add(want.shift), e)
			}
		}
	}
	// Who had yet to enter has yet to enter the new version.
	if e := b.enrollment(flow, who[""]); e.Version != 2 || e.Node != "" || !e.ResumeAt.Equal(*was[""].ResumeAt) {
		t.Errorf("%+v", e)
	}
	if s := told[""]; s.Fate != "moves" || s.Due != 1 {
		t.Errorf("%+v", s)
	}
	if moved, exited := b.count(`select moved from flow_moves where workspace_id = $1`), b.count(`select exited from flow_moves where workspace_id = $1`); moved != len(who)-1 || exited != 1 {
		t.Errorf("%d moved and %d exited", moved, exited)
	}
	b.tellsOfTheMove(flow, who["longer"])

	// The journeys go on: the letter is written, the wait begins anew.
	b.settleDown()
	if e := b.enrollment(flow, who["letter"]); e.Status != Completed || b.notifications() != 1 {
		t.Errorf("%+v, %d notifications", e, b.notifications())
	}
	if e := b.enrollment(flow, who["renamed"]); e.Status != "waiting" || e.ResumeAt.Before(now.Add(71*time.Hour)) {
		t.Errorf("%+v", e)
	}
	b.pass(2 * time.Hour)
	b.settleDown()
	if e := b.enrollment(flow, who["shorter"]); e.Status != Completed {
		t.Errorf("a wait that got shorter ends earlier: %+v", e)
	}
}

// tellsOfTheMove looks at the history of somebody who was moved.
func (b *bundle) tellsOfTheMove(flow uuid.UUID, profile string) {
	b.t.Helper()
	_, steps, err := b.Steps(context.Background(), b.ws, b.enrollment(flow, profile).ID)
	b.must(err)
	last := steps[len(steps)-1]
	want := map[string]any{"from_version": json.Number("1"), "from_node": "longer", "by": "publish", "timer": "shifted", "shifted_seconds": json.Number("172800")}
	if d := cmp.Diff(want, last.Data); d != "" || last.Event != "moved" || last.Version != 2 || last.Node != "longer" {
		b.t.Errorf("%+v %s", last, d)
	}
}

func TestAnAnswerIsHeardAfterAMove(t *testing.T) {
	b, flow, who, next := atTheCrossroads(t)
	b.publish(flow, next, overTo)
	b.moveAllOver()
	id := b.enrollment(flow, who["answered"]).ID
	b.run(b.pool, `update outbox set state = 'delivered', status_code = 200, attempts = 1, finished_at = now() where id = $1`, NodeKey(id, "answered"))
	b.settleDown()
	if e := b.enrollment(flow, who["answered"]); e.Status != Completed || b.count(`select count(*) from outbox where workspace_id = $1`) != 1 {
		t.Errorf("%+v: %s", e, b.story(id))
	}
}

func TestNobodyIsStranded(t *testing.T) {
	b := setup(t, 3)
	ctx := context.Background()
	flow := b.live(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"a","nodes":{
		"a":{"type":"delay","for":"P1D","next":"b"},"b":{"type":"delay","for":"P1D","next":"c.d"},"c.d":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`)
	short := `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"a","nodes":{"a":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`
	b.tell("c1", "go")
	b.settleDown()
	b.pass(25 * time.Hour)
	b.settleDown() // at b
	b.tell("c2", "go")
	b.settleDown() // at a, and on the way to b
	_, err := b.CreateVersion(ctx, b.ws, flow, b.definition(short))
	b.must(err)

	for name, c := range map[string]struct {
		nodes    map[string]*string
		stranded int64
		faults   string
	}{
		"no map":                      {nil, 2, "/in_flight/map/b would_strand, /in_flight/map/c.d would_strand"},
		"nobody stands there yet":     {map[string]*string{"b": ptr("a")}, 2, "/in_flight/map/c.d would_strand"},
		"all that are gone, one exit": {map[string]*string{"b": ptr("a"), "c.d": nil}, 0, ""},
	} {
		in := InFlight{Mode: "move", Map: c.nodes}
		p, err := b.Plan(ctx, b.ws, flow, 2, in)
		b.must(err)
		if p.Stranded != c.stranded {
			t.Errorf("%s: %d stranded: %+v", name, p.Stranded, p.Nodes)
		}
		if c.faults == "" {
			continue
		}
		_, err = b.Publish(ctx, b.ws, flow, 2, nil, in, nil)
		if e := b.wants(lemma.Conflict, err); e.Code != "would_strand" || pointers(e) != c.faults {
			t.Errorf("%s: %s", name, pointers(e))
		}
	}
	if f := b.flow(flow); *f.LiveVersion != 1 {
		t.Error("a refused publish did something")
	}
	for name, c := range map[string]struct {
		in     InFlight
		faults string
	}{
		"from nowhere":    {InFlight{Mode: "move", Map: map[string]*string{"x": nil}}, "/in_flight/map/x unknown_node"},
		"to nowhere":      {InFlight{Mode: "move", Map: map[string]*string{"b": ptr("b")}}, "/in_flight/map/b unknown_node"},
		"from the entry":  {InFlight{Mode: "move", Map: map[string]*string{"": ptr("a")}}, "/in_flight/map/ unknown_node"},
		"a map for stays": {InFlight{Map: map[string]*string{"b": nil}}, "/in_flight/map not_allowed"},
		"no such mode":    {InFlight{Mode: "fly"}, "/in_flight/mode invalid"},
	} {
		_, err := b.Publish(ctx, b.ws, flow, 2, nil, c.in, nil)
		if e := b.wants(lemma.Invalid, err); pointers(e) != c.faults {
			t.Errorf("%s: %s", name, pointers(e))
		}
		_, err = b.Plan(ctx, b.ws, flow, 2, c.in)
		b.wants(lemma.Invalid, err)
		if c.in.Mode != "move" {
			_, err = b.Rollback(ctx, b.ws, flow, ptr(1), nil, c.in, nil)
			b.wants(lemma.Invalid, err)
		}
	}
}

// Somebody walks on to a node that is gone between the publish and the lot.
func TestWhoWalksOnBeforeTheLotIsCaughtByTheMap(t *testing.T) {
	b := setup(t, 1)
	flow := b.live(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"a","nodes":{
		"a":{"type":"delay","for":"P1D","next":"b"},"b":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`)
	b.tell("c1", "go")
	b.settleDown()
	b.publish(flow, `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"a","nodes":{"a":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`,
		InFlight{Mode: "move", Map: map[string]*string{"b": nil}})
	worker := b.another()
	b.hook = func(stage string) {
		if stage == "move: found" && b.enrollment(flow, "c1").Node == "a" {
			b.hook = nil
			b.pass(25 * time.Hour)
			_, err := worker.RunOnce(context.Background())
			b.must(err)
		}
	}
	b.moveAllOver()
	if e := b.enrollment(flow, "c1"); e.Status != Exited || e.ExitReason != ExitReplaced || e.Node != "b" {
		t.Errorf("%+v", e)
	}
}

// A worker that has read people before they were moved finds them moved, and
// does nothing for them.
func TestMovedUnderAWorker(t *testing.T) {
	b := setup(t, 1)
	flow := b.live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"a","nodes":{"a":{$send,"next":"end"},"end":{"type":"exit"}}}`)
	b.tell("c1", "go")
	worker := b.another()
	worker.hook = func(stage string) {
		if stage == "walked" {
			worker.hook = nil
			b.publish(flow, `{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"z","nodes":{"z":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`,
				InFlight{Mode: "move", Map: map[string]*string{"a": ptr("z")}})
			b.moveAllOver()
		}
	}
	_, err := worker.RunOnce(context.Background())
	b.must(err)
	e := b.enrollment(flow, "c1")
	if n := b.notifications(); n != 0 || e.Version != 2 || e.Node != "" {
		t.Errorf("%d notifications, %+v", n, e)
	}
	b.settleDown()
	if got := b.story(e.ID); got != "enrolled@ moved@ checked@ waiting@z" && got != "enrolled@ moved@ checked@" {
		t.Error(got)
	}
}

// The last word counts, also while a worker is at the order before it.
func TestALaterPublishEndsAnOpenMove(t *testing.T) {
	b := setup(t, 4, func(c *Config) { c.Lot = 1 })
	flow := b.live(welcome)
	for _, c := range []string{"c1", "c2", "c3", "c4"} {
		b.tell(c, "signed_up")
	}
	b.settleDown()
	b.publish(flow, welcome, InFlight{Mode: "move"})
	lots := 0
	b.hook = func(stage string) {
		if stage != "move: found" {
			return
		}
		if lots++; lots == 3 {
			b.publish(flow, welcome, InFlight{})
		}
	}
	n, err := b.moveSome(context.Background())
	b.must(err)
	b.hook = nil
	if left := b.count(`select count(*) from enrollments where workspace_id = $1 and version = 1`); n != 2 || left != 2 {
		t.Errorf("%d were moved, %d stay", n, left)
	}
	b.moveAllOver()
	if left := b.count(`select count(*) from enrollments where workspace_id = $1 and version = 1`); left != 2 {
		t.Errorf("%d stay", left)
	}
	// Another order takes over from all versions.
	b.publish(flow, welcome, InFlight{Mode: "move"})
	b.moveAllOver()
	if n := b.count(`select count(*) from enrollments where workspace_id = $1 and version = 4`); n != 4 {
		t.Errorf("%d are in version 4", n)
	}
	if n := b.count(`select count(*) from enrollment_steps where workspace_id = $1 and event = 'moved'`); n != 6 {
		t.Errorf("%d moves", n)
	}
}

func TestExitingWithAPublishAndWithARollback(t *testing.T) {
	b := setup(t, 2)
	flow := b.live(welcome)
	b.tell("c1", "signed_up")
	b.settleDown()
	b.publish(flow, welcome, InFlight{Mode: "exit"})
	b.tell("c2", "signed_up")
	b.settleDown()
	b.moveAllOver()
	one, two := b.enrollment(flow, "c1"), b.enrollment(flow, "c2")
	if one.Status != Exited || one.ExitReason != ExitReplaced || two.Status != "waiting" || two.Version != 2 {
		t.Errorf("%+v, %+v", one, two)
	}
	_, err := b.Rollback(context.Background(), b.ws, flow, nil, nil, InFlight{Mode: "move"}, nil)
	b.must(err)
	b.moveAllOver()
	if e := b.enrollment(flow, "c2"); e.Status != "waiting" || e.Version != 1 || !e.ResumeAt.Equal(*two.ResumeAt) {
		t.Errorf("%+v", e)
	}
}

// Whoever came to the version between the look and the lot is there already.
func TestNobodyIsMovedTwiceByOneOrder(t *testing.T) {
	b := setup(t, 1)
	flow := b.live(welcome)
	b.tell("c1", "signed_up")
	b.settleDown()
	b.publish(flow, welcome, InFlight{Mode: "move"})
	b.hook = func(stage string) {
		if stage == "move: found" {
			b.hook = nil
			_, err := b.Move(context.Background(), b.ws, b.enrollment(flow, "c1").ID, ptr(2), "nudge")
			b.must(err)
		}
	}
	b.moveAllOver()
	if e := b.enrollment(flow, "c1"); e.Node != "nudge" || b.count(`select count(*) from enrollment_steps where workspace_id = $1 and event = 'moved'`) != 1 {
		t.Errorf("%+v: %s", e, b.story(e.ID))
	}
}

// A lease that ran out lets another node go on, and the first does no harm.
func TestAMoveIsTakenOver(t *testing.T) {
	b := setup(t, 2, func(c *Config) { c.Lot = 1 })
	ctx := context.Background()
	flow := b.live(welcome)
	b.tell("c1", "signed_up")
	b.tell("c2", "signed_up")
	b.settleDown()
	b.publish(flow, welcome, InFlight{Mode: "move"})
	other := b.another()
	once := false
	b.hook = func(stage string) {
		if stage != "move: found" || once {
			return
		}
		once = true
		if n, err := other.moveSome(ctx); n != 0 || err != nil {
			t.Errorf("two work at a move: %d, %v", n, err)
		}
		b.run(b.pool, `update flow_moves set lease_until = now() - interval '1 second' where workspace_id = $1`, b.ws)
		if n, err := other.moveSome(ctx); n != 2 || err != nil {
			t.Errorf("%d taken over: %v", n, err)
		}
	}
	if n, err := b.moveSome(ctx); n != 0 || err != nil {
		t.Errorf("%d moved with a lost lease: %v", n, err)
	}
	b.moveAllOver()
	if n := b.count(`select moved from flow_moves where workspace_id = $1`); n != 2 {
		t.Errorf("%d in the books", n)
	}
}

// A journey ends between the look that finds it and the transaction that was to
// move it: it stays as it ended, and the order goes on with the others.
func TestAJourneyThatEndedIsNotMoved(t *testing.T) {
	for name, in := range map[string]InFlight{"moved": {Mode: "move"}, "taken out": {Mode: "exit"}} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 2)
			text := strings.Replace(untilTomorrow("once", "go"), `"start"`, `"exit_on":[{"event":"bought","goal":true}],"start"`, 1)
			flow := b.live(text)
			b.tell("c1", "go")
			b.tell("c2", "go")
			b.settleDown()
			id := b.enrollment(flow, "c1").ID
			b.publish(flow, text, in)
			var ended string
			mover := b.another()
			mover.hook = func(stage string) {
				if stage == "move: found" {
					mover.hook = nil
					if r := b.tell("c1", "bought"); r.Exited != 1 {
						t.Errorf("%+v", r)
					}
					ended = b.row(id)
				}
			}
			n, err := mover.moveSome(context.Background())
			b.must(err)
			if is := b.row(id); n != 1 || is != ended {
				t.Errorf("%d were moved:\n%s\n%s", n, ended, is)
			}
			b.moveAllOver()
			b.invariants()
		})
	}
}
