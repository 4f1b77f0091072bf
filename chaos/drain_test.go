package chaos

import (
	"testing"
	"time"
)

// All workers get SIGTERM in the middle of a campaign, as in a deployment. They exit
// without unknown outcomes, and another worker finishes the campaign.
func TestShutdownLeavesNothingUnknown(t *testing.T) {
	t.Parallel()
	h := setup(t)
	people := h.customer(4000)
	h.mail.slow(50 * time.Millisecond) // a batch takes 25 s, a window 100 ms
	workers := h.startWorkers(2)
	release := h.mail.holdAfter(t, 200)
	id := h.send(people)
	h.waitForHeld(&h.mail.answers)
	for _, w := range workers {
		w.shutDown()
	}
	release()
	for _, w := range workers {
		h.eventually("the worker has exited", w.isGone)
		if w.exitCode() != 0 {
			t.Errorf("a worker exited with %d after SIGTERM", w.exitCode())
		}
	}
	if out := h.mail.received(); out > 3000 {
		t.Fatalf("%d messages were sent already: nothing was interrupted", out)
	}
	h.verifyNothingUnknown()

	h.mail.slow(0)
	h.work()
	h.completed(id)
	sum := h.verify(people, id)
	if dup := h.mail.Stats().Duplicates; dup != 0 || sum.Unknown != 0 || sum.Status["orphaned"] != 0 {
		t.Errorf("%d duplicates, %d unknown, %d orphaned after a shutdown", dup, sum.Unknown, sum.Status["orphaned"])
	}
}

// verifyNothingUnknown verifies that no batch is leased and each attempt has its outcome.
func (h *env) verifyNothingUnknown() {
	h.t.Helper()
	if n := h.Count(`select count(*) from batches where status = 'leased'`); n != 0 {
		h.t.Errorf("%d batches are still leased", n)
	}
	if n := h.Count(`select count(*) from attempts where outcome = 'unknown'`); n != 0 {
		h.t.Errorf("%d attempts are unknown", n)
	}
	if known, received := h.Count(`select count(*) from attempts where outcome = 'accepted'`), h.mail.received(); known != received {
		h.t.Errorf("the mail server received %d messages, %d attempts are accepted", received, known)
	}
}
