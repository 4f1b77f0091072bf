package chaos

import (
	"testing"
	"time"

	"lemma/dev/postgres"
)

// Postgres goes in the middle of a campaign and is back before the leases run
// out. What was called is committed late, and nothing is in doubt.
func TestPostgresGoesAndIsSoonBack(t *testing.T) {
	for _, how := range []struct {
		name string
		end  func(*postgres.Cluster) error
	}{{"stopped", (*postgres.Cluster).Stop}, {"crashed", (*postgres.Cluster).Crash}} {
		t.Run(how.name, func(t *testing.T) {
			h, c := buildApart(t)
			people := h.customer(3000)
			h.post.slow(5 * time.Millisecond)
			workers := h.startWorkers(2, patient...)
			id := h.send(people)
			h.lettersOut(500, 20*time.Second)

			h.must(how.end(c))
			h.quiet(200 * time.Millisecond)
			if h.post.taken() > 2000 {
				t.Fatal("the campaign was over before Postgres went")
			}
			h.restart(c)

			h.completed(id, 60*time.Second)
			sum := h.judge(people, id)
			if sum.Doubts != 0 || h.post.Stats().Duplicates != 0 {
				t.Errorf("%d in doubt and %d duplicates, although the leases still held", sum.Doubts, h.post.Stats().Duplicates)
			}
			h.stillWork(workers)
		})
	}
}

// Postgres crashes and stays away for longer than a lease lasts.
func TestPostgresStaysAwayPastTheLeases(t *testing.T) {
	h, c := buildApart(t)
	people := h.customer(3000)
	h.post.slow(5 * time.Millisecond)
	workers := h.startWorkers(2)
	id := h.send(people)
	h.lettersOut(500, 20*time.Second)

	h.must(c.Crash())
	h.quiet(3 * time.Second) // a lease is two
	h.restart(c)

	h.completed(id, 60*time.Second)
	h.judge(people, id)
	h.stillWork(workers)
}

// buildApart is a house in a cluster of its own.
func buildApart(t *testing.T) (*house, *postgres.Cluster) {
	t.Helper()
	build(t) // skips where there is no Postgres
	c, err := durable("apart-" + t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Crash() })
	return buildIn(t, c), c
}

// restart starts Postgres again; our own connections are of no more use.
func (h *house) restart(c *postgres.Cluster) {
	h.t.Helper()
	h.must(c.Start(h.t.Context()))
	h.pool.Reset()
}

// quiet waits until no mail has come for a while.
func (h *house) quiet(d time.Duration) {
	h.t.Helper()
	last, since := -1, time.Now()
	h.until(d+20*time.Second, "no mail comes any more", func() bool {
		if n := h.post.taken(); n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) > d
	})
}

// stillWork: the processes that were there are there.
func (h *house) stillWork(workers []*worker) {
	h.t.Helper()
	for _, w := range workers {
		if w.isGone() {
			h.t.Errorf("a worker did not live through it: %v", w.cmd.ProcessState)
		}
	}
}
