package sender

import (
	"testing"

	"lemma/notifications"
)

// crash claims the batches that are ready n times, and lets each lease expire before
// anyone is called.
func (b *bundle) crash(s *Sender, n int) Reaped {
	b.T.Helper()
	var last Reaped
	for range n {
		b.makeDue()
		for _, ref := range b.batches("status = 'ready'") {
			if c, err := s.Claim(bg, ref); c == nil || err != nil {
				b.T.Fatal(c, err)
			}
		}
		last = b.reap(s)
	}
	return last
}

func TestABatchWhoseClaimsCrashIsEnded(t *testing.T) {
	b := setup(t)
	b.insert(3, 3, 2)
	s := b.sender()
	if got := b.crash(s, maxCrashes-1); got.Freed != 3 || got.Crashed != 0 || len(b.paused) != 0 {
		t.Errorf("%d crashes: %+v, paused %q", maxCrashes-1, got, b.paused)
	}
	if got := b.crash(s, 1); got.Freed != 0 || got.Crashed != 3 {
		t.Errorf("%d crashes: %+v", maxCrashes, got)
	}
	if len(b.paused) != 1 || b.paused[0] != batchCrashed {
		t.Errorf("paused for %q", b.paused)
	}
	if status, reason := b.status(0); status != "skipped" || reason != batchCrashed || b.carrier.called(address(0)) != 0 {
		t.Errorf("it is %s (%s)", status, reason)
	}
	b.wantCounts(notifications.Counts{Skipped: 3})
	if by := b.counts().SkippedBy[batchCrashed]; by != 3 {
		t.Errorf("%d rows are skipped as %s", by, batchCrashed)
	}
}

// The first attempt may have arrived, so the second is orphaned and not skipped.
func TestASecondAttemptWhoseClaimsCrashIsOrphaned(t *testing.T) {
	b := setup(t)
	b.carrier.then[address(0)] = []Outcome{Unknown}
	b.insert(1, 1, 2)
	s := b.sender()
	b.work(s)
	b.reap(s)
	b.crash(s, maxCrashes)
	if status, reason := b.status(0); status != "orphaned" || reason != "unknown_then_skipped" || b.carrier.called(address(0)) != 1 {
		t.Errorf("it is %s (%s)", status, reason)
	}
	b.wantCounts(notifications.Counts{Orphaned: 1})
}

func TestCrashesAreCountedInARow(t *testing.T) {
	b := setup(t)
	b.insert(3, 3, 2)
	b.carrier.then[address(0)] = []Outcome{NotAccepted}
	b.carrier.then[address(1)] = []Outcome{NotAccepted}
	s := b.sender()
	b.crash(s, maxCrashes-1)
	b.makeDue()
	b.work(s) // which opens a window
	if got := b.crash(s, maxCrashes-1); got.Crashed != 0 || got.Freed != 2 {
		t.Errorf("%+v", got)
	}
	b.makeDue()
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 3})
}

func TestACancelledBatchWhoseClaimsCrashIsCancelled(t *testing.T) {
	b := setup(t)
	b.insert(2, 2, 2)
	s := b.sender()
	b.crash(s, maxCrashes-1)
	b.makeDue()
	if c, err := s.Claim(bg, b.batches("true")[0]); c == nil || err != nil {
		t.Fatal(c, err)
	}
	b.Exec(`update batches set gate = 'cancelled'`)
	if got := b.reap(s); got.Crashed != 0 {
		t.Errorf("%+v", got)
	}
	b.wantCounts(notifications.Counts{Cancelled: 2})
}

// Of two batches that crashed together, one is claimed without the other.
func TestBatchesAreApartAfterCrashes(t *testing.T) {
	b := setup(t)
	b.insert(40, 1, 2)
	s := b.sender()
	b.crash(s, 1)
	if n := len(b.batches("due_at <= now()")); n != 40 {
		t.Errorf("%d batches are due after one crash", n)
	}
	b.crash(s, 1)
	if n := len(b.batches("due_at > now() + interval '1 second'")); n < 20 {
		t.Errorf("%d batches are due later after two crashes", n)
	}
}
