package chaos

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/pgtest"
)

// run is how often the reading of a campaign's audience has begun, if it is being read.
func (h *env) run(id uuid.UUID) int {
	h.t.Helper()
	return h.Count(`select coalesce(max(runs), 0) from fanouts where campaign_id = $1 and leased_by is not null and finished_at is null`, id)
}

// reader starts a worker that reads a large audience, whose source is frozen meanwhile.
func (h *env) reader(settings ...string) (people *customer, reader *worker, id uuid.UUID) {
	h.t.Helper()
	people = h.largeCustomer(6_000)
	reader = h.startWorkers(1, settings...)[0]
	id = h.send(people)
	h.waitForMessages(1)
	return people, reader, id
}

// A worker gets SIGTERM while it reads an audience. Another one continues at once,
// without waiting for a sweep.
func TestAShutdownReleasesTheFanout(t *testing.T) {
	t.Parallel()
	h := setup(t)
	people, first, id := h.reader("LEMMA_SWEEP_EVERY=1h")
	h.startWorkers(1, "LEMMA_SWEEP_EVERY=1h")
	before := h.run(id)
	first.shutDown()
	begun := time.Now()
	h.eventually("the audience is being read by the next run", func() bool { return h.run(id) > before })
	t.Logf("the other worker continued after %v", time.Since(begun).Round(time.Millisecond))
	people.proxy.thaw()
	h.completed(id)
	h.verify(people, id)
}

// A worker is killed while it reads an audience. Another one continues when the lease
// (LEMMA_LEASE) has expired, and not before.
func TestAKilledFanoutIsTakenOverAfterItsLease(t *testing.T) {
	t.Parallel()
	h := setup(t)
	people, first, id := h.reader("LEMMA_LEASE=4s", "LEMMA_CALL_TIMEOUT=1s")
	first.end()
	before := h.run(id)
	until := pgtest.One[time.Time](h.T, h.Pool, `select lease_until from fanouts where campaign_id = $1`, id)
	h.startWorkers(1)
	h.eventually("the audience is being read by the next run", func() bool { return h.run(id) > before })
	if now := pgtest.One[time.Time](h.T, h.Pool, `select now()`); now.Before(until) {
		t.Errorf("another worker reads the audience %v before the lease ends", until.Sub(now))
	}
	people.proxy.thaw()
	h.completed(id)
	h.verify(people, id)
}
