package sender

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	dto "github.com/prometheus/client_model/go"

	"lemma/events"
	"lemma/notifications"
	"lemma/pgtest"
)

// The cap counts how often a row was refused, not how often its batch was given
// back.
func TestTheCapCountsTheRow(t *testing.T) {
	b := setup(t)
	b.carrier.then[addressOf(0)] = []Outcome{NotAccepted, NotAccepted, NotAccepted, Accepted}
	b.carrier.then[addressOf(1)] = []Outcome{NotCalled, NotCalled, NotCalled, NotAccepted, NotAccepted, NotAccepted, NotAccepted}
	b.carrier.then[addressOf(2)] = []Outcome{NotCalled, NotCalled, NotCalled, NotAccepted, Accepted}
	b.insert(3, 3, 2)
	s := b.sender(func(c *Config) { c.MaxDeferrals = 3; c.CircuitAfter = 1000 })
	for range 7 {
		b.makeDue()
		b.work(s)
	}
	for i, want := range []string{"sent", "failed", "sent"} {
		if status, reason := b.status(i); status != want {
			t.Errorf("row %d is %s (%s), want %s", i, status, reason, want)
		}
	}
	if n := b.carrier.called(addressOf(1)); n != 7 {
		t.Errorf("called %d times, want three without result, one refusal and three more", n)
	}
	var calls dto.Metric
	b.Must(s.metrics.messages.Write(&calls))
	if n := calls.GetCounter().GetValue(); n != 4+4+2 {
		t.Errorf("%v calls are counted, want those with a result", n)
	}
}

// failing is a carrier whose account is refused at first.
type failing struct {
	*scripted
	times int
}

func (f *failing) Send(ctx context.Context, messages []Message) []Receipt {
	if f.times--; f.times < 0 {
		return f.scripted.Send(ctx, messages)
	}
	out := make([]Receipt, len(messages))
	for i := range out {
		out[i] = Receipt{Outcome: NotAccepted, Provider: true, Reason: "account_refused", At: time.Now()}
	}
	return out
}

// A failure of the provider counts against no row, and a batch without refused rows
// stores no counts.
func TestAProvidersFailureCountsAgainstNoRow(t *testing.T) {
	b := setup(t)
	b.insert(3, 3, 2)
	s := b.sender(func(c *Config) { c.MaxDeferrals = 1; c.CircuitAfter = 1000 })
	carrier := &failing{b.carrier, 4}
	s.kinds["scripted"] = Kind{Name: "scripted", Open: func(Account) (Carrier, error) { return carrier, nil }}
	for range 5 {
		b.work(s)
		b.makeDue()
		b.makeProbable()
	}
	b.wantCounts(notifications.Counts{Sent: 3})
	b.WantCount(0, `select count(*) from batches where refusals is not null`)
}

// A row whose server is slow waits longer each time, and never fails for that; the circuit stays closed.
func TestARowThatIsNotCalledBecauseOfItsServer(t *testing.T) {
	b := setup(t)
	b.insert(3, 3, 2)
	s := b.sender(func(c *Config) { c.MaxDeferrals, c.CircuitAfter, c.DeferFor = 5, 4, 30*time.Second })
	b.carrier.down = &Receipt{Outcome: NotCalled, Reason: "server_slow", RetryAfter: time.Second}
	waits := make([]time.Duration, 0, 12)
	for range cap(waits) {
		b.work(s)
		waits = append(waits, pgtest.One[time.Duration](t, b.Pool, `select due_at - now() from batches`).Round(30*time.Second))
		b.makeDue()
	}
	if d := cmp.Diff([]time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 4 * time.Minute}, waits[:5]); d != "" {
		t.Error(d)
	}
	b.WantCount(0, `select count(*) from provider_meters where opened_at is not null`)
	b.WantCount(2, `select count(*) from provider_events where kind = 'deferred' and ordinal = 0 and detail like 'server_slow%'`)
	b.carrier.down = nil
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 3})
}

// A direct notification waits for less.
func TestADirectNotificationWaitsForItsServer(t *testing.T) {
	b := setup(t)
	s := b.sender(func(c *Config) { c.DeferFor, c.DeferMost = 30*time.Second, time.Hour })
	c := &claim{Ref: notifications.Ref{OriginID: notifications.DirectOrigin(b.Workspace, time.Now())}}
	for _, want := range []time.Duration{2, 4, 8, 16, 16} {
		if got := s.spareFor(c, 0); got != want*time.Second {
			t.Errorf("%s, want %d s", got, want)
		}
		c.refusals.spare(0, time.Now())
	}
}

// The commit that records a row as refused counts the refusal, also if the worker is
// killed later.
func TestARefusalIsCountedThoughTheWorkerIsKilled(t *testing.T) {
	b := setup(t)
	for i := range 12 {
		for range 20 {
			b.carrier.then[addressOf(i)] = append(b.carrier.then[addressOf(i)], NotAccepted)
		}
	}
	refs := b.insert(12, 12, 2)
	for range 5 {
		killed := b.sender(func(c *Config) { c.MaxDeferrals = 2; c.CircuitAfter = 1000 })
		reached, over := stop(killed, "opened", 2), make(chan struct{})
		ctx, kill := context.WithCancel(bg)
		go func() { _, _ = killed.Work(ctx, refs[0]); close(over) }()
		select {
		case <-reached:
		case <-over: // the rows of one window are left, or none
		}
		kill()
		b.reap(b.sender())
		b.makeDue()
	}
	failed := 0
	for i := range 12 {
		if n := b.carrier.called(addressOf(i)); n > 3 {
			t.Errorf("%s was called %d times, and its cap is 2", addressOf(i), n)
		}
		if status, _ := b.status(i); status == "failed" {
			failed++
		}
	}
	if failed != 10 {
		t.Errorf("%d have failed, want the ten that were refused", failed)
	}
}

// A second attempt continues the count of the first.
func TestASecondAttemptInheritsTheCount(t *testing.T) {
	b := setup(t)
	b.carrier.then[addressOf(0)] = []Outcome{NotAccepted, NotAccepted, Unknown, NotAccepted, Accepted}
	b.insert(1, 1, 2)
	s := b.sender(func(c *Config) { c.MaxDeferrals = 2 })
	for range 5 {
		b.work(s)
		b.reap(s)
		b.makeDue()
	}
	if status, reason := b.status(0); status != "orphaned" || reason != "unknown_then_refused" {
		t.Errorf("it is %s (%s)", status, reason)
	}
}

// Evidence about the second attempt counts beside that about the first. If both were
// rejected, nothing was delivered.
func TestBothAttemptsWereRejected(t *testing.T) {
	for name, c := range map[string]struct {
		proofs         []events.Kind // of attempt 1, of attempt 2
		status, reason string
	}{
		"both rejected":       {[]events.Kind{events.Rejected, events.Rejected}, "failed", "first_attempt_rejected"},
		"the second alone":    {[]events.Kind{"", events.Rejected}, "orphaned", "unknown_then_rejected"},
		"the first alone":     {[]events.Kind{events.Rejected, ""}, "orphaned", "no_answer"},
		"the second accepted": {[]events.Kind{events.Rejected, events.Accepted}, "sent", ""},
		"the first accepted":  {[]events.Kind{events.Accepted, events.Rejected}, "sent", ""},
		"nothing is known":    {[]events.Kind{"", ""}, "orphaned", "no_answer"},
		"both were deferred":  {[]events.Kind{events.Deferred, events.Deferred}, "orphaned", "no_answer"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			refs := b.insert(1, 1, 2)
			b.carrier.then[addressOf(0)] = []Outcome{Unknown, Unknown}
			s := b.sender()
			for range 2 {
				b.work(s)
				if len(b.batches("attempt = 2 and status = 'leased'")) == 0 {
					b.reap(s)
				}
			}
			for i, kind := range c.proofs {
				if kind == "" {
					continue
				}
				_, err := events.Record(bg, b.Pool, b.Workspace, []events.Event{{ProviderID: b.provider, Source: "test", OriginID: b.origin,
					BatchID: refs[0].BatchID, Attempt: int16(i + 1), Kind: kind, OccurredAt: time.Now()}})
				b.Must(err)
			}
			b.reap(s)
			if status, reason := b.status(0); status != c.status || reason != c.reason {
				t.Errorf("it is %s (%s), want %s (%s)", status, reason, c.status, c.reason)
			}
			if counts := b.counts(); !counts.Balanced {
				t.Errorf("counts: %+v", counts)
			}
		})
	}
}

// A send deadline also holds for a batch behind a closed gate: a paused campaign keeps
// no rows open that are never sent.
func TestABatchBehindAHeldGateExpires(t *testing.T) {
	b := setup(t)
	b.insert(10, 10, 2)
	b.inTx(func(tx pgx.Tx) error { return b.ledger.Hold(bg, tx, b.Workspace, b.origin) })
	b.Exec(`update batches set expires_at = now() - interval '1 second'`)
	if _, err := b.sender().Sweep(bg); err != nil {
		t.Fatal(err)
	}
	b.wantCounts(notifications.Counts{Skipped: 10})
	b.inTx(func(tx pgx.Tx) error { return b.ledger.Unhold(bg, tx, b.Workspace, b.origin) })
	b.work(b.sender())
	b.wantCounts(notifications.Counts{Skipped: 10})
}

// A batch is not claimed after its send deadline, and a window that was opened
// before it is not called after it.
func TestNothingBeginsAfterTheDeadline(t *testing.T) {
	b := setup(t)
	refs := b.insert(30, 30, 2)
	b.Exec(`update batches set expires_at = now() - interval '1 second'`)
	if c, err := b.sender().Claim(bg, refs[0]); c != nil || err != nil {
		t.Errorf("claimed: %v, %v", c != nil, err)
	}
	b.Exec(`update batches set expires_at = now() + interval '1 hour'`)
	s := b.sender()
	c, err := s.Claim(bg, refs[0])
	b.Must(err)
	c.slot = s.acquireNow(bg, refs[0])
	carrier, d, err := s.prepare(bg, c)
	b.Must(err)
	at(s, "committing", 2, func() { c.expires = time.Now() })
	if _, err := s.windows(bg, c, carrier, d, nil); err != nil {
		t.Fatal(err)
	}
	b.wantCounts(notifications.Counts{Sent: 10, Pending: 20})
}

// When Loop has returned, its reaper has stopped.
func TestLoopWaitsForItsReaper(t *testing.T) {
	b := setup(t)
	refs := b.insert(10, 10, 2)
	if c, err := b.sender().Claim(bg, refs[0]); c == nil || err != nil {
		t.Fatal(c, err)
	}
	b.expireLeases()
	s := b.sender(func(c *Config) { c.ReapEvery = time.Millisecond; c.SweepEvery = time.Millisecond })
	reached, release := pauseAt(s, "expired", 1)
	ctx, stop := context.WithCancel(bg)
	over := make(chan struct{})
	go func() { s.Loop(ctx); close(over) }()
	<-reached
	stop()
	select {
	case <-over:
		t.Error("it has returned before its reaper has stopped")
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	<-over
}
