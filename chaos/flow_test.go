package chaos

import (
	"math/rand/v2"
	"testing"
	"time"

	"lemma/flows"
	"lemma/pgtest"
)

// Workers are killed: first all of them while one has a shard and a message waits for its
// answer, then at random moments, sometimes all at once. Meanwhile profiles are enrolled, each
// by an event that is recorded twice, and execute shortFlow. All complete, every node acts
// once, and no profile is enrolled twice.
func TestKilledWorkersLoseNoEnrollment(t *testing.T) {
	t.Parallel()
	h := setup(t)
	kills := h.kills(8)
	people := kills * perKill
	c := h.customer(people)
	f := h.flows()
	flow := h.live(f, c, shortFlow)
	workers, random := h.startWorkers(3), h.random()

	h.killDuringFlow(f, workers, random, kills, people)
	if sum := h.verifyFlow(flow); sum.Unknown == 0 {
		t.Error("no kill left an unknown outcome: nothing was tested")
	}
	h.WantCount(people, `select count(*) from enrollments
		where workspace_id = $1 and flow_id = $2 and status = 'completed' and step = 6`, h.Workspace, flow)
	h.WantCount(people, `select count(*) from trigger_events where workspace_id = $1`, h.Workspace)
}

// killDuringFlow kills workers while people execute the flow.
func (h *env) killDuringFlow(f *flows.Flows, workers []*worker, random *rand.Rand, kills, people int) {
	h.t.Helper()
	const chunk = perKill
	recorded := make(chan error, 1)
	go func() {
		for from := 1; from <= people; from += chunk {
			for range 2 {
				if err := h.recordSignUps(f, from, from+chunk-1); err != nil {
					recorded <- err
					return
				}
			}
		}
		recorded <- nil
	}()
	for i, at := range killPoints(random, kills, people*5) { // each has six steps
		pgtest.Eventually(h.t, 60*time.Second, "enrollments execute steps", func() bool {
			select {
			case err := <-recorded: // x recorded of does not move
				h.Must(err)
				recorded <- nil
			default:
			}
			h.expireOldShardLeases()
			return h.processed() >= at
		})
		switch {
		case i == 0:
			h.killDuringStep(workers)
		case i%5 == 0:
			killAll(workers)
		}
		one := random.IntN(len(workers))
		workers[one].kill()
		h.expireShardLeases()
		for j, w := range workers {
			if w.isGone() {
				workers[j] = h.work()
			}
		}
	}
	h.Must(<-recorded)
	h.waitForCompletion(60 * time.Second)
}

func killAll(workers []*worker) {
	for _, w := range workers {
		w.kill()
	}
}

// killDuringStep kills all workers while one of them has a shard and stores messages, and
// while a message waits for its answer.
func (h *env) killDuringStep(workers []*worker) {
	h.t.Helper()
	defer h.mail.holdOne(h.t)()
	unlock := h.lock(`lock table notifications in share mode`)
	pgtest.WaitForLocks(h.t, h.Pool, 1)
	killAll(workers)
	unlock()
	if h.expireShardLeases() == 0 {
		h.t.Error("no worker was killed while it had a shard: nothing was tested")
	}
}
