package chaos

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Twenty times one of four workers is killed with kill -9, wherever it stands,
// in a campaign to 20,000 people. Before that all four die at once while the
// audience is being read.
func TestKilledWorkersLoseNobody(t *testing.T) {
	const kills = 20
	h := build(t)
	people := h.customer(20_000)
	h.post.slow(10 * time.Millisecond)
	people.wire.slow(50 * time.Millisecond)
	workers := h.startWorkers(4)

	id := h.send(people)
	h.lettersOut(1, 20*time.Second)
	for i, w := range workers {
		w.kill()
		workers[i] = h.work()
	}
	if h.count(`select count(*) from fanouts where finished_at is null`) != 1 {
		t.Fatal("the audience was read to its end before the workers died")
	}
	people.wire.slow(0)
	h.forgetReader(id)

	dice := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	for _, out := range points(dice, kills, 18_000) {
		h.lettersOut(out, 60*time.Second)
		i := dice.IntN(len(workers))
		workers[i].kill()
		workers[i] = h.work()
	}
	h.completed(id, 60*time.Second)
	if sum := h.judge(people, id); sum.Doubts == 0 {
		t.Error("no kill left anything in doubt: this has shown nothing")
	}
}

// points are places in a campaign, in order.
func points(dice *rand.Rand, n, most int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = dice.IntN(most)
	}
	slices.Sort(all)
	return all
}
