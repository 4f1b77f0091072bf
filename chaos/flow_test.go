package chaos

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Fifty times a worker is killed with kill -9, wherever it stands, while 20,000
// people are enrolled, each of them told twice, and led through a letter, a
// wait of two seconds, a fork and another letter. Now and then all die at once.
// Everybody arrives, every node acts once, and nobody is enrolled twice.
func TestKilledWorkersLoseNobodyOnTheWay(t *testing.T) {
	const people, kills, lot = 20_000, 50, 400
	h := build(t)
	c := h.customer(people)
	f := h.journeys()
	flow := h.live(f, c, shortJourney)
	workers := h.startWorkers(3)

	told := make(chan error, 1)
	go func() {
		for from := 1; from <= people; from += lot {
			for range 2 {
				if err := h.signUp(f, from, from+lot-1); err != nil {
					told <- err
					return
				}
			}
		}
		told <- nil
	}()

	dice := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	held := 0
	for i, at := range points(dice, kills, people*5) { // of six steps that each takes
		h.until(60*time.Second, "people move on", func() bool { return h.passed() >= at })
		if i%10 == 0 {
			for _, w := range workers {
				w.kill()
			}
			held += h.forgetTurns()
		}
		one := dice.IntN(len(workers))
		workers[one].kill()
		h.forgetTurns()
		for j, w := range workers {
			if w.isGone() {
				workers[j] = h.work()
			}
		}
	}
	h.must(<-told)
	h.arrived(60 * time.Second)
	if held == 0 {
		t.Error("nobody died with a turn in its hands: this has shown nothing")
	}
	if n := h.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and status = 'completed' and step = 6`, h.ws, flow); n != people {
		t.Errorf("%d have arrived, of %d", n, people)
	}
	if n := h.count(`select count(*) from trigger_events where workspace_id = $1`, h.ws); n != people {
		t.Errorf("%d events are on record, of %d", n, people)
	}
	sum := h.judgeJourneys(flow)
	if sum.Doubts == 0 {
		t.Error("no kill left anything in doubt: this has shown nothing")
	}
}
