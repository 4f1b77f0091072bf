package chaos

import (
	"testing"
	"time"
)

// All workers are told to go in the middle of a campaign, as in a deployment.
// They go of their own accord and leave nothing in doubt; others finish.
func TestShutdownLeavesNothingInDoubt(t *testing.T) {
	h := build(t)
	people := h.customer(4000)
	h.post.slow(20 * time.Millisecond) // a batch lasts ten seconds, a window a fifth of one
	workers := h.startWorkers(2, patient...)
	id := h.send(people)
	h.lettersOut(500, 20*time.Second)

	for _, w := range workers {
		w.shutDown()
	}
	for _, w := range workers {
		h.until(5*time.Second, "the worker has gone", w.isGone)
		if w.exitCode() != 0 {
			t.Errorf("a worker that was asked to go exited with %d", w.exitCode())
		}
	}
	if out := h.post.taken(); out > 3000 {
		t.Fatalf("%d mails were out already: nothing was interrupted", out)
	}
	h.nothingInDoubt()

	h.post.slow(0)
	h.work()
	h.completed(id, 30*time.Second)
	sum := h.judge(people, id)
	if dup := h.post.Stats().Duplicates; dup != 0 || sum.Doubts != 0 || sum.Status["orphaned"] != 0 {
		t.Errorf("%d duplicates, %d in doubt, %d orphaned after an orderly shutdown", dup, sum.Doubts, sum.Status["orphaned"])
	}
}

// nothingInDoubt: nobody holds a lease, and what was called has its outcome.
func (h *house) nothingInDoubt() {
	h.t.Helper()
	if n := h.count(`select count(*) from batches where status = 'leased'`); n != 0 {
		h.t.Errorf("%d batches are still leased", n)
	}
	if n := h.count(`select count(*) from attempts where outcome = 'unknown'`); n != 0 {
		h.t.Errorf("%d attempts ended as unknown", n)
	}
	if known, taken := h.count(`select count(*) from attempts where outcome = 'accepted'`), h.post.taken(); known != taken {
		h.t.Errorf("the mail server took %d mails, the ledger knows of %d", taken, known)
	}
}
