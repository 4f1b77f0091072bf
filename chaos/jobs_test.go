package chaos

import (
	"strings"
	"testing"

	"lemma/pgtest"
)

// Two processes read one audience at the same time, because the first one's lease
// has expired, and all of River's jobs are deleted twice. Each profile gets one message.
func TestTwoFanoutsAtOnceAndLostJobs(t *testing.T) {
	t.Parallel()
	h := setup(t)
	people := h.largeCustomer(6_000)
	settings := []string{"LEMMA_FANOUT_WORKERS=1", "LEMMA_SEND_WORKERS=1"}
	first := h.startWorkers(1, settings...)[0]
	release := h.mail.hold(t) // a worker calls one batch at a time, so the others wait
	id := h.send(people)
	h.waitForHeld(&h.mail.answers)

	h.freezeIdle(first) // until another one reads: it does not know that its lease ends
	h.expireFanoutLease()
	second := h.startWorkers(1, settings...)[0]
	h.eventually("two fan-outs read at once", func() bool { return h.run(id) == 2 && people.readers() == 2 })
	first.thaw()
	h.Exec(`truncate river_job`)
	people.proxy.thaw()
	h.eventually("the audience is read", func() bool {
		return h.Count(`select count(*) from fanouts where finished_at is not null`) == 1
	})
	if h.Count(`select count(*) from batches where status = 'ready'`) == 0 {
		t.Fatal("no batch is waiting for its job")
	}
	h.Exec(`truncate river_job`)
	h.eventually("a batch is enqueued again", func() bool {
		return strings.Contains(first.output.String()+second.output.String(), "enqueued due batches without a job")
	})
	release()

	h.completed(id)
	sum := h.verify(people, id)
	if dup := h.mail.Stats().Duplicates; dup != 0 || sum.Unknown != 0 {
		t.Errorf("%d duplicates, %d unknown, although nothing crashed", dup, sum.Unknown)
	}
}

// readers counts the connections that read a customer's table.
func (c *customer) readers() int {
	c.T.Helper()
	return pgtest.One[int](c.T, c.DB, `select count(*) from pg_stat_activity
		where datname = current_database() and usename like 'reader%'`)
}
