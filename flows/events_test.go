package flows

import (
	"bytes"
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"lemma"
)

// What a profile did is listed newest first, page by page, by name or all.
func TestEventsAreListed(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	var told []Event
	for i := range 7 {
		told = append(told, Event{ProfileKey: "c1", Name: []string{"opened", "bought"}[i%2], ID: string(rune('a' + i))})
	}
	_, err := b.RecordAll(ctx, b.ws, told)
	b.must(err)
	b.run(b.pool, `update trigger_events set received_at = now() - interval '1 hour'`) // of one time, as it may happen
	b.tell("c1", "opened", withID("last"), properties(`{"n": 1}`))
	b.tell("c2", "opened")
	read := func(who, name string) (ids []string) {
		cursor := ""
		for range 20 {
			page, next, err := b.ListEvents(ctx, b.ws, who, name, lemma.Page{Limit: 3, Cursor: cursor})
			b.must(err)
			for _, e := range page {
				ids = append(ids, e.ID)
			}
			if cursor = next; next == "" {
				break
			}
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
	if e := b.wants(lemma.Invalid, errOf(b.ListEvents(ctx, b.ws, "", "", lemma.Page{Limit: 3}))); pointers(e) != "?profile_key required" {
		t.Fatal(pointers(e))
	}
	b.wants(lemma.Invalid, errOf(b.ListEvents(ctx, b.ws, "c1", "", lemma.Page{Limit: 3, Cursor: "evt_1"})))
	one, _, err := b.ListEvents(ctx, b.ws, "c1", "opened", lemma.Page{Limit: 1})
	b.must(err)
	if string(one[0].Properties) != `{"n":1}` || one[0].Name != "opened" || one[0].OccurredAt.IsZero() || one[0].ReceivedAt.IsZero() {
		t.Fatalf("%+v", one[0])
	}
}

// An event answers what came of it in each flow: as it said when it was
// recorded, and as it turned out.
func TestWhatCameOfAnEvent(t *testing.T) {
	b := setup(t, 3)
	ctx := context.Background()
	one := b.live(welcome)
	two := b.live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"signed_up","condition":"trigger.properties.n > 1.0"}],"recurrence":{"policy":"per_event"},
		"start":"w","nodes":{"w":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`)
	results := func(r Recorded) []Result {
		t.Helper()
		e, got, err := b.GetEvent(ctx, b.ws, r.Key)
		b.must(err)
		if e.Key != r.Key {
			t.Fatalf("%+v", e)
		}
		return got
	}
	byFlow := cmpopts.SortSlices(func(a, b Result) bool { return bytes.Compare(a.FlowID[:], b.FlowID[:]) < 0 })
	first := b.tell("c1", "signed_up", properties(`{"n":2,"word":"<é>"}`))
	second := b.tell("c1", "signed_up", properties(`{"n":1}`))
	third := b.tell("c1", "signed_up", properties(`{"n":3}`))
	for i, r := range []Recorded{first, second, third} {
		if d := cmp.Diff(r.Results, results(r), byFlow); d != "" || len(r.Results) != 2 {
			t.Errorf("event %d: %s", i, d)
		}
	}
	if second.Results[0].FlowID == second.Results[1].FlowID || one == two {
		t.Fatal("two flows")
	}
	b.settleDown()
	b.pass(100 * 24 * 3600e9)
	b.settleDown()
	if d := cmp.Diff(first.Results, results(first), byFlow); d != "" { // also when the journey has ended
		t.Error(d)
	}

	// Two of one profile in one transaction are told apart.
	pair, err := b.RecordAll(ctx, b.ws, []Event{{ProfileKey: "c2", Name: "signed_up", ID: "x", OccurredAt: noon}, {ProfileKey: "c2", Name: "signed_up", ID: "y", OccurredAt: noon}})
	b.must(err)
	b.run(b.pool, `update trigger_events set received_at = '2026-01-01' where profile_key = 'c2'`) // also when two lots meet in one microsecond
	b.run(b.pool, `update enrollments set enrolled_at = '2026-01-01' where profile_key = 'c2'`)
	for _, r := range pair {
		if d := cmp.Diff(r.Results, results(r), byFlow); d != "" {
			t.Error(d)
		}
	}

	// So are two that are alike in everything but when they were told, and two
	// that were told at once.
	for range 2 {
		r := b.tell("c3", "signed_up", at(noon), properties(`{"n":5}`))
		if d := cmp.Diff(r.Results, results(r), byFlow); d != "" {
			t.Error(d)
		}
	}

	// Who is refused at the entry was enrolled before.
	r := b.tell("nobody", "signed_up", properties(`{"n":9}`))
	for range 3 {
		b.run(b.pool, `update enrollments set resume_at = now() where profile_key = 'nobody' and status = 'active'`)
		b.settleDown()
	}
	for _, got := range results(r) {
		if got.Outcome != Refused || got.Reason != NoProfile || got.EnrollmentID == nil {
			t.Errorf("%+v", got)
		}
	}
	if _, _, err := b.GetEvent(ctx, b.ws, lemma.NewID()); lemma.KindOf(err) != lemma.NotFound {
		t.Fatal(err)
	}
}

// What a flow that is archived by now has refused is still told.
func TestWhatAnArchivedFlowRefused(t *testing.T) {
	b := setup(t, 0)
	flow, other := b.live(untilTomorrow("once", "go")), b.live(untilTomorrow("once", "go"))
	b.tell("c1", "go")
	refused := b.tell("c1", "go")
	b.must(second(b.Archive(bg, b.ws, flow, nil)))
	b.moveAllOver()
	_, got, err := b.GetEvent(bg, b.ws, refused.Key)
	b.must(err)
	if d := cmp.Diff(refused.Results, got, cmpopts.SortSlices(func(a, b Result) bool { return bytes.Compare(a.FlowID[:], b.FlowID[:]) < 0 })); d != "" || len(got) != 2 || flow == other {
		t.Error(d)
	}
}
