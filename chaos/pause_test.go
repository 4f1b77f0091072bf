package chaos

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// A worker is frozen in the middle of its windows, as by the migration of a virtual
// machine. It loses its leases to the reaper and continues. It changes no outcome that
// was decided meanwhile.
func TestAWorkerThatIsFrozenPastItsLease(t *testing.T) {
	t.Parallel()
	h := setup(t)
	leases := []string{"LEMMA_LEASE=4s", "LEMMA_CALL_TIMEOUT=2s"} // of real time: a worker ends its calls in time by itself
	people := h.customer(3000)
	h.mail.slow(10 * time.Millisecond)
	frozen := h.startWorkers(1, leases...)[0]
	release := h.mail.holdAfter(t, 300)
	id := h.send(people)
	h.eventually("it is frozen with a lease, and its call has no answer yet", func() bool {
		h.waitForHeld(&h.mail.answers)
		frozen.freeze()
		if h.calling(frozen) {
			return true
		}
		frozen.thaw() // it was so slow that its lease ended before: again with the next message
		release()
		release = h.mail.hold(t)
		return false
	})
	release()
	h.startWorkers(2, leases...)
	h.eventually("the reaper has taken its leases", func() bool {
		return h.Count(`select count(*) from batches where leased_by like $1`, tokensOf(frozen)) == 0
	})
	h.eventually("second attempts have been made", func() bool {
		return h.Count(`select count(*) from attempts where attempt = 2`) > 0
	})
	before, sentBefore := h.decided(), h.requestsTo(id)
	frozen.thaw()
	h.eventually("it finds its leases lost", func() bool {
		return h.Count(`select count(*) from batch_log where event = 'lost' and token like $1`, tokensOf(frozen)) > 0
	})

	h.completedSoon(id)
	if sum := h.verify(people, id); sum.Unknown == 0 {
		t.Error("no outcome was unknown: nothing was tested")
	}
	after := h.decided()
	for row, outcome := range before {
		if after[row] != outcome {
			t.Errorf("the outcome of %s was %s and is %s", row, outcome, after[row])
		}
	}
	sentAfter := h.requestsTo(id)
	for name, n := range sentBefore {
		if sentAfter[name] != n {
			t.Errorf("%s was called again after the second attempt had been decided", name)
		}
	}
	h.verifyRunning([]*worker{frozen})
}

// calling reports that a worker has leases that last, and rows that are called.
func (h *env) calling(w *worker) bool {
	h.t.Helper()
	return h.Count(`select count(*) from batches where leased_by like $1 and lease_until > now() and calling > 0`, tokensOf(w)) > 0
}

// requestsTo counts the requests of notifications with a recorded second attempt. A
// further request would be one without a lease.
func (h *env) requestsTo(id uuid.UUID) map[string]int {
	h.t.Helper()
	requests := map[string]int{}
	for _, f := range h.outcomes(id) {
		if f.Second != "" {
			requests[f.Name] = f.bodies
		}
	}
	return requests
}

// decided are all recorded attempts, each as its whole row.
func (h *env) decided() map[string]string {
	h.t.Helper()
	rows, err := h.Pool.Query(h.t.Context(), `select batch_id || '/' || ordinal || '/' || attempt, a::text from attempts a`)
	h.Must(err)
	all := map[string]string{}
	var row, outcome string
	_, err = pgx.ForEachRow(rows, []any{&row, &outcome}, func() error { all[row] = outcome; return nil })
	h.Must(err)
	return all
}
