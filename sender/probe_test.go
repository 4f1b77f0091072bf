package sender

import (
	"context"
	"errors"
	"testing"
	"time"

	"lemma/notifications"
	"lemma/pgtest"
)

// makeProbable lets time pass for circuits alone.
func (b *bundle) makeProbable() {
	b.Exec(`update provider_meters set open_until = now() where open_until is not null`)
}

// patient keeps circuits open until makeProbable, however slow the machine is.
func patient(c *Config) { c.CircuitFirst, c.CircuitMost = time.Hour, time.Hour }

// While the circuit is open, only one probe at a time calls.
func TestProbesAreOneAtATime(t *testing.T) {
	b := setup(t)
	refs := b.insert(40, 10, 2)
	s := b.sender(patient)
	b.carrier.fail(noConnection)
	b.work(s)
	if p := b.health(); !p.CircuitOpen || p.Failures != 1 || p.FirstError != "connect_failed: connection refused" || p.NextProbeAt == nil {
		t.Fatalf("health %+v, after one call that failed", p)
	}
	b.makeDue()
	for _, ref := range refs {
		if again, err := s.Work(t.Context(), ref); err != nil || again <= 0 {
			t.Errorf("behind an open circuit it answered %v, %v", again, err)
		}
	}
	if p := b.health(); p.Failures != 1 {
		t.Errorf("called behind an open circuit: %d failures", p.Failures)
	}
	b.makeProbable()
	prober, other := b.sender(patient), b.sender(patient)
	reached, release := pauseAt(prober, "opened", 1)
	done := make(chan error)
	go func() { _, err := prober.Work(context.Background(), refs[0]); done <- err }()
	<-reached
	for _, ref := range refs[1:] {
		if again, err := other.Work(t.Context(), ref); err != nil || again <= 0 {
			t.Errorf("beside a probe it answered %v, %v", again, err)
		}
	}
	b.carrier.fail(closing)
	close(release)
	b.Must(<-done)
	if p := b.health(); p.Failures != 2 || p.FirstError != "connect_failed: connection refused" || p.LastError != "service_closing (421)" {
		t.Errorf("the first cause is not kept: %+v", p)
	}
	b.makeProbable()
	b.carrier.fail(nil)
	for range 2 {
		b.makeDue()
		b.work(s)
	}
	b.wantCounts(notifications.Counts{Sent: 40})
}

// Circuit!ClosesByItself: a probe whose process was killed is followed by another
// when its lease has expired, however long a call may last.
func TestAKilledProbeIsReplaced(t *testing.T) {
	b := setup(t)
	b.insert(20, 10, 2)
	short := func(c *Config) { c.CallTimeout, c.ProbeLease = 10*time.Second, 2*time.Second }
	s := b.sender(short)
	b.carrier.fail(noConnection)
	b.work(s)
	b.makeProbable()
	b.makeDue()
	killed := b.sender(short)
	reached := stop(killed, "probing", 1)
	refs := b.batches("status = 'ready'")
	go func() { _, _ = killed.Work(t.Context(), refs[0]) }()
	<-reached
	b.carrier.fail(nil)
	if again, err := s.Work(t.Context(), refs[1]); err != nil || again <= 0 {
		t.Errorf("beside a probe it answered %v, %v", again, err)
	}
	pgtest.Eventually(t, 10*time.Second, "the probe is taken over", func() bool {
		again, err := s.Work(t.Context(), refs[1])
		return err == nil && again == 0
	})
	b.wantCounts(notifications.Counts{Sent: 10, Pending: 10})
}

// Circuit!OneProbe: a probe that takes longer than its lease is renewed, and no
// other begins beside it.
func TestASlowProbeIsRenewed(t *testing.T) {
	b := setup(t)
	b.insert(20, 10, 2)
	short := func(c *Config) { c.ProbeLease = time.Second }
	s := b.sender(short)
	b.carrier.fail(noConnection)
	b.work(s)
	b.makeProbable()
	b.makeDue()
	prober := b.sender(short)
	reached, release := pauseAt(prober, "opened", 1)
	refs := b.batches("status = 'ready'")
	done := make(chan error)
	go func() { _, err := prober.Work(context.Background(), refs[0]); done <- err }()
	<-reached
	b.carrier.fail(nil)
	until := pgtest.One[time.Time](b.T, b.Pool, `select probe_until from provider_meters`)
	pgtest.Eventually(t, 5*time.Second, "the first lease of the probe is over", func() (over bool) {
		return b.Pool.QueryRow(t.Context(), `select now() > $1`, until).Scan(&over) == nil && over
	})
	if again, err := s.Work(t.Context(), refs[1]); err != nil || again <= 0 {
		t.Errorf("beside a slow probe it answered %v, %v", again, err)
	}
	close(release)
	b.Must(<-done)
	b.wantCounts(notifications.Counts{Sent: 10, Pending: 10})
}

// Circuit!OneProbe: a probe whose lease has expired does not renew it, so that
// another may begin.
func TestAnExpiredProbeIsNotRenewed(t *testing.T) {
	b := setup(t)
	refs := b.insert(10, 10, 2)
	s := b.sender(func(c *Config) { c.ProbeLease = 30 * time.Millisecond })
	b.carrier.fail(noConnection)
	b.work(s)
	b.Exec(`update provider_meters set opened_at = now(), open_until = now(), probe_token = 'late', probe_until = now() - interval '1 second'`)
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	s.renewProbe(ctx, stop, &claim{Ref: refs[0], token: "late", providerID: b.provider})
	if !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("the probe is renewed: %v", ctx.Err())
	}
}

// A probe calls others before a recipient that was refused before: the circuit
// closes although the server hangs for the first of the batch.
func TestAProbePrefersRowsThatWereNotRefused(t *testing.T) {
	b := setup(t)
	b.insert(30, 30, 2)
	s := b.sender(func(c *Config) { c.CircuitAfter = 5 })
	b.carrier.rest = NotAccepted
	b.work(s)
	if p := b.health(); !p.CircuitOpen || p.Failures != 10 {
		t.Fatalf("health %+v", p)
	}
	b.carrier.rest, b.carrier.hangs = "", b.byOrdinal(1)[0]
	b.makeProbable()
	b.makeDue()
	b.work(s)
	if p := b.health(); p.CircuitOpen {
		t.Errorf("the circuit is open after a probe: %+v", p)
	}
	b.makeDue()
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 20, Pending: 10})
	b.makeDue()
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 29, Pending: 1})
}

// A probe to which the provider replies that a token is old closes the circuit: the provider works.
func TestAProbeOfAnOldToken(t *testing.T) {
	for name, c := range map[string]struct {
		reply Receipt
		open  bool
	}{
		"answered":     {Receipt{Outcome: Rejected, Reason: ReasonUnregistered, Code: 404}, false},
		"not answered": {Receipt{Outcome: Rejected, Own: true, Reason: "token_invalid"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.insert(100, 50, 2)
			s := b.sender()
			b.carrier.fail(noConnection)
			b.work(s)
			b.carrier.fail(&c.reply)
			b.makeProbable()
			b.makeDue()
			b.work(s)
			if p := b.health(); p.CircuitOpen != c.open {
				t.Errorf("%+v", p)
			}
		})
	}
}

// A reply about an old token is no failed probe: it pauses nothing after a night in which nothing was due.
func TestAnOldTokenAfterAnIdleNight(t *testing.T) {
	b := setup(t)
	b.insert(400, 100, 2)
	s := b.sender(func(c *Config) { c.PauseAfter, c.CircuitAfter = 15*time.Minute, 30 })
	b.carrier.fail(&Receipt{Outcome: NotAccepted, Reason: "unavailable", Code: 503})
	b.work(s)
	b.Exec(`update provider_meters set opened_at = opened_at - interval '8 hours', failed_at = failed_at - interval '8 hours',
		failing_since = failing_since - interval '8 hours', open_until = now()`)
	b.carrier.fail(&Receipt{Outcome: Rejected, Reason: ReasonUnregistered, Code: 404})
	b.makeProbable()
	b.makeDue()
	b.work(s)
	if p := b.health(); !p.CircuitOpen || len(b.paused) > 0 {
		t.Errorf("paused for %v; open: %t", b.paused, p.CircuitOpen)
	}
}
