package query_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
	"lemma/flows/query"
	"lemma/page"
	"lemma/pgtest"
)

// A profile's events are listed newest first, page by page, by name or all.
func TestEventsAreListed(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	var reported []intake.Event
	for i := range 7 {
		reported = append(reported, intake.Event{ProfileKey: "c1", Name: []string{"opened", "bought"}[i%2], ID: string(rune('a' + i))})
	}
	_, err := b.RecordAll(ctx, b.Workspace, reported)
	b.Must(err)
	b.Exec(`update trigger_events set received_at = now() - interval '1 hour'`) // equal times are possible
	b.RecordEvent("c1", "opened", flowstest.WithID("last"), flowstest.Properties(`{"n": 1}`))
	b.RecordEvent("c2", "opened")
	read := func(profile, name string) (ids []string) {
		for _, e := range pgtest.Pages(t, 3, func(cursor string) ([]query.StoredEvent, string, error) {
			return b.ListEvents(ctx, b.Workspace, profile, name, page.Query{Limit: 3, Cursor: cursor})
		}) {
			ids = append(ids, e.ID)
		}
		return ids
	}
	all := read("c1", "")
	seen := map[string]bool{}
	for _, id := range all {
		seen[id] = true
	}
	if len(all) != 8 || len(seen) != 8 || all[0] != "last" {
		t.Fatalf("%v", all)
	}
	if got := read("c1", "bought"); len(got) != 3 {
		t.Fatalf("%v", got)
	}
	if got := read("c3", ""); len(got) != 0 {
		t.Fatalf("%v", got)
	}
	if e := b.Wants(lemma.Invalid, flowstest.ThirdOf(b.ListEvents(ctx, b.Workspace, "", "",
		page.Query{Limit: 3}))); flowstest.Pointers(e) != "?profile_key required" {
		t.Fatal(flowstest.Pointers(e))
	}
	b.Wants(lemma.Invalid, flowstest.ThirdOf(b.ListEvents(ctx, b.Workspace, "c1", "", page.Query{Limit: 3, Cursor: "evt_1"})))
	one, _, err := b.ListEvents(ctx, b.Workspace, "c1", "opened", page.Query{Limit: 1})
	b.Must(err)
	if string(one[0].Properties) != `{"n":1}` || one[0].Name != "opened" || one[0].OccurredAt.IsZero() || one[0].ReceivedAt.IsZero() {
		t.Fatalf("%+v", one[0])
	}
}

// The results of an event in each flow are those of its recording, updated by what
// happened since.
func TestResultsOfAnEvent(t *testing.T) {
	b := setup(t, 3)
	ctx := context.Background()
	one := b.Live(flowstest.Welcome)
	two := b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"signed_up","condition":"trigger.properties.n > 1.0"}],
		"recurrence":{"policy":"per_event"},
		"start":"w","nodes":{"w":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`)
	results := func(r intake.Recorded) []intake.Result {
		t.Helper()
		e, got, err := b.GetEvent(ctx, b.Workspace, r.Key)
		b.Must(err)
		if e.Key != r.Key {
			t.Fatalf("%+v", e)
		}
		return got
	}
	byFlow := cmpopts.SortSlices(func(a, b intake.Result) bool { return bytes.Compare(a.FlowID[:], b.FlowID[:]) < 0 })
	first := b.RecordEvent("c1", "signed_up", flowstest.Properties(`{"n":2,"word":"<é>"}`))
	second := b.RecordEvent("c1", "signed_up", flowstest.Properties(`{"n":1}`))
	third := b.RecordEvent("c1", "signed_up", flowstest.Properties(`{"n":3}`))
	for i, r := range []intake.Recorded{first, second, third} {
		if d := cmp.Diff(r.Results, results(r), byFlow); d != "" || len(r.Results) != 2 {
			t.Errorf("event %d: %s", i, d)
		}
	}
	if second.Results[0].FlowID == second.Results[1].FlowID || one == two {
		t.Fatal("two flows are not distinguished")
	}
	b.Settle()
	b.Pass(100 * 24 * 3600e9)
	b.Settle()
	if d := cmp.Diff(first.Results, results(first), byFlow); d != "" { // also after the enrollment has ended
		t.Error(d)
	}

	// Two events of one profile in one transaction have separate results.
	pair, err := b.RecordAll(ctx, b.Workspace, []intake.Event{{ProfileKey: "c2", Name: "signed_up", ID: "x", OccurredAt: noon},
		{ProfileKey: "c2", Name: "signed_up", ID: "y", OccurredAt: noon}})
	b.Must(err)
	b.Exec(`update trigger_events set received_at = '2026-01-01' where profile_key = 'c2'`) // also if two chunks have the same microsecond
	b.Exec(`update enrollments set enrolled_at = '2026-01-01' where profile_key = 'c2'`)
	for _, r := range pair {
		if d := cmp.Diff(r.Results, results(r), byFlow); d != "" {
			t.Error(d)
		}
	}

	// So have two events that differ only in their time, and two that were recorded at
	// once.
	for range 2 {
		r := b.RecordEvent("c3", "signed_up", flowstest.At(noon), flowstest.Properties(`{"n":5}`))
		if d := cmp.Diff(r.Results, results(r), byFlow); d != "" {
			t.Error(d)
		}
	}

	// An enrollment that is refused at the entry was enrolled before.
	r := b.RecordEvent("missing", "signed_up", flowstest.Properties(`{"n":9}`))
	for range 3 {
		b.Exec(`update enrollments set resume_at = now() where profile_key = 'missing' and status = 'active'`)
		b.Settle()
	}
	for _, got := range results(r) {
		if got.Outcome != enrollment.Refused || got.Reason != enrollment.NoProfile || got.EnrollmentID == nil {
			t.Errorf("%+v", got)
		}
	}
	if _, _, err := b.GetEvent(ctx, b.Workspace, lemma.NewID()); lemma.KindOf(err) != lemma.NotFound {
		t.Fatal(err)
	}
}

// Refusals of a flow that is archived since are still reported.
func TestWhatAnArchivedFlowRefused(t *testing.T) {
	b := setup(t, 0)
	flow, other := b.Live(flowstest.UntilTomorrow("once", "go")), b.Live(flowstest.UntilTomorrow("once", "go"))
	b.RecordEvent("c1", "go")
	refused := b.RecordEvent("c1", "go")
	b.Must(flowstest.Second(b.Archive(bg, b.Workspace, flow, nil)))
	b.FinishMoves()
	_, got, err := b.GetEvent(bg, b.Workspace, refused.Key)
	b.Must(err)
	if d := cmp.Diff(refused.Results, got, cmpopts.SortSlices(func(a,
		b intake.Result) bool {
		return bytes.Compare(a.FlowID[:], b.FlowID[:]) < 0
	})); d != "" || len(got) != 2 || flow == other {
		t.Error(d)
	}
}
