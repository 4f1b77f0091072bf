package chaos

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// A worker is stopped in the middle of its windows (SIGSTOP; a virtual machine
// that is moved does the same), loses its leases to the reaper, and goes on as
// if nothing had happened. What was decided meanwhile stays.
func TestAWorkerThatSleepsPastItsLease(t *testing.T) {
	h := build(t)
	people := h.customer(3000)
	h.post.slow(10 * time.Millisecond)
	sleeper := h.startWorkers(1)[0]
	id := h.send(people)
	h.lettersOut(300, 20*time.Second)

	sleeper.freeze()
	others := fmt.Sprintf("%%.%d.%%", sleeper.cmd.Process.Pid) // its name in tokens
	if h.count(`select count(*) from batches where leased_by like $1`, others) == 0 {
		t.Fatal("it was stopped with nothing in its hands")
	}
	h.startWorkers(2)
	h.until(20*time.Second, "the reaper has taken what it held", func() bool {
		return h.count(`select count(*) from batches where leased_by like $1`, others) == 0
	})
	h.until(20*time.Second, "second attempts have been made", func() bool {
		return h.count(`select count(*) from attempts where attempt = 2`) > 0
	})
	before, sentBefore := h.decided(), h.requestsTo(id)
	sleeper.thaw()
	h.until(20*time.Second, "it finds its leases lost", func() bool {
		return h.count(`select count(*) from batch_log where event = 'lost' and token like $1`, others) > 0
	})

	h.completed(id, 60*time.Second)
	if sum := h.judge(people, id); sum.Doubts == 0 {
		t.Error("nothing was in doubt: this has shown nothing")
	}
	after := h.decided()
	for row, outcome := range before {
		if after[row] != outcome {
			t.Errorf("the outcome of %s was %s and is %s", row, outcome, after[row])
		}
	}
	sentAfter := h.requestsTo(id)
	for who, n := range sentBefore {
		if sentAfter[who] != n {
			t.Errorf("%s was called again after the second attempt had been decided", who)
		}
	}
	h.stillWork([]*worker{sleeper})
}

// requestsTo counts the requests for everybody whose second attempt is on
// record: whoever calls them now does so without a lease.
func (h *house) requestsTo(id uuid.UUID) map[string]int {
	h.t.Helper()
	requests := map[string]int{}
	for _, f := range h.fates(id) {
		if f.Second != "" {
			requests[f.Name] = f.bodies
		}
	}
	return requests
}

// decided are all attempts that are on record, each with all that it says.
func (h *house) decided() map[string]string {
	h.t.Helper()
	rows, err := h.pool.Query(h.t.Context(), `select batch_id || '/' || ordinal || '/' || attempt, a::text from attempts a`)
	h.must(err)
	all := map[string]string{}
	var row, outcome string
	_, err = pgx.ForEachRow(rows, []any{&row, &outcome}, func() error { all[row] = outcome; return nil })
	h.must(err)
	return all
}
