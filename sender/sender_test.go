package sender

import (
	"context"
	"fmt"
	"math/rand"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma/notifications"
)

func TestEveryRecipientIsCalledOnce(t *testing.T) {
	b := setup(t)
	b.insert(105, 40, 2)
	b.work(b.sender())
	b.wantCalledOnce(105)
	b.wantCounts(notifications.Counts{Sent: 105})
}

func TestAJobThatRunsTwiceIsHarmless(t *testing.T) {
	b := setup(t)
	refs := b.insert(20, 20, 2)
	var workers sync.WaitGroup
	for range 6 {
		s := b.sender()
		workers.Go(func() {
			if _, err := s.Work(context.Background(), refs[0]); err != nil {
				t.Error(err)
			}
		})
	}
	workers.Wait()
	if n := b.carrier.called(addressOf(3)); n != 1 {
		t.Errorf("called %d times", n)
	}
	b.wantCounts(notifications.Counts{Sent: 20})
}

// The reaper's table, by recipient.
func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		name           string
		maxAttempts    int
		calls          []Outcome
		status, reason string
	}{
		{"accepted at once", 2, []Outcome{Accepted}, "sent", ""},
		{"rejected at once", 2, []Outcome{Rejected}, "failed", "scripted"},
		{"not accepted, then accepted: no attempt is spent", 1, []Outcome{NotAccepted, NotAccepted, Accepted}, "sent", ""},
		{"unknown, then accepted", 2, []Outcome{Unknown, Accepted}, "sent", ""},
		{"unknown twice: it is not called again", 2, []Outcome{Unknown, Unknown}, "orphaned", "no_answer"},
		{"unknown, then rejected: the first may have arrived", 2, []Outcome{Unknown, Rejected}, "orphaned", "unknown_then_rejected"},
		{"unknown, not accepted, accepted", 2, []Outcome{Unknown, NotAccepted, Accepted}, "sent", ""},
		{"unknown under at_most_once", 1, []Outcome{Unknown}, "orphaned", "no_answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t)
			b.carrier.then[addressOf(0)] = c.calls
			b.insert(3, 3, c.maxAttempts)
			s := b.sender()
			for range 6 {
				b.makeDue()
				b.work(s)
				b.reap(s)
			}
			if status, reason := b.status(0); status != c.status || reason != c.reason {
				t.Errorf("it is %s (%s), want %s (%s)", status, reason, c.status, c.reason)
			}
			if n := b.carrier.called(addressOf(0)); n != len(c.calls) {
				t.Errorf("it was called %d times, want %d", n, len(c.calls))
			}
			if n := b.carrier.called(addressOf(1)); n != 1 {
				t.Errorf("the other recipient was called %d times", n)
			}
			if counts := b.counts(); !counts.Balanced || counts.Open != 0 {
				t.Errorf("counts: %+v", counts)
			}
		})
	}
}

func TestRefusedForTooLongFails(t *testing.T) {
	b := setup(t)
	b.insert(1, 1, 2)
	s := b.sender(func(c *Config) { c.MaxDeferrals = 3; c.CircuitAfter = 1000 })
	for range 20 {
		b.carrier.then[addressOf(0)] = append(b.carrier.then[addressOf(0)], NotAccepted)
	}
	for range 8 {
		b.makeDue()
		b.work(s)
	}
	if n := b.carrier.called(addressOf(0)); n != 4 {
		t.Errorf("called %d times, want 4", n)
	}
	b.wantCounts(notifications.Counts{Failed: 1})
}

func TestDrainLeavesNothingUnknown(t *testing.T) {
	b := setup(t)
	refs := b.insert(50, 50, 2)
	s := b.sender()
	s.Hook = func(_ context.Context, at string, _ notifications.Ref) {
		if at == "opened" {
			s.Drain()
		}
	}
	if _, err := s.Work(context.Background(), refs[0]); err != nil {
		t.Fatal(err)
	}
	b.wantCounts(notifications.Counts{Sent: 10, Pending: 40})
	if r := b.reap(s); r.Batches != 0 {
		t.Errorf("a lease was left: %+v", r)
	}
	b.work(b.sender())
	b.wantCounts(notifications.Counts{Sent: 50})
	if n := len(b.batches("attempt = 2")); n != 0 {
		t.Errorf("%d second attempts", n)
	}
}

// After a cancel has committed, no further window opens.
func TestCancelStopsTheNextWindow(t *testing.T) {
	b := setup(t)
	refs := b.insert(50, 50, 2)
	b.insertMore(t, 50, 20)
	s := b.sender()
	reached, release := pauseAt(s, "opened", 2)
	done := make(chan error)
	go func() { _, err := s.Work(context.Background(), refs[0]); done <- err }()
	<-reached
	ctx := context.Background()
	want := notifications.Cancelled{InFlight: 10, Cancelled: 50}
	if would, err := notifications.ReadCancelled(ctx, b.Pool, b.Workspace, b.origin); err != nil || would != want {
		t.Errorf("a cancel would find %+v, %v; want %+v", would, err, want)
	}
	if found := b.cancel(); found != want {
		t.Errorf("a cancel found %+v, want %+v", found, want)
	}
	close(release)
	b.Must(<-done)
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 20, Cancelled: 50})
}

func (b *bundle) cancel() (found notifications.Cancelled) {
	b.T.Helper()
	err := pgx.BeginFunc(context.Background(), b.Pool, func(tx pgx.Tx) (err error) {
		found, err = b.ledger.Cancel(context.Background(), tx, b.Workspace, b.origin)
		return err
	})
	b.Must(err)
	return found
}

func (b *bundle) insertMore(t *testing.T, from, n int) {
	t.Helper()
	ctx := context.Background()
	var all []notifications.Recipient
	for i := from; i < from+n; i++ {
		all = append(all, notifications.Recipient{Key: keyOf(i), ProfileKey: fmt.Sprint(i), Address: addressOf(i), Payload: `{"name":"x"}`})
	}
	err := pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error {
		_, err := b.ledger.Insert(ctx, tx,
			notifications.Chunk{WorkspaceID: b.Workspace, OriginID: b.origin, ProviderID: b.provider, ContentID: b.origin,
				Run: 1, MaxAttempts: 2, BatchSize: 500, Recipients: all})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestCircuitPausesTheCampaign(t *testing.T) {
	b := setup(t)
	b.insert(60, 60, 2)
	for i := range 60 {
		b.carrier.then[addressOf(i)] = []Outcome{Rejected}
	}
	s := b.sender(func(c *Config) { c.CircuitAfter = 25 })
	b.work(s)
	if len(b.paused) != 1 || b.paused[0] != "provider_refused" {
		t.Errorf("paused %v", b.paused)
	}
	b.wantCounts(notifications.Counts{Failed: 30, Pending: 30}) // the window that was opened meanwhile was given back
}

func TestExpiredBatchesAreSkipped(t *testing.T) {
	b := setup(t)
	b.insert(10, 10, 2)
	b.Exec(`update batches set expires_at = now() - interval '1 second' where workspace_id = $1`, b.Workspace)
	b.work(b.sender())
	b.wantCounts(notifications.Counts{Skipped: 10})
	if by := b.counts().SkippedBy["expired"]; by != 10 {
		t.Errorf("%d expired", by)
	}
}

// Whatever happens in whatever order, the counts balance and agree with the view, and
// no recipient is called a third time.
func TestCountsBalanceWhateverHappens(t *testing.T) {
	for seed := range int64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			b := setup(t)
			r := rand.New(rand.NewSource(seed))
			for i := range 120 {
				for range 8 {
					b.carrier.then[addressOf(i)] = append(b.carrier.then[addressOf(i)],
						[]Outcome{Accepted, Accepted, Accepted, Rejected, NotAccepted, Unknown, Unknown, NotCalled}[r.Intn(8)])
				}
			}
			attempts := 1 + r.Intn(2)
			b.insert(120, 30, attempts)
			s := b.sender(func(c *Config) { c.CircuitAfter = 10000; c.MaxDeferrals = 2 })
			for range 12 {
				b.makeDue()
				b.work(s)
				b.check(t, attempts)
				if r.Intn(2) == 0 {
					b.reap(s)
					b.check(t, attempts)
				}
			}
		})
	}
}

// check counts the calls that may have been accepted: at most as many as attempts.
func (b *bundle) check(t *testing.T, attempts int) {
	t.Helper()
	b.wantCounts(b.counts())
	most := 0
	for i := range 120 {
		accepted := 0
		for n, o := range b.carrier.then[addressOf(i)] {
			if n < b.carrier.called(addressOf(i)) && (o == Unknown || o == Accepted) {
				accepted++
			}
		}
		most = max(most, accepted)
	}
	if most > attempts {
		t.Errorf("a message may have been accepted %d times in %d attempts", most, attempts)
	}
}

func TestTimesThatDoNotFitAreRefused(t *testing.T) {
	if _, err := New(Deps{}, Config{Lease: 30 * time.Second, CallTimeout: 25 * time.Second}); err == nil {
		t.Error("a call may outlive its lease")
	}
}

// Some systems write the year 2999 for never. A duration holds 292 years.
func TestADeadlineThatIsFarAway(t *testing.T) {
	b := setup(t)
	b.insert(2, 2, 2)
	b.Exec(`update batches set expires_at = '2999-12-31' where workspace_id = $1`, b.Workspace)
	b.work(b.sender())
	b.wantCounts(notifications.Counts{Sent: 2})
}
