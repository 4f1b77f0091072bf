package chaos

import (
	"math/rand/v2"
	"testing"
	"time"

	"lemma/flows"
	"lemma/pgtest"
)

// Workers are killed at random moments, sometimes all at once. Meanwhile profiles are
// enrolled, each by an event that is recorded twice, and execute shortFlow. All complete,
// every node acts once, and no profile is enrolled twice. If no kill hit a shard lease or
// left an unknown outcome, the test repeats.
func TestKilledWorkersLoseNoEnrollment(t *testing.T) {
	t.Parallel()
	h := setup(t)
	kills := h.kills(20)
	size := kills * perKill
	people := size
	c := h.customer(people)
	f := h.flows()
	flow := h.live(f, c, shortFlow)
	workers, random := h.startWorkers(3), h.random()

	held := h.killDuringFlow(f, workers, random, kills, 1, people)
	sum := h.verifyFlow(flow)
	for more := 0; more < 3 && (held == 0 || sum.Unknown == 0); more++ {
		first, last := people+1, people+size
		c.ExecDB(`insert into people select i, 'p' || i || '@shop.example', 'Name ' || i, false
			from generate_series($1::int, $2::int) i`, first, last)
		people = last
		held += h.killDuringFlow(f, workers, random, kills, first, last)
		sum = h.verifyFlow(flow)
	}
	if held == 0 {
		t.Error("no worker was killed while it held a shard: nothing was tested")
	}
	if sum.Unknown == 0 {
		t.Error("no kill left an unknown outcome: nothing was tested")
	}
	h.WantCount(people, `select count(*) from enrollments
		where workspace_id = $1 and flow_id = $2 and status = 'completed' and step = 6`, h.Workspace, flow)
	h.WantCount(people, `select count(*) from trigger_events where workspace_id = $1`, h.Workspace)
}

// killDuringFlow kills workers while profiles first to last execute the flow, and
// returns how many shards were leased when all workers were killed.
func (h *env) killDuringFlow(f *flows.Flows, workers []*worker, random *rand.Rand, kills, first, last int) (held int) {
	h.t.Helper()
	const chunk = perKill
	before := h.processed()
	recorded := make(chan error, 1)
	go func() {
		for from := first; from <= last; from += chunk {
			for range 2 {
				if err := h.recordSignUps(f, from, from+chunk-1); err != nil {
					recorded <- err
					return
				}
			}
		}
		recorded <- nil
	}()
	for i, at := range killPoints(random, kills, (last-first+1)*5) { // each has six steps
		pgtest.Eventually(h.t, 60*time.Second, "enrollments execute steps", func() bool {
			select {
			case err := <-recorded: // x recorded of does not move
				h.Must(err)
				recorded <- nil
			default:
			}
			h.expireOldShardLeases()
			return h.processed() >= before+at
		})
		if i%5 == 0 {
			for _, w := range workers {
				w.kill()
			}
			held += h.expireShardLeases()
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
	return held
}
