package sender

import (
	"testing"
	"time"

	"lemma/notifications"
	"lemma/pgtest"
)

// A provider is not probed before the time that it asks for, up to MostRetryAfter. The
// cause shows what it asked for.
func TestTheCircuitRespectsRetryAfter(t *testing.T) {
	for _, c := range []struct {
		asked, want time.Duration
		cause       string
	}{
		{0, 500 * time.Millisecond, "throttled (429)"},
		{90 * time.Second, 90 * time.Second, "throttled (429), retry after 1m30s"},
		{time.Hour, MostRetryAfter, "throttled (429), retry after 1h0m0s, capped at 15m0s"},
	} {
		t.Run(c.cause, func(t *testing.T) {
			b := setup(t)
			refs := b.insert(20, 10, 2)
			s := b.sender()
			b.carrier.fail(&Receipt{Outcome: NotAccepted, Provider: true, Code: 429, Reason: "throttled", RetryAfter: c.asked})
			b.work(s)
			p := b.health()
			if p.FirstError != c.cause || p.NextProbeAt == nil {
				t.Fatalf("health %+v", p)
			}
			if got := p.NextProbeAt.Sub(*p.FailedAt); got != c.want {
				t.Errorf("probed %v after the failure, want %v", got, c.want)
			}
			again, err := s.Work(t.Context(), refs[1])
			if b.Must(err); c.asked > 0 && (again < c.want-10*time.Second || again > c.want+10*time.Second) {
				t.Errorf("the batch behind the circuit is tried again after %v, want %v", again, c.want)
			}
			b.makeProbable()
			b.makeDue()
			b.work(s)
			p = b.health()
			if got := p.NextProbeAt.Sub(*p.FailedAt); got < c.want || got > c.want+time.Second {
				t.Errorf("probed %v after the probe that failed, want %v", got, c.want)
			}
		})
	}
}

// Calls run side by side: those that are accepted do not end the wait that the answer to
// another asks for. Without a wait, the message is called again after the first back-off.
func TestAcceptancesDoNotEndRetryAfter(t *testing.T) {
	for _, asked := range []time.Duration{0, 90 * time.Second} {
		t.Run(asked.String(), func(t *testing.T) {
			b := setup(t)
			refs := b.insert(20, 10, 2)
			s := b.sender()
			b.carrier.hangsUp, b.carrier.later = b.first(refs[0]), asked
			again, err := s.Work(t.Context(), refs[0])
			if b.Must(err); again != s.cfg.CircuitFirst {
				t.Errorf("the message is called again after %v", again)
			}
			p := b.health()
			if p.CircuitOpen != (asked > 0) {
				t.Fatalf("health %+v", p)
			}
			if asked > 0 && p.NextProbeAt.Sub(*p.FailedAt) != asked {
				t.Errorf("probed %v after the failure", p.NextProbeAt.Sub(*p.FailedAt))
			}
			b.carrier.hangsUp = ""
			b.makeProbable()
			b.makeDue()
			b.work(s)
			b.makeDue()
			b.work(s)
			b.wantCounts(notifications.Counts{Sent: 20})
			if p := b.health(); p.CircuitOpen || p.FirstError != "" {
				t.Errorf("health %+v after the messages were accepted", p)
			}
		})
	}
}

// first is the address that is called first of a batch.
func (b *bundle) first(ref notifications.Ref) string {
	b.T.Helper()
	return pgtest.One[string](b.T, b.Pool,
		`select address from notifications where workspace_id = $1 and batch_id = $2 order by ordinal limit 1`,
		b.Workspace, ref.BatchID)
}

// A call that began before the circuit opened can ask for a later probe than the one
// that opened it.
func TestALateAnswerPostponesTheProbe(t *testing.T) {
	t.Parallel()
	cfg := Config{}.withDefaults()
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	m := meter{Now: now}
	m.fail(run{failures: 1, down: "connection_lost"}, now, "a", cfg)
	m.fail(run{failures: 1, down: "throttled", retryAfter: time.Minute}, now, "b", cfg)
	if got := m.OpenUntil.Sub(now); got != time.Minute {
		t.Errorf("probed after %v", got)
	}
}

// A time for which the provider asked is no idle time: a provider that throttles all the
// time fails all the time.
func TestRetryAfterIsNoIdleTime(t *testing.T) {
	t.Parallel()
	cfg := Config{}.withDefaults()
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	r := run{failures: 1, first: "throttled", last: "throttled", down: "throttled", retryAfter: 8 * time.Minute}
	m := meter{Now: now}
	m.fail(r, now, "t", cfg)
	for range 2 {
		opened, failed, asked := *m.OpenedAt, *m.FailedAt, *m.AskedUntil
		next := asked.Add(5 * time.Second)
		until := next.Add(time.Second)
		m = meter{OpenedAt: &opened, OpenUntil: &asked, FailedAt: &failed, AskedUntil: &asked, FailingSince: m.FailingSince,
			FirstError: m.FirstError, ProbeToken: new("t"), ProbeUntil: &until, Now: next}
		m.fail(r, m.Now, "t", cfg)
	}
	if reason, _ := m.pauseFor(r, cfg); reason != "provider_errors" {
		t.Errorf("after %v of throttling: paused for %q", m.Now.Sub(now), reason)
	}
}

// A message that was refused for now is not called before the time that the carrier asks
// for, up to MostRetryAfter.
func TestADeferralRespectsRetryAfter(t *testing.T) {
	for asked, want := range map[time.Duration]time.Duration{
		0: 30 * time.Second, time.Second: 30 * time.Second, 4 * time.Minute: 4 * time.Minute, time.Hour: MostRetryAfter,
	} {
		t.Run(asked.String(), func(t *testing.T) {
			b := setup(t)
			refs := b.insert(3, 3, 2)
			b.carrier.later = asked
			b.carrier.then[addressOf(1)] = []Outcome{NotAccepted}
			s := b.sender()
			again, err := s.Work(t.Context(), refs[0])
			if b.Must(err); again > want || again < want-5*time.Second {
				t.Errorf("called again after %v, want %v", again, want)
			}
			b.WantCount(1, `select count(*) from batches where due_at > now() + $1::interval - interval '5 s'`, want)
			b.makeDue()
			b.work(s)
			if n := b.carrier.called(addressOf(1)); n != 2 {
				t.Errorf("%d calls", n)
			}
		})
	}
}
