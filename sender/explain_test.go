package sender

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/events"
	"lemma/notifications"
	"lemma/page"
)

// The steps and deliveries of one notification after each sequence of calls.
func TestExplain(t *testing.T) {
	for _, c := range []struct {
		name        string
		maxAttempts int
		calls       []Outcome
		events      []string
		least, most int
	}{
		{"sent", 2, []Outcome{Accepted}, []string{"written", "claimed", "window", "accepted", "finished"}, 1, 1},
		{"rejected", 2, []Outcome{Rejected}, []string{"written", "claimed", "window", "rejected", "finished"}, 0, 0},
		{"refused for now, then sent", 2, []Outcome{NotAccepted, Accepted},
			[]string{"written", "claimed", "window", "evidence", "deferred", "claimed", "window", "accepted", "finished"}, 1, 1},
		{"unknown, then sent", 2, []Outcome{Unknown, Accepted},
			[]string{"written", "claimed", "window", "unresolved", "reaped", "unknown", "claimed", "window", "accepted", "finished"}, 1, 2},
		{"unknown twice", 2, []Outcome{Unknown, Unknown},
			[]string{"written", "claimed", "window", "unresolved", "reaped", "unknown", "claimed", "window", "unresolved", "reaped", "unknown"}, 0, 2},
		{"unknown under at_most_once", 1, []Outcome{Unknown}, []string{"written", "claimed", "window", "unresolved", "reaped", "unknown"}, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t)
			b.carrier.then[address(0)] = c.calls
			b.insert(1, 1, c.maxAttempts)
			s := b.sender()
			for range 3 {
				b.makeDue()
				b.work(s)
				b.reap(s)
			}
			e, err := b.ledger.Explain(context.Background(), b.ws, b.origin, keyOf(0))
			if err != nil {
				t.Fatal(err)
			}
			counts := map[string]int{}
			for _, step := range e.Steps {
				counts[step.Event]++
			}
			want := map[string]int{}
			for _, name := range c.events {
				want[name]++
			}
			if d := cmp.Diff(want, counts); d != "" {
				t.Errorf("steps differ (-want +got): %s", d)
			}
			if e.DeliveriesAtLeast != c.least || e.DeliveriesAtMost != c.most || e.Bound != c.maxAttempts {
				t.Errorf("deliveries %d to %d of %d: %s; want %d to %d of %d", e.DeliveriesAtLeast, e.DeliveriesAtMost, e.Bound, e.Summary, c.least, c.most, c.maxAttempts)
			}
		})
	}
}

// A late answer that was stored is a step, and changes the number of deliveries.
func TestExplainShowsLateEvidence(t *testing.T) {
	b := setup(t)
	refs := b.insert(1, 1, 2)
	b.carrier.then[address(0)] = []Outcome{Unknown, Unknown}
	s := b.sender()
	b.work(s)
	b.reap(s)
	b.work(s)
	b.reap(s)
	b.record(refs[0], 0, events.Accepted)
	e, err := b.ledger.Explain(context.Background(), b.ws, b.origin, keyOf(0))
	if err != nil || e.DeliveriesAtLeast != 1 || e.DeliveriesAtMost != 2 || e.Notification.Status != "orphaned" {
		t.Errorf("%+v, %v", e, err)
	}
}

// The second message equals the first, except for the number of the attempt and the
// time for it, which are not sent; also when the template has a newer version by then.
func TestTheSecondMessageIsTheFirst(t *testing.T) {
	b := setup(t)
	b.carrier.then[address(0)] = []Outcome{Unknown, Accepted}
	b.insert(1, 1, 2)
	b.work(b.sender())
	nextSecond()
	b.exec(`insert into template_versions (workspace_id, template_id, version, subject, html, text, variables) values ($1, $2, 2, 'New', 'New', 'New', '{}')`, b.ws, b.provider)
	b.exec(`update templates set version = 2 where workspace_id = $1`, b.ws)
	other := b.sender()
	b.reap(other)
	b.work(other)
	messages := b.carrier.sent[address(0)]
	if len(messages) != 2 || messages[0].Attempt != 1 || messages[1].Attempt != 2 {
		t.Fatalf("%d messages", len(messages))
	}
	messages[1].Attempt, messages[1].StartBy = 1, messages[0].StartBy
	if d := cmp.Diff(messages[0], messages[1]); d != "" || messages[0].Subject != "Hi N0" {
		t.Errorf("the second message differs: %s", d)
	}
}

func TestResolve(t *testing.T) {
	b := setup(t)
	b.carrier.then[address(0)] = []Outcome{Unknown}
	b.insert(2, 2, 1)
	s := b.sender()
	b.work(s)
	b.reap(s)
	ctx := context.Background()
	r := notifications.Resolution{Resolution: "sent", Note: "found in the server's log", APIKeyID: lemma.NewID()}
	if _, err := b.ledger.Resolve(ctx, b.ws, b.origin, keyOf(1), r); lemma.KindOf(err) != lemma.WrongStatus {
		t.Errorf("resolved one that was sent: %v", err)
	}
	n, err := b.ledger.Resolve(ctx, b.ws, b.origin, keyOf(0), r)
	if err != nil || n.Status != "orphaned" || n.Resolution == nil || *n.Resolution != "sent" {
		t.Errorf("%+v, %v", n, err)
	}
	r.Resolution = "not_sent"
	if _, err := b.ledger.Resolve(ctx, b.ws, b.origin, keyOf(0), r); lemma.KindOf(err) != lemma.WrongStatus {
		t.Errorf("the first resolution is not final: %v", err)
	}
	if _, err := b.ledger.Resolve(ctx, lemma.NewID(), b.origin, keyOf(0), r); lemma.KindOf(err) != lemma.NotFound {
		t.Errorf("another workspace's was found: %v", err)
	}
	for range 3 {
		b.makeDue()
		b.work(s)
		b.reap(s)
	}
	if n := b.carrier.called(address(0)); n != 1 {
		t.Errorf("an orphan was called again: %d", n)
	}
}

// Every filter finds the same rows as a list of all, page by page.
func TestListFilters(t *testing.T) {
	b := setup(t)
	for i := range 40 {
		b.carrier.then[address(i)] = [][]Outcome{{Accepted}, {Rejected}, {Unknown}, {NotAccepted, NotAccepted}}[i%4]
	}
	b.insert(40, 7, 1)
	s := b.sender()
	b.work(s)
	b.reap(s)
	ctx := context.Background()
	all := b.list(t, notifications.Filter{OriginID: &b.origin}, 7)
	if len(all) != 40 {
		t.Fatalf("%d in all", len(all))
	}
	for _, status := range []string{"sent", "failed", "orphaned", "pending", "processing", "skipped", "cancelled"} {
		want := map[string]bool{}
		for key, st := range all {
			if st == status {
				want[key] = true
			}
		}
		for _, f := range []notifications.Filter{{OriginID: &b.origin, Status: status}, {Status: status}} {
			got := b.list(t, f, 3)
			if len(got) != len(want) {
				t.Errorf("%s: found %d, want %d", status, len(got), len(want))
			}
		}
	}
	if got := b.list(t, notifications.Filter{OriginID: &b.origin, Address: " P7@shop.example"}, 5); len(got) != 1 {
		t.Errorf("by address: %v", got)
	}
	if got := b.list(t, notifications.Filter{OriginID: &b.origin, ProfileKey: "9"}, 5); len(got) != 1 {
		t.Errorf("by profile: %v", got)
	}
	if _, _, err := b.ledger.List(ctx, b.ws, notifications.Filter{ProfileKey: "9"}, page.Query{Limit: 5}); lemma.KindOf(err) != lemma.Invalid {
		t.Errorf("a search without campaign or flow: %v", err)
	}
}

func (b *bundle) list(t *testing.T, f notifications.Filter, limit int) map[string]string {
	t.Helper()
	found := map[string]string{}
	for page := (page.Query{Limit: limit}); ; {
		rows, next, err := b.ledger.List(context.Background(), b.ws, f, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range rows {
			found[n.Key.String()] = n.Status
		}
		if page.Cursor = next; next == "" {
			return found
		}
	}
}
