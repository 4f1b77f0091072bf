package chaos

import (
	"strings"
	"testing"
	"time"
)

// Two processes read one audience at the same time, because the first one's
// lease was lost, and all of River's jobs are gone, twice. Nobody is missing
// and nobody is written to twice.
func TestTwoFanoutsAtOnceAndEveryBellLost(t *testing.T) {
	h := build(t)
	people := h.customer(12_000)
	people.wire.slow(150 * time.Millisecond)
	h.post.slow(5 * time.Millisecond)
	workers := h.startWorkers(2, append(patient, "LEMMA_FANOUT_WORKERS=1", "LEMMA_SEND_WORKERS=1")...)
	id := h.send(people)
	h.lettersOut(1, 20*time.Second)

	h.forgetReader(id)
	h.until(20*time.Second, "two fan-outs read at once", func() bool { return people.readers(h) == 2 })
	h.run(h.pool, `truncate river_job`)
	people.wire.slow(0)
	h.until(20*time.Second, "the audience is read", func() bool {
		return h.count(`select count(*) from fanouts where finished_at is not null`) == 1
	})
	waiting := h.count(`select count(*) from batches where status = 'ready'`)
	h.run(h.pool, `truncate river_job`)
	if waiting == 0 {
		t.Fatal("no batch was waiting for its bell")
	}

	h.completed(id, 60*time.Second)
	sum := h.judge(people, id)
	if dup := h.post.Stats().Duplicates; dup != 0 || sum.Doubts != 0 {
		t.Errorf("%d duplicates, %d in doubt, although nothing crashed", dup, sum.Doubts)
	}
	if !strings.Contains(workers[0].said.String()+workers[1].said.String(), "enqueued due batches without a job") {
		t.Error("no batch was enqueued again: no job was lost, and this has shown nothing")
	}
}

// readers counts who reads a customer's people at the moment.
func (c *customer) readers(h *house) (n int) {
	h.t.Helper()
	h.must(c.pool.QueryRow(h.t.Context(), `select count(*) from pg_stat_activity where datname = current_database() and usename like 'reader%'`).Scan(&n))
	return n
}
