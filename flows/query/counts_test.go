package query_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
	"lemma/flows/query"
	"lemma/page"
)

const funnel = `{"audience_id":"$audience","triggers":[{"type":"event","event":"signed_up"}],"recurrence":{"policy":"once"},
	"exit_on":[{"event":"bought","goal":true},{"event":"left"}],
	"start":"hello","nodes":{"hello":{$send,"next":"wait"},"wait":{"type":"delay","for":"P3D","next":"nudge"},"nudge":{$send,"next":"a_end"},
		"a_end":{"type":"exit"}}}`

// Enrollments are counted by node and by outcome.
func TestCounts(t *testing.T) {
	b := setup(t, 9)
	ctx := context.Background()
	flow := b.Live(funnel)
	for _, profile := range []string{"c1", "c2", "c3", "c4", "missing"} {
		b.RecordEvent(profile, "signed_up")
	}
	b.Settle()
	b.Exec(`update enrollments set resume_at = now() where profile_key = 'missing' and status = 'active'`)
	b.Settle()
	b.Exec(`update enrollments set resume_at = now() where profile_key = 'missing' and status = 'active'`)
	b.Settle()
	b.RecordEvent("c1", "bought")
	b.RecordEvent("c2", "left")
	b.Exec(`update enrollments set resume_at = now() where profile_key = 'c3'`)
	b.Settle()
	b.RecordEvent("c3", "signed_up")
	b.RecordEvent("c5", "signed_up") // before the first node, due
	got, err := b.Counts(ctx, b.Workspace, flow, 0)
	b.Must(err)
	want := query.Counts{Version: 1, Enrolled: 5, Active: 2, Completed: 1, Exited: 2, Refused: 1,
		ExitReasons: map[string]int64{enrollment.ExitGoal: 1, enrollment.ExitCondition: 1}, Goals: 1,
		Refusals: map[string]int64{enrollment.NoProfile: 1, enrollment.AlreadyEnrolled: 1}, BlockedBy: map[string]int64{},
		Nodes: []query.NodeCount{
			{Node: "", Type: "entry", Current: 1, Due: 1, Processed: map[string]int64{"checked": 4, "refused": 1}},
			{Node: "hello", Type: "send", Processed: map[string]int64{"sent": 4}, Messages: messages(4),
				Deliveries: map[string]int64{}},
			{Node: "wait", Type: "delay", Current: 1, Processed: map[string]int64{"resumed": 1}},
			{Node: "nudge", Type: "send", Processed: map[string]int64{"sent": 1}, Messages: messages(1),
				Deliveries: map[string]int64{}},
			{Node: "a_end", Type: "exit", Processed: map[string]int64{"completed": 1}},
		}}
	if d := cmp.Diff(want, got, cmp.Transformer("nodes", func(n query.NodeCount) query.NodeCount { // the counts of exits are tested elsewhere
		for _, event := range []string{"exited"} {
			delete(n.Processed, event)
		}
		return n
	})); d != "" {
		t.Fatal(d)
	}
}

// messages are the counts of written messages, none sent yet.
func messages(written int64) map[string]int64 {
	return map[string]int64{"written": written, "pending": written, "sent": 0, "failed": 0, "orphaned": 0, "skipped": 0, "cancelled": 0,
		"processing": 0}
}

// Paths out of a branch and a split are counted, and blocked enrollments.
func TestCountsByPathAndBlockedReason(t *testing.T) {
	b := setup(t, 10)
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"land",
		"nodes":{
		"land":{"type":"branch","cases":[{"if":"profile.country == 'DE'","next":"arms"}],"else":"end"},
		"arms":{"type":"split","arms":[{"weight":1,"next":"end"},{"weight":1,"next":"wait"}]},"wait":{"type":"delay","for":"P1D","next":"end"},
			"end":{"type":"exit"}}}`)
	for i := range 10 {
		b.RecordEvent(fmt.Sprintf("c%d", i+1), "go")
	}
	b.Settle()
	b.ExecDB(`alter table customers rename to gone`)
	b.RecordEvent("late", "go")
	_, err := b.RunOnce(context.Background())
	b.Must(err)
	c, err := b.Counts(context.Background(), b.Workspace, flow, 0)
	b.Must(err)
	paths := map[string]map[string]int64{}
	for _, n := range c.Nodes {
		paths[n.Node] = n.ByPath
	}
	if w := paths["land"]; w["arms"] != 5 || w["end"] != 5 {
		t.Errorf("%v", w)
	}
	if w := paths["arms"]; w["end"]+w["wait"] != 5 || w["wait"] != c.Active-1 {
		t.Errorf("%v of %d", w, c.Active)
	}
	if len(c.BlockedBy) != 1 || c.Nodes[0].Blocked != 1 {
		t.Errorf("%v, %+v", c.BlockedBy, c.Nodes[0])
	}
	all, _, err := b.ListEnrollments(context.Background(), b.Workspace, query.EnrollmentFilter{FlowID: &flow, Blocked: "any"},
		page.Query{Limit: 10})
	b.Must(err)
	if len(all) != 1 || all[0].ProfileKey != "late" || all[0].BlockedSince == nil {
		t.Errorf("%+v", all)
	}
}

// A repeated id with another profile or name is no repetition.
func TestAnIDOfAnotherEvent(t *testing.T) {
	b := setup(t, 0)
	b.RecordEvent("c1", "go", flowstest.WithID("e1"))
	for _, e := range []intake.Event{{ID: "e1", ProfileKey: "c2", Name: "go"}, {ID: "e1", ProfileKey: "c1", Name: "stop"}} {
		if _, err := b.Record(context.Background(), b.Workspace, e); lemma.KindOf(err) != lemma.Conflict {
			t.Errorf("%+v: %v", e, err)
		}
	}
	all, err := b.RecordAll(context.Background(), b.Workspace, []intake.Event{{ID: "e1", ProfileKey: "c2", Name: "go"},
		{ID: "e2", ProfileKey: "c2", Name: "go"}, {ID: "e1", ProfileKey: "c1", Name: "go"}})
	b.Must(err)
	if lemma.KindOf(all[0].Err) != lemma.Conflict || all[1].Err != nil || all[1].Duplicate || !all[2].Duplicate {
		t.Errorf("%+v", all)
	}
	if _, err := b.Record(context.Background(), b.Workspace,
		intake.Event{ProfileKey: "c1", Name: "go", Properties: []byte(`{"n":1e400}`)}); lemma.KindOf(err) != lemma.Invalid {
		t.Errorf("a number that cannot be read: %v", err)
	}
}

func TestCountsOfOneVersion(t *testing.T) {
	b := setup(t, 2)
	ctx := context.Background()
	f := b.NewDraft(flowstest.Welcome)
	b.Wants(lemma.WrongStatus, flowstest.Second(b.Counts(ctx, b.Workspace, f.ID, 0)))
	b.Wants(lemma.NotFound, flowstest.Second(b.Counts(ctx, b.Workspace, f.ID, 7)))
	b.Wants(lemma.NotFound, flowstest.Second(b.Counts(ctx, b.Workspace, lemma.NewID(), 0)))
	got, err := b.Counts(ctx, b.Workspace, f.ID, 1)
	b.Must(err)
	var order []string
	for _, n := range got.Nodes {
		order = append(order, n.Node)
	}
	if d := cmp.Diff([]string{"", "hello", "wait", "nudge", "end"}, order); d != "" {
		t.Fatal(d)
	}

	flow := b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	b.PublishNext(flow, flowstest.Welcome, flows.InFlight{Mode: "stay"})
	b.RecordEvent("c2", "signed_up")
	b.Settle()
	one, err := b.Counts(ctx, b.Workspace, flow, 1)
	b.Must(err)
	two, err := b.Counts(ctx, b.Workspace, flow, 0)
	b.Must(err)
	if one.Version != 1 || one.Active != 1 || two.Version != 2 || two.Active != 1 {
		t.Fatalf("%+v\n%+v", one, two)
	}
	if n := one.Nodes[2]; n.Current != 1 || n.Due != 0 {
		t.Fatalf("%+v", n)
	}
	b.Pass(80 * time.Hour)
	if one, err = b.Counts(ctx, b.Workspace, flow, 1); err != nil || one.Nodes[2].Due != 1 {
		t.Fatalf("%+v %v", one, err)
	}
}

// Messages that were skipped when they were written are counted once among the messages,
// with their reasons.
func TestCountsOfSkippedMessages(t *testing.T) {
	b := setup(t, 4)
	flow := b.Live(flowstest.Welcome)
	b.ExecDB(`update customers set email = null where id = 'c2'`)
	b.ExecDB(`update customers set opted_out = true where id = 'c3'`)
	for i := range 4 {
		b.RecordEvent(fmt.Sprintf("c%d", i+1), "signed_up")
	}
	b.Settle()
	for _, profile := range []string{"c1", "c2"} { // moved back to a node that has acted: no message, whatever the first outcome
		b.PutBack(b.Enrollment(flow, profile).ID, "hello")
	}
	got, err := b.Counts(bg, b.Workspace, flow, 0)
	b.Must(err)
	n := got.Nodes[1]
	if d := cmp.Diff(map[string]int64{"written": 4, "pending": 2, "skipped": 2, "sent": 0, "failed": 0, "orphaned": 0, "cancelled": 0,
		"processing": 0}, n.Messages); d != "" || n.Processed[enrollment.StepSkipped] != 4 {
		t.Errorf("%s %v", d, n.Processed)
	}
	// Also those that the sender skipped: they were written.
	b.Exec(`update batches set skipped = 1 where id = (select min(id::text)::uuid from batches where workspace_id = $1)`, b.Workspace)
	if got, err = b.Counts(bg, b.Workspace, flow,
		0); err != nil || got.Nodes[1].Messages["skipped"] != 3 || got.Nodes[1].Messages["written"] != 4 {
		t.Errorf("%v %v", got.Nodes[1].Messages, err)
	}
	b.Invariants()
}
