package sender

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/events"
	"lemma/notifications"
	"lemma/pgtest"
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
			b.carrier.then[addressOf(0)] = c.calls
			b.insert(1, 1, c.maxAttempts)
			s := b.sender()
			for range 3 {
				b.makeDue()
				b.work(s)
				b.reap(s)
			}
			e, err := b.ledger.Explain(context.Background(), b.Workspace, b.origin, keyOf(0))
			b.Must(err)
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

// recipients are those of the batch's rows, in the order of their ordinals.
func (b *bundle) recipients() []int {
	b.T.Helper()
	return pgtest.Column[int](b.T, b.Pool, `select profile_key::int from notifications where workspace_id = $1 order by ordinal`, b.Workspace)
}

// Explain leaves out the batches of other rows, also when a window of them spans the
// row's ordinal.
func TestExplainLeavesOutOtherRows(t *testing.T) {
	b := setup(t)
	b.insert(5, 5, 2)
	recipients := b.recipients()
	b.carrier.then[addressOf(recipients[1])] = []Outcome{Unknown, NotAccepted}
	b.carrier.then[addressOf(recipients[2])] = []Outcome{NotAccepted}
	b.carrier.then[addressOf(recipients[3])] = []Outcome{Unknown, Unknown}
	b.carrier.then[addressOf(recipients[4])] = []Outcome{Rejected}
	for range 3 { // the retry batch has the rows 1 and 3, and row 3 is split from it
		b.work(b.sender())
		b.reap(b.sender())
		b.makeDue()
	}
	b.wantCounts(notifications.Counts{Sent: 3, Failed: 1, Orphaned: 1})
	for ordinal, want := range [][]string{
		{"written", "claimed", "window", "accepted", "deferred"},
		{"written", "claimed", "window", "unresolved", "deferred", "reaped", "unknown",
			"claimed", "window", "evidence", "deferred", "claimed", "window", "accepted", "finished"},
		{"written", "claimed", "window", "evidence", "deferred", "claimed", "window", "accepted", "finished"},
		{"written", "claimed", "window", "unresolved", "deferred", "reaped", "unknown",
			"claimed", "window", "unresolved", "deferred", "reaped", "unknown"},
		{"written", "claimed", "window", "rejected", "deferred"},
	} {
		e, err := b.ledger.Explain(bg, b.Workspace, b.origin, keyOf(recipients[ordinal]))
		b.Must(err)
		var got []string
		for _, step := range e.Steps {
			got = append(got, step.Event)
		}
		slices.Sort(got)
		slices.Sort(want)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("the steps of row %d differ (-want +got): %s", ordinal, d)
		}
		if n := b.carrier.called(addressOf(recipients[ordinal])); e.DeliveriesAtMost > n {
			t.Errorf("row %d was called %d times: %d deliveries at most: %s", ordinal, n, e.DeliveriesAtMost, e.Summary)
		}
	}
}

// A row whose outcome is unknown was called once, although a window of a retry batch
// spans it.
func TestExplainCountsNoCallOfAnotherRow(t *testing.T) {
	b := setup(t)
	b.insert(10, 10, 2)
	recipients := b.recipients()
	b.carrier.then[addressOf(recipients[1])] = []Outcome{Unknown}
	b.carrier.then[addressOf(recipients[9])] = []Outcome{Unknown}
	b.carrier.then[addressOf(recipients[5])] = []Outcome{NotAccepted, Unknown}
	b.work(b.sender())
	b.reap(b.sender())
	b.work(b.sender()) // the second attempts of 1 and 9
	b.makeDue()
	b.work(b.sender()) // 5 again
	e, err := b.ledger.Explain(bg, b.Workspace, b.origin, keyOf(recipients[5]))
	if err != nil || e.DeliveriesAtMost != 1 || e.DeliveriesPossible != 2 || e.Bound != 2 {
		t.Errorf("at most %d, possible %d, bound %d: %s, %v", e.DeliveriesAtMost, e.DeliveriesPossible, e.Bound, e.Summary, err)
	}
}

// A window that spans a row that could not be rendered did not call it.
func TestExplainOfARowThatAWindowLeavesOut(t *testing.T) {
	b := setup(t)
	b.insert(3, 3, 2)
	recipients := b.recipients()
	b.Exec(`update template_versions set subject = '{{ name | append: "" }}'`)
	b.Exec(`update notifications set payload = '{"name":""}' where workspace_id = $1 and ordinal = 1`, b.Workspace)
	b.work(b.sender())
	b.wantCounts(notifications.Counts{Sent: 2, Skipped: 1})
	e, err := b.ledger.Explain(bg, b.Workspace, b.origin, keyOf(recipients[1]))
	if err != nil || slices.ContainsFunc(e.Steps, func(s notifications.Step) bool { return s.Event == "window" }) {
		t.Errorf("%+v, %v", e.Steps, err)
	}
}

// A late answer that was stored is a step, and changes the number of deliveries.
func TestExplainShowsLateEvidence(t *testing.T) {
	b := setup(t)
	refs := b.insert(1, 1, 2)
	b.carrier.then[addressOf(0)] = []Outcome{Unknown, Unknown}
	s := b.sender()
	b.work(s)
	b.reap(s)
	b.work(s)
	b.reap(s)
	b.record(refs[0], 0, events.Accepted)
	e, err := b.ledger.Explain(context.Background(), b.Workspace, b.origin, keyOf(0))
	if err != nil || e.DeliveriesAtLeast != 1 || e.DeliveriesAtMost != 2 || e.Notification.Status != "orphaned" {
		t.Errorf("%+v, %v", e, err)
	}
}

// The second message equals the first, except for the number of the attempt and the
// time for it, which are not sent; also when the template has a newer version by then.
func TestTheSecondMessageIsTheFirst(t *testing.T) {
	b := setup(t)
	b.carrier.then[addressOf(0)] = []Outcome{Unknown, Accepted}
	b.insert(1, 1, 2)
	b.work(b.sender())
	b.nextSecond(addressOf(0))
	b.Exec(`insert into template_versions (workspace_id, template_id, version, subject, html, text, variables)
		values ($1, $2, 2, 'New', 'New', 'New', '{}')`, b.Workspace, b.provider)
	b.Exec(`update templates set version = 2 where workspace_id = $1`, b.Workspace)
	other := b.sender()
	b.reap(other)
	b.work(other)
	messages := b.carrier.sent[addressOf(0)]
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
	b.carrier.then[addressOf(0)] = []Outcome{Unknown}
	b.insert(1, 1, 1)
	s := b.sender()
	b.work(s)
	b.reap(s)
	r := notifications.Resolution{Resolution: "not_sent", APIKeyID: lemma.NewID()}
	if _, err := b.ledger.Resolve(bg, b.Workspace, b.origin, keyOf(0), r); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		b.makeDue()
		b.work(s)
		b.reap(s)
	}
	b.wantCalledOnce(1)
}

// A worker is paused after its call, and its answer is stored after another worker has
// opened the window of the second attempt. The other one crashes before it calls, so
// the reaper settles the second attempt by evidence of the first: there was one call.
func TestEvidenceOfTheFirstAttemptIsOneDelivery(t *testing.T) {
	b := setup(t)
	refs := b.insert(1, 1, 2)
	answer := b.pausedWork(b.sender(), refs[0], "called", 1)
	b.reap(b.sender())
	retry, second := b.batches("attempt = 2")[0], b.sender()
	opened := stop(second, "opened", 1)
	go func() { _, _ = second.Work(bg, retry) }()
	<-opened
	answer()
	b.reap(b.sender())
	b.wantCounts(notifications.Counts{Sent: 1})
	e, want := b.explain(), "sent: the carrier accepted it on attempt 1; it may have been delivered twice"
	if b.carrier.called(addressOf(0)) != 1 || e.Summary != want || e.DeliveriesAtLeast != 1 || e.DeliveriesAtMost != 2 ||
		e.Notification.Attempts != 2 { // the second may have been made
		t.Errorf("%d deliveries at least, %d at most, %d attempts: %s\nwant %s", e.DeliveriesAtLeast, e.DeliveriesAtMost,
			e.Notification.Attempts, e.Summary, want)
	}
}
