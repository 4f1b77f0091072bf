package flows

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma"
)

const funnel = `{"audience_id":"$audience","triggers":[{"type":"event","event":"signed_up"}],"recurrence":{"policy":"once"},
	"exit_on":[{"event":"bought","goal":true},{"event":"left"}],
	"start":"hello","nodes":{"hello":{$send,"next":"wait"},"wait":{"type":"delay","for":"P3D","next":"nudge"},"nudge":{$send,"next":"a_end"},"a_end":{"type":"exit"}}}`

// People are counted where they are, and how they got there.
func TestCounts(t *testing.T) {
	b := setup(t, 9)
	ctx := context.Background()
	flow := b.live(funnel)
	for _, who := range []string{"c1", "c2", "c3", "c4", "nobody"} {
		b.tell(who, "signed_up")
	}
	b.settleDown()
	b.run(b.pool, `update enrollments set resume_at = now() where profile_key = 'nobody' and status = 'active'`)
	b.settleDown()
	b.run(b.pool, `update enrollments set resume_at = now() where profile_key = 'nobody' and status = 'active'`)
	b.settleDown()
	b.tell("c1", "bought")
	b.tell("c2", "left")
	b.run(b.pool, `update enrollments set resume_at = now() where profile_key = 'c3'`)
	b.settleDown()
	b.tell("c3", "signed_up")
	b.tell("c5", "signed_up") // stands before the first node, due
	got, err := b.Counts(ctx, b.ws, flow, 0)
	b.must(err)
	want := Counts{Version: 1, Enrolled: 5, Active: 2, Completed: 1, Exited: 2, Refused: 1, ExitReasons: map[string]int64{ExitGoal: 1, ExitCondition: 1}, Goals: 1,
		Refusals: map[string]int64{NoProfile: 1, AlreadyEnrolled: 1}, Trouble: map[string]int64{},
		Nodes: []NodeCount{
			{Node: "", Type: "entry", Standing: 1, Due: 1, Passed: map[string]int64{"checked": 4, "refused": 1}},
			{Node: "hello", Type: "send", Passed: map[string]int64{"sent": 4}, Messages: messages(4)},
			{Node: "wait", Type: "delay", Standing: 1, Passed: map[string]int64{"resumed": 1}},
			{Node: "nudge", Type: "send", Passed: map[string]int64{"sent": 1}, Messages: messages(1)},
			{Node: "a_end", Type: "exit", Passed: map[string]int64{"completed": 1}},
		}}
	if d := cmp.Diff(want, got, cmp.Transformer("nodes", func(n NodeCount) NodeCount { // what exits count is the exits' affair
		for _, event := range []string{"exited"} {
			delete(n.Passed, event)
		}
		return n
	})); d != "" {
		t.Fatal(d)
	}
}

// A version is counted by itself, and a draft has a graph and nobody in it.

// messages is what becomes of so many that nobody has sent yet.
func messages(written int64) map[string]int64 {
	return map[string]int64{"written": written, "pending": written, "sent": 0, "failed": 0, "orphaned": 0, "skipped": 0, "cancelled": 0}
}

// The ways out of a branch and a split are counted, and those who cannot go on.
func TestCountsOfWaysAndTrouble(t *testing.T) {
	b := setup(t, 10)
	flow := b.live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"land","nodes":{
		"land":{"type":"branch","cases":[{"if":"profile.country == 'DE'","next":"arms"}],"else":"end"},
		"arms":{"type":"split","arms":[{"weight":1,"next":"end"},{"weight":1,"next":"wait"}]},"wait":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`)
	for i := range 10 {
		b.tell(fmt.Sprintf("c%d", i+1), "go")
	}
	b.settleDown()
	b.run(b.shop, `alter table customers rename to gone`)
	b.tell("late", "go")
	_, err := b.RunOnce(context.Background())
	b.must(err)
	c, err := b.Counts(context.Background(), b.ws, flow, 0)
	b.must(err)
	ways := map[string]map[string]int64{}
	for _, n := range c.Nodes {
		ways[n.Node] = n.Ways
	}
	if w := ways["land"]; w["arms"] != 5 || w["end"] != 5 {
		t.Errorf("%v", w)
	}
	if w := ways["arms"]; w["end"]+w["wait"] != 5 || w["wait"] != c.Active-1 {
		t.Errorf("%v of %d", w, c.Active)
	}
	if len(c.Trouble) != 1 || c.Nodes[0].Troubled != 1 {
		t.Errorf("%v, %+v", c.Trouble, c.Nodes[0])
	}
	all, _, err := b.ListEnrollments(context.Background(), b.ws, EnrollmentFilter{FlowID: &flow, Trouble: "any"}, lemma.Page{Limit: 10})
	b.must(err)
	if len(all) != 1 || all[0].ProfileKey != "late" || all[0].DueSince == nil {
		t.Errorf("%+v", all)
	}
}

// An id that is told again of somebody else, or of something else, is no repetition.
func TestAnIDOfAnotherEvent(t *testing.T) {
	b := setup(t, 0)
	b.tell("c1", "go", withID("e1"))
	for _, e := range []Event{{ID: "e1", ProfileKey: "c2", Name: "go"}, {ID: "e1", ProfileKey: "c1", Name: "stop"}} {
		if _, err := b.Record(context.Background(), b.ws, e); lemma.KindOf(err) != lemma.Conflict {
			t.Errorf("%+v: %v", e, err)
		}
	}
	all, err := b.RecordAll(context.Background(), b.ws, []Event{{ID: "e1", ProfileKey: "c2", Name: "go"}, {ID: "e2", ProfileKey: "c2", Name: "go"}, {ID: "e1", ProfileKey: "c1", Name: "go"}})
	b.must(err)
	if lemma.KindOf(all[0].Err) != lemma.Conflict || all[1].Err != nil || all[1].Duplicate || !all[2].Duplicate {
		t.Errorf("%+v", all)
	}
	if _, err := b.Record(context.Background(), b.ws, Event{ProfileKey: "c1", Name: "go", Properties: []byte(`{"n":1e400}`)}); lemma.KindOf(err) != lemma.Invalid {
		t.Errorf("a number that nobody can read: %v", err)
	}
}

func TestCountsOfOneVersion(t *testing.T) {
	b := setup(t, 2)
	ctx := context.Background()
	f := b.draft(welcome)
	b.wants(lemma.WrongState, second(b.Counts(ctx, b.ws, f.ID, 0)))
	b.wants(lemma.NotFound, second(b.Counts(ctx, b.ws, f.ID, 7)))
	b.wants(lemma.NotFound, second(b.Counts(ctx, b.ws, lemma.NewID(), 0)))
	got, err := b.Counts(ctx, b.ws, f.ID, 1)
	b.must(err)
	var order []string
	for _, n := range got.Nodes {
		order = append(order, n.Node)
	}
	if d := cmp.Diff([]string{"", "hello", "wait", "nudge", "end"}, order); d != "" {
		t.Fatal(d)
	}

	flow := b.live(welcome)
	b.tell("c1", "signed_up")
	b.settleDown()
	b.publish(flow, welcome, InFlight{Mode: "stay"})
	b.tell("c2", "signed_up")
	b.settleDown()
	one, err := b.Counts(ctx, b.ws, flow, 1)
	b.must(err)
	two, err := b.Counts(ctx, b.ws, flow, 0)
	b.must(err)
	if one.Version != 1 || one.Active != 1 || two.Version != 2 || two.Active != 1 {
		t.Fatalf("%+v\n%+v", one, two)
	}
	if n := one.Nodes[2]; n.Standing != 1 || n.Due != 0 {
		t.Fatalf("%+v", n)
	}
	b.pass(80 * time.Hour)
	if one, err = b.Counts(ctx, b.ws, flow, 1); err != nil || one.Nodes[2].Due != 1 {
		t.Fatalf("%+v %v", one, err)
	}
}

// second is the error of a call.
func second[T any](_ T, err error) error { return err }

// Who was skipped when the message was written is counted among the messages,
// each once, and why it was is too.
func TestCountsOfSkippedMessages(t *testing.T) {
	b := setup(t, 4)
	flow := b.live(welcome)
	b.run(b.shop, `update customers set email = null where id = 'c2'`)
	b.run(b.shop, `update customers set opted_out = true where id = 'c3'`)
	for i := range 4 {
		b.tell(fmt.Sprintf("c%d", i+1), "signed_up")
	}
	b.settleDown()
	for _, profile := range []string{"c1", "c2"} { // put back on what has acted: no message, whatever came of the first
		b.putBack(b.enrollment(flow, profile).ID, "hello")
	}
	got, err := b.Counts(bg, b.ws, flow, 0)
	b.must(err)
	n := got.Nodes[1]
	if d := cmp.Diff(map[string]int64{"written": 4, "pending": 2, "skipped": 2, "sent": 0, "failed": 0, "orphaned": 0, "cancelled": 0}, n.Messages); d != "" || n.Passed[stepSkipped] != 4 {
		t.Errorf("%s %v", d, n.Passed)
	}
	// Also those that the carrier's side skipped: they were written.
	b.run(b.pool, `update batches set skipped = 1 where id = (select min(id::text)::uuid from batches where workspace_id = $1)`, b.ws)
	if got, err = b.Counts(bg, b.ws, flow, 0); err != nil || got.Nodes[1].Messages["skipped"] != 3 || got.Nodes[1].Messages["written"] != 4 {
		t.Errorf("%v %v", got.Nodes[1].Messages, err)
	}
	b.invariants()
}
