package sender

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/events"
	"lemma/notifications"
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
			[]string{"written", "claimed", "window", "unresolved", "reaped", "unknown", "claimed", "window", "unresolved", "reaped",
				"unknown"}, 0, 2},
		{"unknown under at_most_once", 1, []Outcome{Unknown},
			[]string{"written", "claimed", "window", "unresolved", "reaped", "unknown"}, 0, 1},
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
				t.Errorf("deliveries %d to %d of %d: %s; want %d to %d of %d", e.DeliveriesAtLeast, e.DeliveriesAtMost, e.Bound,
					e.Summary, c.least, c.most, c.maxAttempts)
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
	b.exec(`insert into template_versions (workspace_id, template_id, version, subject, html, text, variables)
		values ($1, $2, 2, 'New', 'New', 'New', '{}')`, b.ws, b.provider)
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

// A resolution does not make an orphan callable.
func TestAResolvedOrphanIsNotCalledAgain(t *testing.T) {
	b := setup(t)
	b.carrier.then[address(0)] = []Outcome{Unknown}
	b.insert(1, 1, 1)
	s := b.sender()
	b.work(s)
	b.reap(s)
	r := notifications.Resolution{Resolution: "not_sent", APIKeyID: lemma.NewID()}
	if _, err := b.ledger.Resolve(bg, b.ws, b.origin, keyOf(0), r); err != nil {
		t.Fatal(err)
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
