package sender

import (
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/notifications"
	"lemma/pgtest"
)

// insertOneUnknown inserts 10 intents in one batch and returns the recipients in the
// order of their calls. Three are accepted, the connection of the next, recipients[3],
// drops after the final dot, and six are not called.
func (b *bundle) insertOneUnknown(maxAttempts int) (ref notifications.Ref, recipients []int) {
	b.T.Helper()
	ref = b.insert(10, 10, maxAttempts)[0]
	recipients = pgtest.Column[int](b.T, b.Pool, `select profile_key::int from notifications where workspace_id = $1 order by ordinal`,
		b.Workspace)
	for _, i := range recipients[3:10] {
		b.carrier.then[addressOf(i)] = []Outcome{NotCalled}
	}
	b.carrier.then[addressOf(recipients[3])] = []Outcome{Unknown}
	return ref, recipients
}

// Batch!NoRowAbandoned: one row whose outcome is unknown keeps no other row
// from being called by another worker at once.
func TestTheRestDoesNotWaitForAnUnknownRow(t *testing.T) {
	for name, c := range map[string]struct {
		attempts int
		reaped   notifications.Counts
		calls    int
		end      notifications.Counts
	}{
		"at_least_once": {2, notifications.Counts{Sent: 9, Pending: 1}, 2, notifications.Counts{Sent: 10}},
		"at_most_once":  {1, notifications.Counts{Sent: 9, Orphaned: 1}, 1, notifications.Counts{Sent: 9, Orphaned: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			ref, recipients := b.insertOneUnknown(c.attempts)
			if again, err := b.sender().Work(bg, ref); err != nil || again == 0 {
				t.Fatalf("again after %s, %v", again, err)
			}
			b.wantCounts(notifications.Counts{Sent: 3, Pending: 6, Processing: 1})
			b.work(b.sender())
			b.wantCounts(notifications.Counts{Sent: 9, Processing: 1})
			if status, _ := b.status(recipients[3]); status != "processing" {
				t.Errorf("unknown, and its status is %s", status)
			}
			b.reap(b.sender())
			b.wantCounts(c.reaped)
			b.work(b.sender())
			b.wantCounts(c.end)
			if n := b.carrier.called(addressOf(recipients[3])); n != c.calls {
				t.Errorf("called %d times", n)
			}
			for i := range 10 {
				if n := b.accepted(i); n > 1 {
					t.Errorf("%s was accepted %d times", addressOf(i), n)
				}
			}
			if n := b.counts().Open; n != 0 {
				t.Errorf("%d batches are open", n)
			}
		})
	}
}

// accepted counts the calls of a recipient that were accepted.
func (b *bundle) accepted(i int) (n int) {
	for k := range b.carrier.called(addressOf(i)) {
		if script := b.carrier.then[addressOf(i)]; k >= len(script) || script[k] == Accepted {
			n++
		}
	}
	return n
}

// Batch!BoundedSendCount: the same for a second attempt, which has no third.
func TestTheRestOfASecondAttemptDoesNotWait(t *testing.T) {
	b := setup(t)
	b.insert(3, 3, 2)
	for i := range 3 {
		b.carrier.then[addressOf(i)] = []Outcome{Unknown, NotCalled}
	}
	b.carrier.then[addressOf(1)] = []Outcome{Unknown, Unknown}
	b.work(b.sender())
	b.reap(b.sender())
	b.work(b.sender())
	b.work(b.sender())
	b.wantCounts(notifications.Counts{Sent: 2, Processing: 1})
	b.reap(b.sender())
	b.work(b.sender())
	b.wantCounts(notifications.Counts{Sent: 2, Orphaned: 1})
	if n := b.carrier.called(addressOf(1)); n != 2 {
		t.Errorf("called %d times", n)
	}
}

// Batch!CountsBalance: uncalled rows are cancelled as soon as their worker gives them
// back, and only the unknown row is in flight.
func TestACancelDoesNotWaitForAnUnknownRow(t *testing.T) {
	b := setup(t)
	ref, recipients := b.insertOneUnknown(2)
	s := b.sender()
	reached, release := pauseAt(s, "called", 1)
	done := make(chan error, 1)
	go func() { _, err := s.Work(bg, ref); done <- err }()
	<-reached
	b.cancel()
	close(release)
	b.Must(<-done)
	b.wantCounts(notifications.Counts{Sent: 3, Cancelled: 6, Processing: 1})
	want := notifications.Cancelled{InFlight: 1, Cancelled: 6}
	if found, err := notifications.ReadCancelled(bg, b.Pool, b.Workspace, b.origin); err != nil || found != want {
		t.Errorf("found %+v, %v; want %+v", found, err, want)
	}
	b.reap(b.sender())
	b.work(b.sender())
	b.wantCounts(notifications.Counts{Sent: 3, Cancelled: 6, Orphaned: 1})
	if n := b.carrier.called(addressOf(recipients[3])); n != 1 {
		t.Errorf("called %d times, the last after the cancel", n)
	}
}

// Batch!NoWindowBehindGate: a batch that is split off behind a closed gate has a
// closed gate.
func TestASplitCopiesTheGate(t *testing.T) {
	b := setup(t)
	ref, _ := b.insertOneUnknown(2)
	s := b.sender()
	at(s, "called", 1, func() { hold(b) })
	if _, err := s.Work(bg, ref); err != nil {
		t.Fatal(err)
	}
	b.reap(b.sender())
	b.work(b.sender())
	b.wantCounts(notifications.Counts{Sent: 3, Pending: 7})
	b.inTx(func(tx pgx.Tx) error { return b.ledger.Unhold(bg, tx, b.Workspace, b.origin) })
	b.work(b.sender())
	b.wantCounts(notifications.Counts{Sent: 10})
}

// A cancel that waits for the commit that splits sees the batch that it makes.
func TestACancelSeesTheSplit(t *testing.T) {
	b := setup(t)
	ref, _ := b.insertOneUnknown(2)
	s := b.sender()
	reached, release := pauseAt(s, "committing", 2)
	worked, cancelled := make(chan error, 1), make(chan struct{})
	go func() { _, err := s.Work(bg, ref); worked <- err }()
	<-reached
	blocker, err := b.Pool.Begin(bg)
	b.Must(err)
	t.Cleanup(func() { _ = blocker.Rollback(bg) })
	if _, err := blocker.Exec(bg, `insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis)
		values ($1, $2, 0, 1, 'accepted', true, 'response')`, b.Workspace, ref.BatchID); err != nil {
		t.Fatal(err)
	}
	close(release) // the commit has the batch, and waits for the primary key of attempts
	b.WaitForLocks(1)
	go func() { defer close(cancelled); b.cancel() }()
	b.WaitForLocks(2)
	b.Must(blocker.Rollback(bg))
	b.Must(<-worked)
	<-cancelled
	b.wantCounts(notifications.Counts{Sent: 3, Cancelled: 6, Processing: 1})
	b.reap(b.sender())
	b.work(b.sender())
	b.wantCounts(notifications.Counts{Sent: 3, Cancelled: 6, Orphaned: 1})
}

// The connection breaks while the commit that splits runs: it splits once.
func TestASplitWhoseAnswerIsLostHappensOnce(t *testing.T) {
	b := setup(t)
	ref, _ := b.insertOneUnknown(2)
	b.loseAnswer(ref, 2)
	b.work(b.sender())
	b.wantCounts(notifications.Counts{Sent: 9, Processing: 1})
	if n := len(b.batches("id <> root_id")); n != 1 {
		t.Errorf("%d batches were split off", n)
	}
}

// Explain of a row that has a batch of its own, and of one that has not.
func TestExplainOfAnUnknownRow(t *testing.T) {
	b := setup(t)
	ref, recipients := b.insertOneUnknown(1)
	if _, err := b.sender().Work(bg, ref); err != nil {
		t.Fatal(err)
	}
	b.work(b.sender())
	e, err := b.ledger.Explain(bg, b.Workspace, b.origin, keyOf(recipients[3]))
	if err != nil || e.Waiting == nil || e.Waiting.For != "answer" || e.Waiting.Until == nil || e.DeliveriesPossible != 1 {
		t.Errorf("%+v, %v", e, err)
	}
	b.reap(b.sender())
	for i, want := range map[int]int{recipients[3]: 1,
		recipients[4]: 0} { // recipients[3] was not in the claim in which the others were called
		e, err := b.ledger.Explain(bg, b.Workspace, b.origin, keyOf(i))
		b.Must(err)
		steps := map[string]int{}
		for _, step := range e.Steps {
			steps[step.Event]++
		}
		if steps["unresolved"] != want || steps["reaped"] != want || steps["claimed"] != 2-want || steps["finished"] != 1-want {
			t.Errorf("%s: %v", addressOf(i), steps)
		}
	}
}

// A row is not erased while the reaper may need it.
func TestAnUnknownRowIsNotErased(t *testing.T) {
	b := setup(t)
	ref, recipients := b.insertOneUnknown(2)
	if _, err := b.sender().Work(bg, ref); err != nil {
		t.Fatal(err)
	}
	b.work(b.sender())
	names := []notifications.Name{{OriginID: b.origin, Key: keyOf(recipients[3])}, {OriginID: b.origin, Key: keyOf(recipients[4])}}
	erase := func() (erased int64, inFlight int) {
		b.inTx(func(tx pgx.Tx) (err error) {
			var left []int
			erased, left, err = b.ledger.Erase(bg, tx, b.Workspace, names, "erased:"+uuid.NewString())
			inFlight = len(left)
			return err
		})
		return erased, inFlight
	}
	if erased, inFlight := erase(); erased != 0 || inFlight != 2 { // batch by batch, not row by row
		t.Errorf("%d erased, %d in flight", erased, inFlight)
	}
	b.reap(b.sender())
	b.work(b.sender())
	if erased, inFlight := erase(); erased != 2 || inFlight != 0 {
		t.Errorf("all has ended: %d erased, %d in flight", erased, inFlight)
	}
}
