package chaos

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/pgtest"
)

// reading waits until the n-th run reads a campaign's audience.
func (h *env) reading(id uuid.UUID, run int, within time.Duration) {
	h.t.Helper()
	pgtest.Eventually(h.t, within, "the audience is being read by the next run", func() bool {
		return h.Count(`select count(*) from fanouts
			where campaign_id = $1 and leased_by is not null and finished_at is null and runs = $2`, id, run) == 1
	})
}

// interrupted starts a worker that reads a large audience slowly, then another
// one, and returns the first while it reads.
func (h *env) interrupted(people *customer, settings ...string) (*worker, uuid.UUID) {
	h.t.Helper()
	people.proxy.slow(400 * time.Millisecond)
	first := h.startWorkers(1, settings...)[0]
	id := h.send(people)
	h.waitForMessages(1, 20*time.Second)
	h.startWorkers(1, settings...)
	h.reading(id, 1, time.Second)
	return first, id
}

// A worker gets SIGTERM while it reads an audience. Another one continues at once,
// without waiting for the end of a lease or for a sweep.
func TestAShutdownReleasesTheFanout(t *testing.T) {
	t.Parallel()
	h := setup(t)
	people := h.customer(10_000)
	first, id := h.interrupted(people, append(longLeases, "LEMMA_SWEEP_EVERY=10m")...)
	first.shutDown()
	begun := time.Now()
	h.reading(id, 2, 10*time.Second)
	t.Logf("the other worker continued after %v", time.Since(begun).Round(time.Millisecond))
	people.proxy.slow(0)
	h.completed(id, 60*time.Second)
	h.verify(people, id)
}

// A worker is killed while it reads an audience. Another one continues when the lease
// (LEMMA_LEASE) has expired.
func TestAKilledFanoutIsTakenOverAfterItsLease(t *testing.T) {
	t.Parallel()
	h := setup(t)
	people := h.customer(10_000)
	first, id := h.interrupted(people, "LEMMA_LEASE=4s")
	first.kill()
	begun := time.Now()
	h.reading(id, 2, 15*time.Second)
	t.Logf("the other worker continued after %v", time.Since(begun).Round(time.Millisecond))
	people.proxy.slow(0)
	h.completed(id, 60*time.Second)
	h.verify(people, id)
}
