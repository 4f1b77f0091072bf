package chaos

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/pgtest"
)

// A worker is frozen in the middle of its windows, as by the migration of a virtual
// machine. It loses its leases to the reaper and continues. It changes no outcome that
// was decided meanwhile.
func TestAWorkerThatIsFrozenPastItsLease(t *testing.T) {
	t.Parallel()
	h := setup(t)
	people := h.customer(3000)
	h.mail.slow(10 * time.Millisecond)
	frozen := h.startWorkers(1)[0]
	id := h.send(people)
	h.waitForMessages(300, 20*time.Second)

	release := h.mail.holdOne(t) // its call has no answer yet
	frozen.freeze()
	release()
	others := fmt.Sprintf("%%.%d.%%", frozen.cmd.Process.Pid) // the worker in tokens
	if h.Count(`select count(*) from batches where leased_by like $1`, others) == 0 {
		t.Fatal("it was frozen without a lease")
	}
	h.startWorkers(2)
	pgtest.Eventually(h.t, 20*time.Second, "the reaper has taken its leases", func() bool {
		return h.Count(`select count(*) from batches where leased_by like $1`, others) == 0
	})
	pgtest.Eventually(h.t, 20*time.Second, "second attempts have been made", func() bool {
		return h.Count(`select count(*) from attempts where attempt = 2`) > 0
	})
	before, sentBefore := h.decided(), h.requestsTo(id)
	frozen.thaw()
	pgtest.Eventually(h.t, 20*time.Second, "it finds its leases lost", func() bool {
		return h.Count(`select count(*) from batch_log where event = 'lost' and token like $1`, others) > 0
	})

	h.completed(id, 60*time.Second)
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
