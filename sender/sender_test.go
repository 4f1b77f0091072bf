package sender

import (
	"context"
	"fmt"
	"math/rand"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma/events"
	"lemma/notifications"
)

func TestEveryRecipientIsCalledOnce(t *testing.T) {
	b := setup(t)
	b.insert(105, 40, 2)
	b.work(b.sender())
	for i := range 105 {
		if n := b.carrier.called(address(i)); n != 1 {
			t.Errorf("%s was called %d times", address(i), n)
		}
	}
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
	if n := b.carrier.called(address(3)); n != 1 {
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
			b.carrier.then[address(0)] = c.calls
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
			if n := b.carrier.called(address(0)); n != len(c.calls) {
				t.Errorf("it was called %d times, want %d", n, len(c.calls))
			}
			if n := b.carrier.called(address(1)); n != 1 {
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
		b.carrier.then[address(0)] = append(b.carrier.then[address(0)], NotAccepted)
	}
	for range 8 {
		b.makeDue()
		b.work(s)
	}
	if n := b.carrier.called(address(0)); n != 4 {
		t.Errorf("called %d times, want 4", n)
	}
	b.wantCounts(notifications.Counts{Failed: 1})
}

// stop makes a sender's worker stop for ever at a point, as a crash would.
func stop(s *Sender, at string, nth int) (reached chan struct{}) {
	reached = make(chan struct{})
	var mu sync.Mutex
	n := 0
	s.Hook = func(ctx context.Context, point string, _ notifications.Ref) {
		mu.Lock()
		defer mu.Unlock()
		if point != at {
			return
		}
		if n++; n == nth {
			close(reached)
			mu.Unlock()
			<-ctx.Done()
			select {}
		}
	}
	return reached
}

// pauseAt stops a worker at a point until release is closed.
func pauseAt(s *Sender, at string, nth int) (reached, release chan struct{}) {
	reached, release = make(chan struct{}), make(chan struct{})
	n := 0
	s.Hook = func(_ context.Context, point string, _ notifications.Ref) {
		if point != at {
			return
		}
		if n++; n == nth {
			close(reached)
			<-release
		}
	}
	return reached, release
}

// A worker that is killed leaves one window unknown, at whatever point.
func TestACrashCostsOneWindow(t *testing.T) {
	for _, c := range []struct {
		at            string
		nth           int
		retried, sent int64
	}{
		{"claimed", 1, 0, 50},
		{"opened", 1, 10, 50}, // no row was called, but that cannot be known
		{"called", 2, 10, 50}, // the first window was committed when the second was opened
		{"opened", 3, 10, 50},
	} {
		t.Run(fmt.Sprintf("%s %d", c.at, c.nth), func(t *testing.T) {
			b := setup(t)
			refs := b.insert(50, 50, 2)
			killed := b.sender()
			reached := stop(killed, c.at, c.nth)
			go func() { _, _ = killed.Work(context.Background(), refs[0]) }()
			<-reached
			s := b.sender()
			if r := b.reap(s); int64(r.Retried) != c.retried || r.Batches != 1 {
				t.Errorf("reaped %+v, want %d retried", r, c.retried)
			}
			b.work(s)
			b.wantCounts(notifications.Counts{Sent: c.sent})
			twice := int64(0)
			for i := range 50 {
				if n := b.carrier.called(address(i)); n > 2 || n < 1 {
					t.Errorf("%s was called %d times", address(i), n)
				} else if n == 2 {
					twice++
				}
			}
			if twice > c.retried {
				t.Errorf("%d were called twice, of %d unknown", twice, c.retried)
			}
		})
	}
}

// A worker is paused past its lease, the reaper decides, the worker continues: known
// outcomes are kept, and no row is called again whose acceptance is known.
func TestALostLeaseKeepsWhatIsKnown(t *testing.T) {
	b := setup(t)
	refs := b.insert(10, 10, 2)
	slow, s := b.sender(), b.sender()
	reached, release := pauseAt(slow, "committing", 2)
	done := make(chan error)
	go func() { _, err := slow.Work(context.Background(), refs[0]); done <- err }()
	<-reached
	if r := b.reap(s); r.Retried != 10 {
		t.Fatalf("reaped %+v", r)
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	b.work(s) // the retry batch
	for i := range 10 {
		if n := b.carrier.called(address(i)); n != 1 {
			t.Errorf("%s was called %d times although its acceptance was known", address(i), n)
		}
	}
	b.wantCounts(notifications.Counts{Sent: 10})
}

// The same for rejections: a rejected row is not called again.
func TestALostLeaseKeepsRejections(t *testing.T) {
	b := setup(t)
	refs := b.insert(10, 10, 2)
	for i := range 10 {
		b.carrier.then[address(i)] = []Outcome{Rejected, Accepted}
	}
	slow, s := b.sender(), b.sender()
	reached, release := pauseAt(slow, "committing", 2)
	done := make(chan error)
	go func() { _, err := slow.Work(context.Background(), refs[0]); done <- err }()
	<-reached
	b.reap(s)
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	b.work(s) // the retry batch
	if n := b.carrier.called(address(3)); n != 1 {
		t.Errorf("called %d times although its rejection was known", n)
	}
	b.wantCounts(notifications.Counts{Failed: 10})
}

// Retry batches keep the ordinals of their root, by which attempts identify a
// notification.
func TestRetryBatchesKeepOrdinals(t *testing.T) {
	b := setup(t)
	refs := b.insert(30, 30, 2)
	for range 2 {
		killed := b.sender()
		reached := stop(killed, "called", 1)
		go func() { _, _ = killed.Work(context.Background(), refs[0]) }()
		<-reached
		if r := b.reap(b.sender()); r.Retried != 10 {
			t.Fatalf("reaped %+v", r)
		}
		b.makeDue()
	}
	if n := len(b.batches("attempt = 2")); n != 2 {
		t.Fatalf("%d retry batches", n)
	}
	b.work(b.sender())
	b.wantCounts(notifications.Counts{Sent: 30})
	rows, _ := b.pool.Query(context.Background(), `
		select n.address from attempts a join notifications n on n.workspace_id = a.workspace_id and n.batch_id = a.batch_id and n.ordinal = a.ordinal
		where a.workspace_id = $1 and a.attempt = 2`, b.ws)
	second, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(second) != 20 {
		t.Fatalf("%d second attempts, %v", len(second), err)
	}
	for _, to := range second {
		if n := b.carrier.called(to); n != 2 {
			t.Errorf("%s has a second attempt, and was called %d times", to, n)
		}
	}
}

// The second attempt is over before the first worker continues: its commit changes no
// row that has ended.
func TestALateCommitChangesNoTerminalRow(t *testing.T) {
	b := setup(t)
	refs := b.insert(10, 10, 2)
	slow, s := b.sender(), b.sender()
	reached, release := pauseAt(slow, "committing", 2)
	done := make(chan error)
	go func() { _, err := slow.Work(context.Background(), refs[0]); done <- err }()
	<-reached
	b.reap(s)
	b.work(s)
	before := b.dump()
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if after := b.dump(); after != before {
		t.Errorf("terminal rows changed:\n%s\n%s", before, after)
	}
	b.wantCounts(notifications.Counts{Sent: 10})
}

func (b *bundle) dump() string {
	b.t.Helper()
	var s string
	err := b.pool.QueryRow(context.Background(), `
		select (select string_agg(a::text, E'\n' order by batch_id, ordinal, attempt) from attempts a where workspace_id = $1)
			|| (select string_agg(b::text, E'\n' order by id) from batches b where workspace_id = $1)`, b.ws).Scan(&s)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func TestTwoReapersMakeOneRetry(t *testing.T) {
	b := setup(t)
	refs := b.insert(30, 30, 2)
	killed := b.sender()
	reached := stop(killed, "called", 1)
	go func() { _, _ = killed.Work(context.Background(), refs[0]) }()
	<-reached
	b.expireLeases()
	var reapers sync.WaitGroup
	for range 4 {
		s := b.sender()
		reapers.Go(func() {
			if _, err := s.Reap(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	reapers.Wait()
	if n := len(b.batches("attempt = 2")); n != 1 {
		t.Errorf("%d retry batches", n)
	}
	b.work(b.sender())
	b.wantCounts(notifications.Counts{Sent: 30})
}

func TestTheReaperLeavesALivingLeaseAlone(t *testing.T) {
	b := setup(t)
	refs := b.insert(10, 10, 2)
	slow := b.sender()
	reached, release := pauseAt(slow, "opened", 1)
	done := make(chan error)
	go func() { _, err := slow.Work(context.Background(), refs[0]); done <- err }()
	<-reached
	if r, err := b.sender().Reap(context.Background()); err != nil || r.Batches != 0 {
		t.Errorf("reaped %+v, %v", r, err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	b.wantCounts(notifications.Counts{Sent: 10})
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
	if would, err := notifications.ReadCancelled(ctx, b.pool, b.ws, b.origin); err != nil || would != want {
		t.Errorf("a cancel would find %+v, %v; want %+v", would, err, want)
	}
	if found := b.cancel(); found != want {
		t.Errorf("a cancel found %+v, want %+v", found, want)
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 20, Cancelled: 50})
}

func (b *bundle) cancel() (found notifications.Cancelled) {
	b.t.Helper()
	err := pgx.BeginFunc(context.Background(), b.pool, func(tx pgx.Tx) (err error) {
		found, err = b.ledger.Cancel(context.Background(), tx, b.ws, b.origin)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return found
}

func (b *bundle) insertMore(t *testing.T, from, n int) {
	t.Helper()
	ctx := context.Background()
	var all []notifications.Recipient
	for i := from; i < from+n; i++ {
		all = append(all, notifications.Recipient{Key: keyOf(i), ProfileKey: fmt.Sprint(i), Address: address(i), Payload: `{"name":"x"}`})
	}
	err := pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		_, err := b.ledger.Insert(ctx, tx, notifications.Chunk{WorkspaceID: b.ws, OriginID: b.origin, ProviderID: b.provider, ContentID: b.origin,
			Run: 1, MaxAttempts: 2, BatchSize: 500, Recipients: all})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestSweepEnqueuesBatchesWithoutAJob(t *testing.T) {
	b := setup(t)
	b.insert(100, 25, 2)
	s := b.sender()
	if n, err := s.Sweep(context.Background()); err != nil || n != 0 {
		t.Fatalf("enqueued %d although every batch has a job, %v", n, err)
	}
	b.exec(`truncate river_job`)
	if n, err := s.Sweep(context.Background()); err != nil || n != 4 {
		t.Fatalf("enqueued %d times, want 4, %v", n, err)
	}
	if n, err := s.Sweep(context.Background()); err != nil || n != 0 {
		t.Fatalf("enqueued %d times again, %v", n, err)
	}
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 100})
}

func TestCircuitPausesTheCampaign(t *testing.T) {
	b := setup(t)
	b.insert(60, 60, 2)
	for i := range 60 {
		b.carrier.then[address(i)] = []Outcome{Rejected}
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
	b.exec(`update batches set expires_at = now() - interval '1 second' where workspace_id = $1`, b.ws)
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
					b.carrier.then[address(i)] = append(b.carrier.then[address(i)],
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
		for n, o := range b.carrier.then[address(i)] {
			if n < b.carrier.called(address(i)) && (o == Unknown || o == Accepted) {
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

// A worker that was paused before it called any row finds its batch leased by another:
// its token opens no window.
func TestAnOldTokenOpensNoWindow(t *testing.T) {
	b := setup(t)
	refs := b.insert(10, 10, 2)
	ctx := context.Background()
	old, young := b.sender(), b.sender()
	reached, release := pauseAt(old, "committing", 1)
	done := make(chan error, 2)
	go func() { _, err := old.Work(ctx, refs[0]); done <- err }()
	<-reached
	if r := b.reap(b.sender()); r.Freed != 10 {
		t.Fatalf("reaped %+v", r)
	}
	holding, letGo := pauseAt(young, "opened", 1)
	go func() { _, err := young.Work(ctx, refs[0]); done <- err }()
	<-holding
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := b.carrier.called(address(0)); n != 0 {
		t.Errorf("called %d times under a token that was lost", n)
	}
	close(letGo)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	b.wantCounts(notifications.Counts{Sent: 10})
}

// A leased batch is not claimed a second time.
func TestALeasedBatchIsNotClaimed(t *testing.T) {
	b := setup(t)
	refs := b.insert(10, 10, 2)
	ctx := context.Background()
	holder := b.sender()
	reached, release := pauseAt(holder, "opened", 1)
	done := make(chan error)
	go func() { _, err := holder.Work(ctx, refs[0]); done <- err }()
	<-reached
	if _, err := b.sender().Work(ctx, refs[0]); err != nil {
		t.Fatal(err)
	}
	if n := b.carrier.called(address(0)); n != 0 {
		t.Errorf("called %d times without the lease", n)
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	b.wantCounts(notifications.Counts{Sent: 10})
	if _, err := b.sender().Work(ctx, refs[0]); err != nil {
		t.Fatal(err)
	}
	if n := b.carrier.called(address(0)); n != 1 {
		t.Errorf("called %d times after its end", n)
	}
}

// The reaper finds an expired lease, and before it locks the batch the worker's commit
// renews it.
func TestTheReaperChecksAgainUnderTheLock(t *testing.T) {
	b := setup(t)
	refs := b.insert(20, 20, 2)
	ctx := context.Background()
	worker, reaper := b.sender(), b.sender()
	reached, release := pauseAt(worker, "called", 1)
	seen, goOn := pauseAt(reaper, "expired", 1)
	done := make(chan error, 2)
	go func() { _, err := worker.Work(ctx, refs[0]); done <- err }()
	<-reached
	b.expireLeases()
	var r Reaped
	go func() { var err error; r, err = reaper.Reap(ctx); done <- err }()
	<-seen
	held, letGo := pauseAt(worker, "called", 1) // the second window: the first is committed
	close(release)
	<-held
	close(goOn)
	if err := <-done; err != nil || r.Batches != 0 {
		t.Errorf("reaped %+v of a lease that had been renewed, %v", r, err)
	}
	close(letGo)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	b.wantCounts(notifications.Counts{Sent: 20})
}

// Tier 1: a row with evidence is not called again.
func TestEvidenceSettlesUnknownCalls(t *testing.T) {
	b := setup(t)
	refs := b.insert(10, 10, 2)
	b.carrier.then[address(1)] = []Outcome{Unknown, Accepted}
	b.carrier.then[address(2)] = []Outcome{Unknown, Accepted}
	b.carrier.then[address(3)] = []Outcome{Unknown, Accepted}
	s := b.sender()
	b.work(s)
	b.record(refs[0], 1, events.Accepted)
	b.record(refs[0], 2, events.Rejected)
	if r := b.reap(s); r.Settled != 2 || r.Retried != 1 {
		t.Errorf("reaped %+v", r)
	}
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 9, Failed: 1})
	for i, calls := range map[int]int{1: 1, 2: 1, 3: 2} {
		if n := b.carrier.called(address(i)); n != calls {
			t.Errorf("%s was called %d times, want %d", address(i), n, calls)
		}
	}
}

// Evidence of a rejection that arrives after the reaper has decided: the second
// attempt is not made, and the row has failed.
func TestALateRejectionFails(t *testing.T) {
	b := setup(t)
	refs := b.insert(1, 1, 2)
	b.carrier.then[address(0)] = []Outcome{Unknown, Accepted}
	s := b.sender()
	b.work(s)
	b.reap(s)
	b.record(refs[0], 0, events.Rejected)
	b.work(s)
	if n := b.carrier.called(address(0)); n != 1 {
		t.Errorf("called %d times", n)
	}
	b.wantCounts(notifications.Counts{Failed: 1})
}

func (b *bundle) record(ref notifications.Ref, i int, kind events.Kind) {
	b.t.Helper()
	var ordinal int16
	err := b.pool.QueryRow(context.Background(), `select ordinal from notifications where workspace_id = $1 and origin_id = $2 and key = $3`, b.ws, b.origin, keyOf(i)).Scan(&ordinal)
	if err != nil {
		b.t.Fatal(err)
	}
	_, err = events.Record(context.Background(), b.pool, b.ws, []events.Event{{ProviderID: b.provider, Source: "test", BatchID: ref.BatchID, Ordinal: ordinal, Attempt: 1, Kind: kind, OccurredAt: time.Now()}})
	if err != nil {
		b.t.Fatal(err)
	}
}

// A row that was called and not accepted is free, also when the worker is killed in a
// later window.
func TestARefusedRowIsFreeAfterACrash(t *testing.T) {
	b := setup(t)
	refs := b.insert(30, 30, 2)
	for i := range 30 {
		b.carrier.then[address(i)] = []Outcome{NotAccepted, Accepted}
	}
	killed := b.sender()
	reached := stop(killed, "opened", 2)
	go func() { _, _ = killed.Work(context.Background(), refs[0]) }()
	<-reached
	if r := b.reap(b.sender()); r.Freed != 20 || r.Retried != 10 {
		t.Errorf("reaped %+v: ten were refused and ten never covered", r)
	}
}

func TestOfTwoSweepsOneEnqueues(t *testing.T) {
	b := setup(t)
	refs := b.insert(10, 10, 2)
	b.exec(`update batches set enqueued_at = now() - interval '2 hours' where workspace_id = $1`, b.ws)
	s := b.sender(func(c *Config) { c.SweepGrace = time.Hour })
	for i, want := range []bool{true, false} {
		if enqueued, err := s.enqueueAgain(context.Background(), refs[0]); err != nil || enqueued != want {
			t.Errorf("sweep %d enqueued: %v, %v", i, enqueued, err)
		}
	}
}
