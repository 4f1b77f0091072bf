package sender

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	dto "github.com/prometheus/client_model/go"

	"lemma/events"
	"lemma/notifications"
)

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
			var stored dto.Metric
			b.Must(s.metrics.outcomes.WithLabelValues(unknown).Write(&stored))
			b.WantCount(int(stored.GetCounter().GetValue()), `select count(*) from attempts where workspace_id = $1 and outcome = 'unknown'`,
				b.Workspace)
			b.wantCounts(notifications.Counts{Sent: c.sent})
			twice := int64(0)
			for i := range 50 {
				if n := b.carrier.called(addressOf(i)); n > 2 || n < 1 {
					t.Errorf("%s was called %d times", addressOf(i), n)
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

// Retry batches keep the ordinals of their root, by which attempts identify a
// notification.
func TestRetryBatchesKeepOrdinals(t *testing.T) {
	b := setup(t)
	refs := b.insert(30, 30, 2)
	for range 2 {
		b.kill(refs[0], "called", 1)
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
	rows, _ := b.Pool.Query(context.Background(), `
		select n.address from attempts a
		join notifications n on n.workspace_id = a.workspace_id and n.batch_id = a.batch_id and n.ordinal = a.ordinal
		where a.workspace_id = $1 and a.attempt = 2`, b.Workspace)
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

func TestTwoReapersMakeOneRetry(t *testing.T) {
	b := setup(t)
	refs := b.insert(30, 30, 2)
	b.kill(refs[0], "called", 1)
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

// A rejection that names no attempt may be of the second one, once that has been called: it
// does not prove that the first was rejected too.
func TestARejectionWithoutAnAttemptProvesNothingOfTheFirst(t *testing.T) {
	b := setup(t)
	b.kill(b.insert(1, 1, 2)[0], "called", 1)
	s := b.sender()
	b.reap(s)
	b.makeDue()
	second := b.sender()
	reached := stop(second, "called", 1)
	go func() { _, _ = second.Work(bg, b.batches("attempt = 2")[0]) }()
	<-reached
	b.report(0, 2, events.TypeRejected, time.Now())
	b.report(0, 0, events.TypeRejected, time.Now())
	b.reap(s)
	if status, reason := b.status(0); status != "orphaned" || reason != "unknown_then_rejected" {
		t.Errorf("it is %s (%s)", status, reason)
	}
	e, err := b.ledger.Explain(bg, b.Workspace, b.origin, keyOf(0))
	if b.Must(err); e.DeliveriesAtMost != 1 {
		t.Errorf("%d deliveries at most: %s", e.DeliveriesAtMost, e.Summary)
	}
}

// The second attempt was called and refused for now. A rejection that names no attempt may be
// of that call: the first stays unknown, and the second is called again.
func TestARejectionWithoutAnAttemptSettlesNoSecondThatWasCalled(t *testing.T) {
	for name, c := range map[string]struct {
		before bool // the rejection comes before the second call
		end    func(b *bundle, s *Sender)
		want   derived
		most   int
	}{
		"called again": {false, func(b *bundle, s *Sender) { b.makeDue(); b.work(s) }, derived{"sent", "", 2, true}, 2},
		"its worker died": {false, func(b *bundle, s *Sender) {
			b.makeDue()
			b.claim(s)
			b.reap(s)
		}, derived{"pending", "", 1, false}, 1},
		"expired": {false, func(b *bundle, s *Sender) { b.makeDue(); b.pastDeadline(); b.work(s) },
			derived{"orphaned", "unknown_then_expired", 1, true}, 1},
		"cancelled": {false, func(b *bundle, _ *Sender) { b.cancel() }, derived{"orphaned", "unknown_then_cancelled", 1, true}, 1},
		"rejected before the second call": {true, func(*bundle, *Sender) {},
			derived{"failed", notifications.ReasonFirstRejected, 1, true}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.kill(b.insert(1, 1, 2)[0], "called", 1)
			b.carrier.then[addressOf(0)] = []Outcome{Accepted, NotAccepted, Accepted}
			s := b.sender()
			b.reap(s)
			b.makeDue()
			if c.before {
				b.report(0, 0, events.TypeRejected, time.Now())
			}
			b.work(s)
			if !c.before {
				b.report(0, 0, events.TypeRejected, time.Now())
			}
			possible := b.explain()
			c.end(b, s)
			if got := b.derived(0); got != c.want {
				t.Errorf("it is %+v, want %+v", got, c.want)
			}
			e := b.explain()
			if e.DeliveriesAtMost != c.most || e.DeliveriesAtMost > possible.DeliveriesPossible {
				t.Errorf("%d deliveries at most, before %d possible: %s", e.DeliveriesAtMost, possible.DeliveriesPossible, e.Summary)
			}
			b.inTx(func(tx pgx.Tx) error {
				first := notifications.Row{OriginID: b.origin, BatchID: b.batches("attempt = 1")[0].BatchID}
				n, err := notifications.ResolveByEvidence(bg, tx, b.Workspace, []notifications.Row{first})
				if n > 0 {
					t.Error("the rejection resolves it")
				}
				return err
			})
		})
	}
}

func TestTheReaperLeavesALivingLeaseAlone(t *testing.T) {
	b := setup(t)
	refs := b.insert(10, 10, 2)
	slow := b.sender()
	finish := b.pausedWork(slow, refs[0], "opened", 1)
	if r, err := b.sender().Reap(context.Background()); err != nil || r.Batches != 0 {
		t.Errorf("reaped %+v, %v", r, err)
	}
	finish()
	b.wantCounts(notifications.Counts{Sent: 10})
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
	b.Must(<-done)
	b.wantCounts(notifications.Counts{Sent: 20})
}

// Tier 1: a row with evidence is not called again.
func TestEvidenceSettlesUnknownCalls(t *testing.T) {
	b := setup(t)
	refs := b.insert(10, 10, 2)
	b.carrier.then[addressOf(1)] = []Outcome{Unknown, Accepted}
	b.carrier.then[addressOf(2)] = []Outcome{Unknown, Accepted}
	b.carrier.then[addressOf(3)] = []Outcome{Unknown, Accepted}
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
		if n := b.carrier.called(addressOf(i)); n != calls {
			t.Errorf("%s was called %d times, want %d", addressOf(i), n, calls)
		}
	}
}

// Evidence of a rejection that arrives after the reaper has decided: the second
// attempt is not made, and the row has failed.
func TestALateRejectionFails(t *testing.T) {
	b := setup(t)
	refs := b.insert(1, 1, 2)
	b.carrier.then[addressOf(0)] = []Outcome{Unknown, Accepted}
	s := b.sender()
	b.work(s)
	b.reap(s)
	b.record(refs[0], 0, events.Rejected)
	b.work(s)
	b.wantCalledOnce(1)
	b.wantCounts(notifications.Counts{Failed: 1})
}

// A row that was called and not accepted is free, also when the worker is killed in a
// later window.
func TestARefusedRowIsFreeAfterACrash(t *testing.T) {
	b := setup(t)
	refs := b.insert(30, 30, 2)
	for i := range 30 {
		b.carrier.then[addressOf(i)] = []Outcome{NotAccepted, Accepted}
	}
	b.kill(refs[0], "opened", 2)
	if r := b.reap(b.sender()); r.Freed != 20 || r.Retried != 10 {
		t.Errorf("reaped %+v: ten were refused and ten never covered", r)
	}
}

func (b *bundle) record(ref notifications.Ref, i int, kind events.Kind) {
	b.T.Helper()
	var ordinal int16
	err := b.Pool.QueryRow(context.Background(),
		`select ordinal from notifications where workspace_id = $1 and origin_id = $2 and key = $3`,
		b.Workspace, b.origin, keyOf(i)).Scan(&ordinal)
	b.Must(err)
	_, err = events.Record(context.Background(), b.Pool, b.Workspace,
		[]events.Event{{ProviderID: b.provider, Source: "test", OriginID: ref.OriginID, BatchID: ref.BatchID,
			Ordinal: ordinal, Attempt: 1, Kind: kind,
			OccurredAt: time.Now()}})
	b.Must(err)
}
