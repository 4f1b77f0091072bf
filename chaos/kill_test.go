package chaos

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// Twenty times one of four workers is killed with kill -9, wherever it stands,
// in a campaign to 20,000 people. Before that all four die at once while the
// audience is being read. When no kill comes at a moment that leaves anything
// in doubt, there is another campaign.
func TestKilledWorkersLoseNobody(t *testing.T) {
	h := build(t)
	people := h.customer(20_000)
	h.post.slow(10 * time.Millisecond)
	people.wire.slow(50 * time.Millisecond)
	workers, dice := h.startWorkers(4), h.dice()

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

	h.killAlong(workers, dice, 0)
	h.completed(id, 60*time.Second)
	sum := h.judge(people, id)
	for more := 0; more < 3 && sum.Doubts == 0; more++ {
		before := h.post.taken()
		id = h.send(people)
		h.killAlong(workers, dice, before)
		h.completed(id, 60*time.Second)
		sum = h.judge(people, id)
	}
	if sum.Doubts == 0 {
		t.Error("no kill left anything in doubt: this has shown nothing")
	}
}

// killAlong kills one worker after another while a campaign goes out; before
// it, the mail server had so many mails.
func (h *house) killAlong(workers []*worker, dice *rand.Rand, before int) {
	h.t.Helper()
	const kills = 20
	for _, out := range points(dice, kills, 18_000) {
		h.lettersOut(before+out, 60*time.Second)
		i := dice.IntN(len(workers))
		workers[i].kill()
		workers[i] = h.work()
	}
}

// dice fall as LEMMA_CHAOS_SEED says, so that the kills of a test that failed
// can come at the same places again, or else as chance has it.
func (h *house) dice() *rand.Rand {
	h.t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("LEMMA_CHAOS_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		h.must(err)
	}
	h.t.Logf("LEMMA_CHAOS_SEED=%d lets the dice fall like this again", seed)
	return rand.New(rand.NewPCG(seed, 0))
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
