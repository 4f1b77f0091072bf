package sender

import (
	"testing"
	"time"

	"lemma/notifications"
)

// Two outages with idle time between them are not one long outage: only consecutive
// calls prove that a provider fails all the time.
func TestIdleTimeOfAMeterIsNoOutage(t *testing.T) {
	t.Parallel()
	cfg := Config{}.withDefaults()
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		idle   time.Duration
		pauses bool
	}{{30 * time.Second, true}, {6 * time.Minute, true}, {10 * time.Minute, false}, {time.Hour, false}} {
		failed, opened, token := now.Add(-c.idle), now.Add(-c.idle-10*time.Minute), "t"
		m := meter{FirstError: "connect_failed", FailingSince: &opened, OpenedAt: &opened, FailedAt: &failed, ProbeToken: &token, Now: now}
		if c.idle < 10*time.Minute {
			early := now.Add(-20 * time.Minute)
			m.OpenedAt = &early
		}
		r := run{failures: 1, first: "connect_failed", down: "connect_failed", last: "connect_failed"}
		m.fail(r, m.Now, token, cfg)
		if reason, _ := m.pauseFor(r, cfg); (reason != "") != c.pauses {
			t.Errorf("after %v without a call: paused for %q", c.idle, reason)
		}
	}
}

// An acceptance ends failures that other claims have added since its own claim began,
// also in another process: 100 rejections with 100 acceptances in between are not in a
// row.
func TestAnAcceptanceEndsFailuresThatBeganAfterItsClaim(t *testing.T) {
	b := setup(t)
	refs := b.insert(200, 100, 2)
	for ordinal := range 100 {
		b.carrier.then[b.addressIn(refs[1], ordinal)] = []Outcome{Rejected}
	}
	early, late := b.sender(), b.sender()
	claimed, call := pauseAt(early, "claimed", 1)
	called, record := pauseAt(late, "called", 10)
	first := b.workAside(early, refs[0])
	<-claimed
	second := b.workAside(late, refs[1])
	<-called
	before := b.health().Failures
	close(call)
	b.Must(<-first)
	between := b.health().Failures
	close(record)
	b.Must(<-second)
	if before == 0 || between != 0 || len(b.paused) > 0 {
		t.Errorf("%d failures in a row, %d after 100 acceptances, and paused: %q", before, between, b.details)
	}
	b.wantCounts(notifications.Counts{Sent: 100, Failed: 100})
}

// The meter of a provider without failures is not written, however many windows are
// accepted.
func TestTheMeterOfAHealthyProviderIsNotWritten(t *testing.T) {
	b := setup(t)
	b.insert(200, 100, 2)
	const version = `select xmin::text::bigint from provider_meters where workspace_id = $1`
	before := b.Count(version, b.Workspace)
	b.work(b.sender())
	b.wantCounts(notifications.Counts{Sent: 200})
	b.WantCount(before, version, b.Workspace)
}

// A server that hangs for different recipients in a row fails: the circuit opens after
// hangsMost of them, and closes when the server replies again.
func TestAServerThatHangsForEveryRecipientOpensTheCircuit(t *testing.T) {
	b := setup(t)
	b.insert(100, 100, 2)
	b.carrier.allHang = true
	s := b.sender()
	b.work(s)
	if p := b.health(); !p.CircuitOpen || p.Failures != hangsMost || p.FirstError != "timeout" {
		t.Fatalf("health %+v", p)
	}
	b.makeProbable()
	b.makeDue()
	b.work(s)
	if p := b.health(); !p.CircuitOpen || p.Failures != hangsMost+1 {
		t.Fatalf("after a probe without a reply: %+v", p)
	}
	b.carrier.allHang = false
	for range 3 {
		b.makeProbable()
		b.makeDue()
		b.work(s)
	}
	if p := b.health(); p.CircuitOpen || p.Failures != 0 {
		t.Errorf("after an acceptance: %+v", p)
	}
	b.wantCounts(notifications.Counts{Sent: 100})
}

// A recipient for which the server hangs counts once, and any reply ends the count.
func TestWhichHangsCount(t *testing.T) {
	b := setup(t)
	b.insert(1, 1, 2)
	b.carrier.hangs = addressOf(0)
	s := b.sender()
	for range hangsMost + 1 {
		b.makeDue()
		b.work(s)
	}
	if p := b.health(); p.CircuitOpen || p.Failures != hangsMost+1 {
		t.Errorf("one recipient hangs: %+v", p)
	}
	for _, c := range []struct {
		name     string
		receipts []Receipt
		want     run
	}{
		{"two", []Receipt{*noAnswer, *noAnswer}, run{hangs: 2}},
		{"the rest was not called", []Receipt{*noAnswer, {Outcome: NotCalled, Reason: "call_ended"}}, run{hangs: 1}},
		{"another was rejected", []Receipt{*noAnswer, {Outcome: Rejected, Code: 550}, *noAnswer}, run{hangs: 1, answered: true}},
		{"another was accepted", []Receipt{*noAnswer, {Outcome: Accepted}}, run{answered: true}},
		{"no connection", []Receipt{*noConnection}, run{}},
	} {
		var got run
		got.countHangs(c.receipts, func(int) bool { return true })
		if got != c.want {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

// workAside works a batch in a goroutine.
func (b *bundle) workAside(s *Sender, ref notifications.Ref) <-chan error {
	done := make(chan error, 1)
	go func() { _, err := s.Work(bg, ref); done <- err }()
	return done
}

// addressIn is the address of a row of a batch.
func (b *bundle) addressIn(ref notifications.Ref, ordinal int) (to string) {
	b.T.Helper()
	err := b.Pool.QueryRow(bg, `select address from notifications where workspace_id = $1 and batch_id = $2 and ordinal = $3`,
		b.Workspace, ref.BatchID, ordinal).Scan(&to)
	b.Must(err)
	return to
}
