package chaos

import (
	"math/rand/v2"
	"testing"

	"lemma/flows"
)

// Workers are killed: first all of them while one has a shard and a message waits for its
// answer, then at random moments, sometimes all at once. Meanwhile profiles are enrolled, each
// by an event that is recorded twice, and execute shortFlow. All complete, every node acts
// once, and no profile is enrolled twice.
func TestKilledWorkersLoseNoEnrollment(t *testing.T) {
	t.Parallel()
	h := setup(t)
	kills := h.kills(6)
	people := kills * perKill
	c := h.customer(people)
	f := h.flows()
	flow := h.live(f, c, shortFlow)
	workers, random := h.startWorkers(3), h.random()

	h.killDuringStep(f, workers)
	h.killDuringFlow(f, workers, random, kills-1, people)
	if sum := h.verifyFlow(flow); sum.Unknown == 0 {
		t.Error("no kill left an unknown outcome: nothing was tested")
	}
	h.WantCount(people, `select count(*) from enrollments
		where workspace_id = $1 and flow_id = $2 and status = 'completed' and step = 6`, h.Workspace, flow)
	h.WantCount(people, `select count(*) from trigger_events where workspace_id = $1`, h.Workspace)
}

// killDuringStep kills all workers while one of them has a shard and stores messages, and
// while a message waits for its answer. Those of the first profiles are stored before, and
// those of the next ones cannot be.
func (h *env) killDuringStep(f *flows.Flows, workers []*worker) {
	h.t.Helper()
	release := h.mail.hold(h.t)
	h.Must(h.recordSignUps(f, 1, perKill/2))
	h.waitForHeld(&h.mail.answers)
	unlock := h.lock(`lock table notifications in share mode`)
	h.Must(h.recordSignUps(f, perKill/2+1, perKill))
	h.eventually("a worker with a shard waits to store messages", func() bool {
		return h.Count(`select count(*) from pg_locks where not granted and relation = 'notifications'::regclass`) > 0
	})
	killAll(workers)
	h.WantCount(1, `select least(1, count(*)) from flow_shards where leased_by is not null`)
	unlock()
	h.startAgain(workers)
	release()
}

// killDuringFlow kills workers while people execute the flow.
func (h *env) killDuringFlow(f *flows.Flows, workers []*worker, random *rand.Rand, kills, people int) {
	h.t.Helper()
	recorded := make(chan error, 1)
	go func() { recorded <- h.recordAllTwice(f, people) }()
	for i, at := range killPoints(random, kills, people*5) { // each has six steps
		h.eventually("enrollments execute steps", func() bool {
			select {
			case err := <-recorded: // x recorded of does not move
				h.Must(err)
				recorded <- nil
			default:
			}
			return h.processed() >= at
		})
		if i%5 == 4 {
			killAll(workers)
		}
		workers[random.IntN(len(workers))].kill()
		h.startAgain(workers)
	}
	h.Must(<-recorded)
	h.waitForCompletion()
}

func (h *env) recordAllTwice(f *flows.Flows, people int) error {
	for from := 1; from <= people; from += perKill {
		for range 2 {
			if err := h.recordSignUps(f, from, from+perKill-1); err != nil {
				return err
			}
		}
	}
	return nil
}
