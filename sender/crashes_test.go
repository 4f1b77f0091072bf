package sender

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lemma"
	"lemma/message"
	"lemma/notifications"
)

// crash claims the batches that are ready n times, and lets each lease expire before
// a call.
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
	if status, reason := b.status(0); status != "skipped" || reason != batchCrashed || b.carrier.called(addressOf(0)) != 0 {
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
	b.carrier.then[addressOf(0)] = []Outcome{Unknown}
	b.insert(1, 1, 2)
	s := b.sender()
	b.work(s)
	b.reap(s)
	b.crash(s, maxCrashes)
	if status, reason := b.status(0); status != "orphaned" || reason != "unknown_then_skipped" || b.carrier.called(addressOf(0)) != 1 {
		t.Errorf("it is %s (%s)", status, reason)
	}
	b.wantCounts(notifications.Counts{Orphaned: 1})
}

// A batch that the reaper cannot decide, since a statement fails or the code panics, stops none
// of the others.
func TestABatchThatCannotBeReapedStopsNoOther(t *testing.T) {
	b := setup(t)
	b.insert(3, 1, 2)
	s := b.sender()
	for _, ref := range b.batches("status = 'ready'") {
		if c, err := s.Claim(bg, ref); c == nil || err != nil {
			t.Fatal(c, err)
		}
	}
	b.expireLeases()
	at(s, "reaping", 1, func() { panic("a fault") })
	got, err := s.Reap(bg)
	if err == nil || !strings.Contains(err.Error(), "a fault") || got.Freed != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestCrashesAreCountedInARow(t *testing.T) {
	b := setup(t)
	b.insert(3, 3, 2)
	b.carrier.then[addressOf(0)] = []Outcome{NotAccepted}
	b.carrier.then[addressOf(1)] = []Outcome{NotAccepted}
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

// panicAt makes the rendering of one recipient panic.
func (b *bundle) panicAt(s *Sender, i int) {
	b.T.Helper()
	d, err := s.content(bg, b.Workspace, b.origin)
	b.Must(err)
	render, killer := d.renderMessage, strings.Split(addressOf(i), "@")[0][1:]
	d.renderMessage = func(payload, link string, t message.Tracking, within time.Duration) (message.Content, [][2]string, error) {
		if strings.Contains(payload, `"N`+killer+`"`) {
			panic("killed while rendering")
		}
		return render(payload, link, t, within)
	}
}

// workUntilKilled works every ready batch once, until all have ended or the reaper has
// ended rows, and counts the workers that were killed. The leases of those expire.
func (b *bundle) workUntilKilled(s *Sender) (killed int, last Reaped) {
	b.T.Helper()
	for range 20 {
		b.makeDue()
		for _, ref := range b.batches("status = 'ready'") {
			err := lemma.Recovered(func() error { _, err := s.Work(bg, ref); return err })
			if err != nil && !strings.Contains(err.Error(), "killed while rendering") {
				b.T.Fatal(err)
			}
			if err != nil {
				killed++
			}
		}
		if last = b.reap(s); last.Crashed > 0 || b.counts().Open == 0 {
			return killed, last
		}
	}
	return killed, last
}

// One row of a batch kills each worker that renders it. Only this row is skipped, and
// every other is sent once, wherever the row is.
func TestOnlyTheRowThatKillsWorkersIsSkipped(t *testing.T) {
	for _, at := range []int{0, 4, 30, 59} {
		t.Run(fmt.Sprint("ordinal ", at), func(t *testing.T) {
			b := setup(t)
			b.insert(60, 60, 1)
			i := b.Count(`select profile_key::int from notifications where workspace_id = $1 and ordinal = $2`, b.Workspace, at)
			s := b.sender()
			b.panicAt(s, i)
			killed, reaped := b.workUntilKilled(s)
			if reaped.Crashed != 1 || killed < maxCrashes || killed > maxCrashes+4 || !slices.Equal(b.paused, []string{batchCrashed}) {
				t.Errorf("%d killed, %+v, paused %q", killed, reaped, b.paused)
			}
			if status, reason := b.status(i); status != "skipped" || reason != batchCrashed {
				t.Errorf("it is %s (%s)", status, reason)
			}
			b.Exec(`update batches set gate = 'open'`)
			if more, _ := b.workUntilKilled(s); more != 0 {
				t.Errorf("%d killed after its end", more)
			}
			sum := b.counts()
			if sum.Skipped != 1 || sum.Sent+sum.Orphaned != 59 || sum.Open != 0 || !sum.Balanced {
				t.Errorf("%+v", sum)
			}
			for j := range 60 {
				if n := b.carrier.called(addressOf(j)); (n == 1) == (j == i) {
					t.Errorf("%s was called %d times", addressOf(j), n)
				}
			}
			e, err := b.ledger.Explain(bg, b.Workspace, b.origin, keyOf(i))
			if err != nil || !slices.ContainsFunc(e.Steps, func(s notifications.Step) bool { return s.Event == "rendering" }) {
				t.Errorf("%+v, %v", e.Steps, err)
			}
		})
	}
}

// Two rows of a batch kill workers. Each is found by itself, and the reasons add up.
func TestTwoRowsThatKillWorkersAreSkipped(t *testing.T) {
	b := setup(t)
	b.insert(3, 3, 2)
	s := b.sender()
	b.panicAt(s, 0)
	b.panicAt(s, 2)
	for range 2 {
		if killed, reaped := b.workUntilKilled(s); killed < maxCrashes || reaped.Crashed != 1 {
			t.Errorf("%d killed, %+v", killed, reaped)
		}
		b.Exec(`update batches set gate = 'open'`)
	}
	b.workUntilKilled(s)
	b.wantCounts(notifications.Counts{Sent: 1, Skipped: 2})
	if by := b.counts().SkippedBy[batchCrashed]; by != 2 {
		t.Errorf("%d rows are skipped as %s", by, batchCrashed)
	}
}

// The row that an earlier claim was rendering is not ended for a claim that crashed
// before it rendered a row.
func TestTheRowOfAnEarlierClaimIsNotBlamed(t *testing.T) {
	b := setup(t)
	b.insert(3, 3, 2)
	s := b.sender()
	b.crash(s, aloneAfter)
	b.makeDue()
	c, err := s.Claim(bg, b.batches("true")[0])
	b.Must(err)
	if ok, err := s.renderAlone(bg, c, nil); !ok || err != nil {
		t.Fatal(ok, err)
	}
	b.reap(s)
	if got := b.crash(s, maxCrashes-aloneAfter-1); got.Crashed != 3 {
		t.Errorf("%+v", got)
	}
}

// A worker that lost its lease renders no row alone.
func TestNoRowIsRenderedAloneWithoutTheLease(t *testing.T) {
	b := setup(t)
	b.insert(2, 2, 2)
	s := b.sender()
	b.crash(s, aloneAfter)
	b.makeDue()
	c, err := s.Claim(bg, b.batches("true")[0])
	if err != nil || !c.alone() {
		t.Fatal(c, err)
	}
	b.reap(s)
	if ok, err := s.renderAlone(bg, c, nil); ok || err != nil {
		t.Errorf("logged: %t, %v", ok, err)
	}
	b.WantCount(0, `select count(*) from batch_log where event = 'rendering'`)
}
