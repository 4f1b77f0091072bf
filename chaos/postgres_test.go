package chaos

import (
	"testing"
	"time"

	"lemma/dev/postgres"
	"lemma/pgtest"
)

// Postgres ends in the middle of a campaign and restarts before the leases expire.
// Outcomes are committed late, and none is unknown.
func TestAShortPostgresOutage(t *testing.T) {
	t.Parallel()
	for _, how := range []struct {
		name string
		end  func(*postgres.Cluster) error
	}{{"stopped", (*postgres.Cluster).Stop}, {"crashed", (*postgres.Cluster).Crash}} {
		t.Run(how.name, func(t *testing.T) {
			t.Parallel()
			h, c := setupOwnCluster(t)
			people := h.customer(3000)
			h.mail.slow(5 * time.Millisecond)
			workers := h.startWorkers(2)
			release := h.mail.holdAfter(t, 500)
			id := h.send(people)
			h.waitForHeld(&h.mail.answers)

			h.Must(how.end(c))
			release() // the answers come while there is no Postgres
			h.waitForIdle(200 * time.Millisecond)
			h.restart(c)

			h.completedSoon(id)
			sum := h.verify(people, id)
			if sum.Unknown != 0 || h.mail.Stats().Duplicates != 0 {
				t.Errorf("%d unknown and %d duplicates, although no lease had expired", sum.Unknown, h.mail.Stats().Duplicates)
			}
			h.verifyRunning(workers)
		})
	}
}

// Postgres crashes and restarts after the leases have expired.
func TestAPostgresOutageLongerThanLeases(t *testing.T) {
	t.Parallel()
	h, c := setupOwnCluster(t)
	people := h.customer(3000)
	h.mail.slow(5 * time.Millisecond)
	workers := h.startWorkers(2, shortLeases...)
	release := h.mail.holdAfter(t, 500)
	id := h.send(people)
	h.waitForHeld(&h.mail.answers)

	h.Must(c.Crash())
	release()
	h.waitForIdle(3 * time.Second) // a lease lasts 2 s
	h.restart(c)

	h.completedSoon(id)
	h.verify(people, id)
	h.verifyRunning(workers)
}

// setupOwnCluster creates an env in its own cluster.
func setupOwnCluster(t *testing.T) (*env, *postgres.Cluster) {
	t.Helper()
	setup(t) // skips where there is no Postgres
	c, err := durable("own-" + t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Crash() })
	return setupIn(t, c), c
}

// restart starts Postgres again and closes the broken connections.
func (h *env) restart(c *postgres.Cluster) {
	h.t.Helper()
	h.Must(c.Start(h.t.Context()))
	h.Pool.Reset()
}

// waitForIdle waits until no message has arrived for a while.
func (h *env) waitForIdle(d time.Duration) {
	h.t.Helper()
	last, since := -1, time.Now()
	pgtest.Eventually(h.t, longestWait, "no message arrives any more", func() bool {
		if n := h.mail.received(); n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) > d
	})
}

// verifyRunning verifies that the workers have not exited.
func (h *env) verifyRunning(workers []*worker) {
	h.t.Helper()
	for _, w := range workers {
		if w.isGone() {
			h.t.Errorf("a worker has exited: %v", w.cmd.ProcessState)
		}
	}
}
