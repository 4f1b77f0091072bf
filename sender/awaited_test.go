package sender

import (
	"context"
	"testing"
	"time"

	"lemma"
	"lemma/events"
	"lemma/notifications"
)

const storePublicURL = `insert into settings (name, value, started_at)
	values ('LEMMA_PUBLIC_URL', 'https://lemma.example', now()) on conflict (name, value) do nothing`

// reports makes the provider one that reports events to this installation.
func (b *bundle) reports() {
	b.Exec(storePublicURL)
	b.Exec(`update providers set receives = true where id = $1`, b.provider)
}

// report receives a webhook about notification i: of the attempt, which occurred at.
func (b *bundle) report(i, attempt int, kind events.Type, at time.Time) {
	b.T.Helper()
	_, err := events.Receive(context.Background(), b.Pool, b.Workspace, []events.Received{{ProviderID: b.provider, Report: events.Report{
		Notification: lemma.FormatNotificationID(b.origin, keyOf(i)), Attempt: attempt, Type: kind, OccurredAt: at}}})
	b.Must(err)
}

// pass lets time pass for the calls.
func (b *bundle) pass(minutes int) {
	b.Exec(`update batch_log set at = at - make_interval(mins => $1), until = until - make_interval(mins => $1)`, minutes)
}

// SendingEngine: WaitsForEvents. A row with an unknown outcome waits until events have
// come that are later than its call, while the others of its batch go on.
func TestASecondAttemptWaitsForEvents(t *testing.T) {
	for name, c := range map[string]struct {
		then func(b *bundle)
		want Reaped
	}{
		"none has come":     {func(*bundle) {}, Reaped{Waiting: 1}},
		"only an older one": {func(b *bundle) { b.report(5, 1, events.TypeDelivered, time.Now().Add(-time.Hour)) }, Reaped{Waiting: 1}},
		"only an open":      {func(b *bundle) { b.report(5, 1, events.TypeOpened, time.Now().Add(time.Hour)) }, Reaped{Waiting: 1}},
		"a newer one": {func(b *bundle) { b.report(5, 1, events.TypeDelivered, time.Now().Add(time.Minute)) },
			Reaped{Batches: 1, Retried: 1}},
		"one of tomorrow": {func(b *bundle) { b.report(5, 1, events.TypeDelivered, time.Now().AddDate(0, 0, 1)) },
			Reaped{Waiting: 1}},
		"one of next century": {func(b *bundle) { b.report(5, 1, events.TypeDelivered, time.Now().AddDate(100, 0, 0)) },
			Reaped{Waiting: 1}},
		"one of 1970": {func(b *bundle) { b.report(5, 1, events.TypeDelivered, time.Unix(1, 0)) }, Reaped{Waiting: 1}},
		"one about the row": {func(b *bundle) { b.report(1, 1, events.TypeBounced, time.Now().Add(-time.Hour)) },
			Reaped{Batches: 1, Settled: 1}},
		"none, for too long":  {func(b *bundle) { b.pass(12) }, Reaped{Batches: 1, Orphaned: 1}},
		"none, for less long": {func(b *bundle) { b.pass(10) }, Reaped{Waiting: 1}},
		"a newer one, after the bound": {func(b *bundle) {
			b.pass(12)
			b.report(5, 1, events.TypeDelivered, time.Now().Add(-11*time.Minute))
		}, Reaped{Batches: 1, Retried: 1}},
		"its campaign was cancelled": {func(b *bundle) { b.cancel() }, Reaped{Batches: 1, Orphaned: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.reports()
			b.insert(10, 10, 2)
			b.carrier.then[addressOf(1)] = []Outcome{Unknown, Accepted}
			s := b.sender()
			b.work(s)
			c.then(b)
			for range 2 { // a row that waits is left as it is
				if got := b.reap(s); got != c.want {
					t.Errorf("reaped %+v, want %+v", got, c.want)
				}
				if c.want.Waiting == 0 {
					return
				}
			}
			b.report(5, 1, events.TypeDelivered, time.Now().Add(time.Minute))
			if got := b.reap(s); got.Retried != 1 {
				t.Errorf("reaped %+v after a newer event", got)
			}
			b.work(s)
			b.wantCounts(notifications.Counts{Sent: 10})
		})
	}
}

// Whether events may come is a fact of the provider and of the installation: they have come
// before, or carriers can reach it. The process that reaps has no setting for it.
func TestEventsAreAwaitedOfProvidersThatReport(t *testing.T) {
	for name, c := range map[string]struct {
		receives, publicURL, reported bool
		want                          Reaped
	}{
		"it has reported, and there is no public URL": {true, false, true, Reaped{Waiting: 1}},
		"it has reported":                          {true, true, true, Reaped{Waiting: 1}},
		"it has not reported yet":                  {true, true, false, Reaped{Waiting: 1}},
		"it cannot report: there is no public URL": {true, false, false, Reaped{Batches: 1, Retried: 1}},
		"it reports no acceptances any more":       {false, true, true, Reaped{Batches: 1, Retried: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.insert(10, 10, 2)
			b.carrier.then[addressOf(1)] = []Outcome{Unknown, Accepted}
			b.Exec(`update providers set receives = $2 where id = $1`, b.provider, c.receives)
			if c.publicURL {
				b.Exec(storePublicURL)
			}
			if c.reported {
				b.report(5, 1, events.TypeDelivered, time.Now().Add(-time.Hour))
			}
			s := b.sender()
			b.work(s)
			if got := b.reap(s); got != c.want {
				t.Errorf("reaped %+v, want %+v", got, c.want)
			}
		})
	}
}

// waitsFor is what notification i waits for.
func (b *bundle) waitsFor(i int) string {
	b.T.Helper()
	e, err := b.ledger.Explain(context.Background(), b.Workspace, b.origin, keyOf(i))
	b.Must(err)
	if e.Waiting == nil {
		return ""
	}
	return e.Waiting.For
}

// A row waits for the answer until its lease ends, and then for events: in the batch that
// it was called in, and after it was moved into another, away from rows without a call.
func TestExplainShowsThatEventsAreAwaited(t *testing.T) {
	for name, call := range map[string]func(b *bundle, s *Sender) (row int){
		"left": func(b *bundle, s *Sender) int {
			b.insert(1, 1, 2)
			b.carrier.then[addressOf(0)] = []Outcome{Unknown}
			b.work(s)
			return 0
		},
		"moved": func(b *bundle, _ *Sender) int {
			b.kill(b.insert(30, 30, 2)[0], "opened", 2)
			return b.of(12)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.reports()
			s := b.sender()
			row := call(b, s)
			for _, want := range []string{"answer", "events", "events"} {
				if got := b.waitsFor(row); got != want {
					t.Errorf("it waits for %q, want %q", got, want)
				}
				b.Exec(`update batch_log set until = until - interval '1 hour'`)
				if got := b.reap(s); got.Waiting == 0 {
					t.Errorf("reaped %+v", got)
				}
			}
			b.report(row, 1, events.TypeDelivered, time.Now().Add(time.Minute))
			b.reap(s)
			if got := b.waitsFor(row); got != "" {
				t.Errorf("it waits for %q after its event", got)
			}
		})
	}
}

// of is the notification with an ordinal.
func (b *bundle) of(ordinal int16) int {
	b.T.Helper()
	return b.Count(`select profile_key::bigint from notifications where workspace_id = $1 and ordinal = $2`, b.Workspace, ordinal)
}

// A worker is killed: rows of its window wait for events, and those that were not
// called or have evidence do not wait with them.
func TestOtherRowsDoNotWaitForEvents(t *testing.T) {
	b := setup(t)
	b.reports()
	refs := b.insert(30, 30, 2)
	b.kill(refs[0], "opened", 2)
	b.report(b.of(12), 1, events.TypeDelivered, time.Now().Add(-time.Hour))
	s := b.sender()
	if got := b.reap(s); got != (Reaped{Batches: 1, Freed: 10, Settled: 1, Waiting: 9}) {
		t.Fatalf("reaped %+v", got)
	}
	b.work(s)
	if got := b.statuses(); got["sent"] != 21 || got["processing"] != 9 {
		t.Errorf("statuses are %v", got)
	}
	if got := b.reap(s); got != (Reaped{Waiting: 9}) {
		t.Errorf("reaped %+v", got)
	}
	b.pass(12)
	if got := b.reap(s); got != (Reaped{Batches: 1, Orphaned: 9}) {
		t.Errorf("reaped %+v", got)
	}
	b.wantCounts(notifications.Counts{Sent: 21, Orphaned: 9})
	if got := b.statuses(); got["sent"] != 21 || got["orphaned"] != 9 {
		t.Errorf("statuses are %v", got)
	}
}

// All rows of a window are called; one has evidence. The others go on waiting, and the
// view finds them in their own batch.
func TestRowsWaitBesideOneThatIsSettled(t *testing.T) {
	b := setup(t)
	b.reports()
	refs := b.insert(10, 10, 2)
	b.kill(refs[0], "opened", 1)
	b.report(b.of(3), 1, events.TypeDelivered, time.Now().Add(-time.Hour))
	s := b.sender()
	if got := b.reap(s); got != (Reaped{Batches: 1, Settled: 1, Waiting: 9}) {
		t.Fatalf("reaped %+v", got)
	}
	if got := b.statuses(); got["sent"] != 1 || got["processing"] != 9 {
		t.Errorf("statuses are %v", got)
	}
	b.report(b.of(3), 1, events.TypeDelivered, time.Now().Add(time.Minute))
	if got := b.reap(s); got != (Reaped{Batches: 1, Retried: 9}) {
		t.Errorf("reaped %+v", got)
	}
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 10})
}

// Rows are moved twice, since an event settles one of them in between. Their second
// attempt has the date of the window that called them.
func TestRowsThatWaitAreMovedTwice(t *testing.T) {
	b := setup(t)
	b.reports()
	refs := b.insert(10, 10, 2)
	b.kill(refs[0], "opened", 1)
	s := b.sender()
	for i, want := range []Reaped{{Batches: 1, Settled: 1, Waiting: 9}, {Batches: 1, Settled: 1, Waiting: 8}} {
		b.report(b.of(int16(3+i)), 1, events.TypeDelivered, time.Now().Add(-time.Hour))
		if got := b.reap(s); got != want {
			t.Fatalf("reaped %+v, want %+v", got, want)
		}
	}
	b.report(b.of(3), 1, events.TypeDelivered, time.Now().Add(time.Minute))
	if got := b.reap(s); got != (Reaped{Batches: 1, Retried: 8}) {
		t.Fatalf("reaped %+v", got)
	}
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 10})
}

// calledAt is when the newest window was opened.
func (b *bundle) calledAt() (at time.Time) {
	b.T.Helper()
	b.Must(b.Pool.QueryRow(b.T.Context(), `select max(at) from batch_log where event = 'window'`).Scan(&at))
	return at
}

// The last events of a campaign come right after those of the window before. No others
// come later, and its rows still get their second attempt.
func TestTheLastWindowIsNotOrphaned(t *testing.T) {
	b := setup(t)
	b.reports()
	b.insert(10, 10, 2)
	b.carrier.then[addressOf(1)] = []Outcome{Unknown, Accepted}
	s := b.sender()
	b.work(s)
	b.report(5, 1, events.TypeDelivered, b.calledAt().Add(-10*time.Millisecond))
	if got := b.reap(s); got != (Reaped{Waiting: 1}) {
		t.Errorf("reaped %+v before an event of the window", got)
	}
	b.report(6, 1, events.TypeDelivered, b.calledAt().Add(20*time.Millisecond))
	if got := b.reap(s); got != (Reaped{Batches: 1, Retried: 1}) {
		t.Errorf("reaped %+v", got)
	}
}

// All events come 6 minutes late, and so after the lease. The first one of a window
// releases none of its other rows, since their events are on their way.
func TestAConstantLagReleasesNoRowBeforeItsEvent(t *testing.T) {
	b := setup(t)
	b.reports()
	refs := b.insert(10, 10, 2)
	b.kill(refs[0], "opened", 1) // with a lease of a minute
	s := b.sender()
	b.pass(6)
	b.report(b.of(3), 1, events.TypeDelivered, b.calledAt().Add(time.Second))
	if got := b.reap(s); got != (Reaped{Batches: 1, Settled: 1, Waiting: 9}) {
		t.Fatalf("reaped %+v after the first event", got)
	}
	b.report(b.of(4), 1, events.TypeDelivered, b.calledAt().Add(2*time.Second))
	if got := b.reap(s); got != (Reaped{Batches: 1, Settled: 1, Waiting: 8}) {
		t.Fatalf("reaped %+v after the second event", got)
	}
	b.pass(1) // now the events of calls at the end of the lease have come
	if got := b.reap(s); got != (Reaped{Batches: 1, Retried: 8}) {
		t.Errorf("reaped %+v after the lag", got)
	}
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 10})
}
