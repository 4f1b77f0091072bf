package chaos

import (
	"strings"
	"testing"
	"time"

	"lemma/pgtest"
)

// Two processes read one audience at the same time, because the first one's lease
// has expired, and all of River's jobs are deleted twice. Each profile gets one message.
func TestTwoFanoutsAtOnceAndLostJobs(t *testing.T) {
	t.Parallel()
	h := setup(t)
	people := h.customer(10_000)
	people.proxy.slow(400 * time.Millisecond)
	h.mail.slow(5 * time.Millisecond)
	workers := h.startWorkers(2, append(h.longTimeouts(), "LEMMA_FANOUT_WORKERS=1", "LEMMA_SEND_WORKERS=1", "LEMMA_SOURCE_TIMEOUT=60s")...)
	id := h.send(people)
	h.waitForMessages(1, 20*time.Second)

	people.proxy.freeze() // the first one reads until the second one does
	h.expireFanoutLease(id)
	pgtest.Eventually(h.t, 20*time.Second, "two fan-outs read at once", func() bool { return people.readers() == 2 })
	people.proxy.thaw()
	h.Exec(`truncate river_job`)
	release := h.mail.holdOne(t) // a worker calls one batch at a time, so the others wait
	people.proxy.slow(0)
	pgtest.Eventually(h.t, 20*time.Second, "the audience is read", func() bool {
		return h.Count(`select count(*) from fanouts where finished_at is not null`) == 1
	})
	waiting := h.Count(`select count(*) from batches where status = 'ready'`)
	h.Exec(`truncate river_job`)
	release()
	if waiting == 0 {
		t.Fatal("no batch was waiting for its job")
	}

	h.completed(id, 60*time.Second)
	sum := h.verify(people, id)
	if dup := h.mail.Stats().Duplicates; dup != 0 || sum.Unknown != 0 {
		t.Errorf("%d duplicates, %d unknown, although nothing crashed", dup, sum.Unknown)
	}
	if !strings.Contains(workers[0].output.String()+workers[1].output.String(), "enqueued due batches without a job") {
		t.Error("no batch was enqueued again: no job was lost, so nothing was tested")
	}
}

// readers counts the connections that read a customer's table.
func (c *customer) readers() int {
	c.T.Helper()
	return pgtest.One[int](c.T, c.DB, `select count(*) from pg_stat_activity
		where datname = current_database() and usename like 'reader%'`)
}
