package sender

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma/notifications"
	"lemma/pgtest"
	"lemma/providers"
)

var (
	noConnection = &Receipt{Outcome: NotAccepted, Provider: true, Reason: "connect_failed", Detail: "connection refused"}
	closing      = &Receipt{Outcome: NotAccepted, Provider: true, Code: 421, Reason: "service_closing", Detail: "421 bye"}
	noAnswer     = &Receipt{Outcome: NotAccepted, Reason: "timeout"}
	noPassword   = &Receipt{Outcome: NotAccepted, Provider: true, Definite: true, Code: 535, Reason: "auth_failed",
		Detail: "5.7.8 who are you"}
)

func (b *bundle) health() providers.Provider {
	b.T.Helper()
	p, err := providers.New(b.Pool, nil, nil).Get(context.Background(), b.Workspace, b.provider)
	b.Must(err)
	return p
}

// Rows that were not called, because an earlier call failed, do not count, and have
// that failure as their cause.
func TestRunOf(t *testing.T) {
	spared := *noConnection
	spared.Outcome = NotCalled
	lost := Receipt{Outcome: Unknown, Reason: "connection_lost"}
	throttled := Receipt{Outcome: NotAccepted, Provider: true, Code: 429, Reason: "throttled", RetryAfter: 7 * time.Second}
	for _, c := range []struct {
		name     string
		receipts []Receipt
		want     run
	}{
		{"spared", []Receipt{spared, spared}, run{down: "connect_failed: connection refused", detail: "connection refused"}},
		{"lost, then spared", []Receipt{{Outcome: Accepted}, lost, spared}, run{accepted: true, failures: 1, refusals: 1,
			first: "connection_lost", last: "connection_lost", down: "connect_failed: connection refused", detail: "connection refused"}},
		{"failed, then accepted", []Receipt{*closing, {Outcome: Accepted}}, run{accepted: true}},
		{"throttled, then accepted", []Receipt{{Outcome: Accepted}, throttled, {Outcome: Accepted}}, run{accepted: true, failures: 1,
			first: "throttled (429), retry after 7s", last: "throttled (429), retry after 7s", down: "throttled (429), retry after 7s",
			retryAfter: 7 * time.Second}},
		{"of tokens", []Receipt{lost, {Outcome: Rejected, Own: true, Reason: "message_rejected"}, {Outcome: Rejected, Reason: ReasonUnregistered},
			{Outcome: Rejected, Reason: "token_invalid"}}, run{failures: 2, refusals: 1, rejections: 1, first: "connection_lost",
			last: "token_invalid"}},
		{"time was over", []Receipt{{Outcome: NotCalled, Reason: "call_ended"}}, run{}},
	} {
		if d := cmp.Diff(c.want, runOf(c.receipts), cmp.AllowUnexported(run{})); d != "" {
			t.Errorf("%s (-want +got): %s", c.name, d)
		}
	}
}

func hasty(c *Config) { c.CircuitFirst, c.CircuitMost = 20*time.Millisecond, 100*time.Millisecond }

// A provider that fails for a moment pauses nothing: what waited continues when it
// works again.
func TestProviderGoneForAMoment(t *testing.T) {
	b := setup(t)
	b.insert(200, 20, 2)
	s := b.sender(hasty)
	b.carrier.fail(noConnection)
	var calls atomic.Int32
	s.Hook = func(_ context.Context, point string, _ notifications.Ref) {
		if point == "called" && calls.Add(1) == 3 {
			b.carrier.fail(nil)
		}
	}
	b.workAll(s, time.Minute)
	b.wantCounts(notifications.Counts{Sent: 200})
	b.wantCalledOnce(200)
	if p := b.health(); len(b.paused) != 0 || p.CircuitOpen || p.Failures != 0 || p.FirstError != "" || p.LastError == "" {
		t.Errorf("paused for %v; health %+v", b.paused, p)
	}
}

// workAll works every batch to its end, as River does.
func (b *bundle) workAll(s *Sender, within time.Duration) {
	b.T.Helper()
	var workers sync.WaitGroup
	for end := time.Now().Add(within); ; {
		refs := b.batches("status = 'ready' and gate = 'open'")
		if len(refs) == 0 {
			return
		}
		if time.Now().After(end) {
			b.T.Fatalf("%d batches have not ended", len(refs))
		}
		for _, ref := range refs {
			workers.Go(func() {
				again, err := s.Work(b.T.Context(), ref)
				if err != nil {
					b.T.Error(err)
				}
				time.Sleep(min(again, time.Second))
			})
		}
		workers.Wait()
	}
}

// What pauses, and the status_detail.
func TestWhatPauses(t *testing.T) {
	for _, c := range []struct {
		name            string
		first, then     *Receipt
		open            time.Duration // for how long the circuit has been open at the next probe
		reason, contain string
	}{
		{"a failure that has not lasted", noConnection, closing, 10 * time.Minute, "", ""},
		{"a failure that lasts", noConnection, closing, 15 * time.Minute, "provider_errors",
			"in 2 calls in a row; the first failure was connect_failed: connection refused, the last service_closing (421)"},
		{"a definite refusal", noPassword, nil, 0, "provider_refused", "auth_failed (535)"},
		{"a definite refusal of a probe", noConnection, noPassword, time.Minute, "provider_refused", "auth_failed (535)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t)
			b.insert(40, 20, 2)
			s := b.sender()
			b.carrier.fail(c.first)
			b.work(s)
			if c.then != nil {
				b.Exec(`update provider_meters set opened_at = opened_at - make_interval(secs => $1),
					failing_since = failing_since - make_interval(secs => $1), open_until = now()`, c.open.Seconds())
				b.carrier.fail(c.then)
				b.makeDue()
				b.work(s)
			}
			if got := strings.Join(b.paused, " "); got != c.reason || c.reason != "" && !strings.Contains(b.details[0], c.contain) {
				t.Errorf("paused for %q: %q, want %q: %q", got, b.details, c.reason, c.contain)
			}
			b.wantCounts(notifications.Counts{Pending: 40})
		})
	}
}

// A failure of yesterday and one of today are two, since nothing was called in
// between.
func TestOldFailureDoesNotLast(t *testing.T) {
	b := setup(t)
	b.insert(20, 20, 2)
	s := b.sender()
	b.carrier.fail(noConnection)
	b.work(s)
	b.Exec(`update provider_meters set opened_at = opened_at - interval '1 day', failing_since = failing_since - interval '1 day',
		failed_at = failed_at - interval '1 day', open_until = now()`)
	b.carrier.fail(closing)
	b.makeDue()
	b.work(s)
	if p := b.health(); len(b.paused) != 0 || !p.CircuitOpen || p.FirstError != "service_closing (421)" ||
		time.Since(*p.FailingSince) > time.Minute {
		t.Errorf("paused for %v, health %+v", b.paused, p)
	}
}

// Circuit!OnlyAProbeCloses: an acceptance of a call that began before the failure does
// not close the circuit.
func TestALateAcceptanceDoesNotCloseTheCircuit(t *testing.T) {
	b := setup(t)
	refs := b.insert(20, 10, 2)
	b.Exec(`update provider_meters set failures = 1`)
	early, s := b.sender(), b.sender()
	reached, release := pauseAt(early, "called", 1)
	done := make(chan error, 1)
	go func() { _, err := early.Work(context.Background(), refs[0]); done <- err }()
	<-reached
	b.carrier.fail(noConnection)
	if _, err := s.Work(t.Context(), refs[1]); err != nil {
		t.Fatal(err)
	}
	close(release)
	b.Must(<-done)
	if p := b.health(); !p.CircuitOpen || p.FirstError != "connect_failed: connection refused" {
		t.Errorf("health %+v", p)
	}
	b.wantCounts(notifications.Counts{Sent: 10, Pending: 10})
}

// Circuit!PauseMeansOutage: time in which nothing was due is no part of an outage.
func TestIdleTimeIsNoOutage(t *testing.T) {
	for name, c := range map[string]struct {
		idle   time.Duration
		reason string
	}{
		"the last probe failed half a minute ago": {30 * time.Second, "provider_errors"},
		"nothing was due for five minutes":        {5 * time.Minute, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.insert(20, 20, 2)
			s := b.sender(func(c *Config) { c.Lease, c.ReapEvery = 5*time.Minute, time.Minute })
			b.carrier.fail(noConnection)
			b.work(s)
			b.Exec(`update provider_meters set opened_at = now() - interval '16 minutes', failing_since = now() - interval '16 minutes',
				failed_at = now() - make_interval(secs => $1), open_until = now()`, c.idle.Seconds())
			b.carrier.fail(closing)
			b.makeDue()
			b.work(s)
			if got := strings.Join(b.paused, " "); got != c.reason {
				t.Errorf("paused for %q, want %q", got, c.reason)
			}
			if p := b.health(); !p.CircuitOpen || p.FirstError != "connect_failed: connection refused" {
				t.Errorf("health %+v", p)
			}
		})
	}
}

// Messages that are refused for now, one after the other, open the circuit as well,
// and pause nothing at first.
func TestRefusalsOpenTheCircuit(t *testing.T) {
	b := setup(t)
	b.insert(60, 30, 2)
	for i := range 60 {
		b.carrier.then[addressOf(i)] = []Outcome{NotAccepted, NotAccepted}
	}
	s := b.sender(func(c *Config) { c.CircuitAfter = 25 })
	b.work(s)
	if p := b.health(); !p.CircuitOpen || p.Failures != 30 || len(b.paused) != 0 {
		t.Errorf("paused for %v, health %+v", b.paused, p)
	}
	b.makeProbable()
	b.makeDue()
	if _, err := s.Work(t.Context(), b.batches("status = 'ready'")[0]); err != nil {
		t.Fatal(err)
	}
	if p := b.health(); !p.CircuitOpen || p.Failures != 30+probeWindow {
		t.Errorf("after a probe that was refused: %+v", p)
	}
	b.WantCount(1, `select count(*) from events_out where type = 'provider.failing' and origin_id = $1 and data->>'reason' <> ''`, b.provider)
}

// A message for which the server always hangs up does not decide about the provider.
func TestOneBadMessageDoesNotKeepTheCircuitOpen(t *testing.T) {
	b := setup(t)
	b.insert(30, 30, 2)
	bad := b.byOrdinal(1)[0]
	s := b.sender()
	b.carrier.fail(noConnection)
	b.work(s)
	b.carrier.hangsUp = bad
	b.carrier.fail(nil)
	for range 8 {
		b.makeProbable()
		b.makeDue()
		b.work(s)
	}
	b.wantCounts(notifications.Counts{Sent: 29, Pending: 1})
}

// A recipient for which the server never answers opens no circuit, closes one as
// any other does, delays others once at most, and ends as refused.
func TestARecipientForWhichTheServerHangsHoldsNothingUp(t *testing.T) {
	b := setup(t)
	b.insert(30, 30, 2)
	s := b.sender(func(c *Config) { c.MaxDeferrals = 3 })
	b.carrier.fail(noConnection)
	b.work(s)
	b.carrier.hangs = b.byOrdinal(1)[0]
	b.carrier.fail(nil)
	b.makeProbable()
	b.makeDue()
	b.work(s)
	if p := b.health(); p.CircuitOpen {
		t.Errorf("the circuit is open: %+v", p)
	}
	b.wantCounts(notifications.Counts{Sent: 25, Pending: 5}) // those of its window wait with it
	b.makeDue()
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 29, Pending: 1})
	for range 2 {
		b.makeDue()
		b.work(s)
	}
	b.wantCounts(notifications.Counts{Sent: 29, Failed: 1})
}

// A batch behind an open circuit is not enqueued until a probe is overdue: then its
// job was lost.
func TestSweepBehindAnOpenCircuit(t *testing.T) {
	b := setup(t)
	b.insert(20, 10, 2)
	s := b.sender()
	b.carrier.fail(noConnection)
	b.work(s)
	b.Exec(`truncate river_job`)
	b.Exec(`update batches set due_at = now() - interval '1 minute', enqueued_at = now() - interval '1 minute'`)
	b.Exec(`update provider_meters set open_until = now() + interval '1 minute'`)
	if n, err := s.Sweep(t.Context()); err != nil || n != 0 {
		t.Errorf("enqueued %d batches before a probe was due, %v", n, err)
	}
	b.Exec(`update provider_meters set open_until = now() - interval '1 minute'`)
	if n, err := s.Sweep(t.Context()); err != nil || n != 2 {
		t.Errorf("enqueued %d batches for a probe, want 2, %v", n, err)
	}
}

// A batch that could not be claimed, because the circuit was open or it was not
// due, keeps its job when that is over a moment later.
func TestABatchKeepsItsJobWhenItBecomesClaimable(t *testing.T) {
	for name, c := range map[string]struct{ before, after string }{
		"the circuit": {
			`update provider_meters set failures = 1, opened_at = now(), open_until = now() + interval '1 hour'`,
			`update provider_meters set failures = 0, opened_at = null, open_until = null`},
		"the time": {`update batches set due_at = now() + interval '1 hour'`, `update batches set due_at = now()`},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			refs := b.insert(3, 3, 2)
			s := b.sender()
			b.Exec(c.before)
			s.Hook = func(_ context.Context, at string, _ notifications.Ref) {
				if at == "unclaimed" {
					b.Exec(c.after)
				}
			}
			again, err := s.Work(t.Context(), refs[0])
			if err != nil || again <= 0 {
				t.Errorf("a batch that is ready lost its job: %v, %v", again, err)
			}
		})
	}
}

// The cause of a pause is as old as the claim that found it, so that a resume during the
// claim has ended it.
func TestACauseIsAsOldAsItsClaim(t *testing.T) {
	b := setup(t)
	ref := b.insert(1, 1, 2)[0]
	b.carrier.fail(noPassword)
	finish := b.pausedWork(b.sender(hasty), ref, "committing", 2)
	resumed := pgtest.One[time.Time](t, b.Pool, `select now()`)
	finish()
	if len(b.seen) != 1 || !b.seen[0].Before(resumed) || resumed.Sub(b.seen[0]) > time.Minute {
		t.Errorf("the causes are of %v; the resume was at %v", b.seen, resumed)
	}
}
