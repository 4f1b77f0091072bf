package chaos

import (
	"math/rand/v2"
	"testing"
	"time"

	"lemma/flows"
)

// Fifty times a worker is killed with kill -9, wherever it stands, while 20,000
// people are enrolled, each of them told twice, and led through a letter, a
// wait of two seconds, a fork and another letter. Now and then all die at once.
// Everybody arrives, every node acts once, and nobody is enrolled twice. When
// no kill comes at a moment that shows something, as many follow.
func TestKilledWorkersLoseNobodyOnTheWay(t *testing.T) {
	const crowd = 20_000
	people := crowd
	h := build(t)
	c := h.customer(people)
	f := h.journeys()
	flow := h.live(f, c, shortJourney)
	workers, dice := h.startWorkers(3), h.dice()

	held := h.killOnTheWay(f, workers, dice, 1, people)
	sum := h.judgeJourneys(flow)
	for more := 0; more < 3 && (held == 0 || sum.Doubts == 0); more++ {
		first, last := people+1, people+crowd
		h.run(c.pool, `insert into people select i, 'p' || i || '@shop.example', 'Name ' || i, false from generate_series($1::int, $2::int) i`, first, last)
		people = last
		held += h.killOnTheWay(f, workers, dice, first, last)
		sum = h.judgeJourneys(flow)
	}
	if held == 0 {
		t.Error("no worker died while it held a shard: this has shown nothing")
	}
	if sum.Doubts == 0 {
		t.Error("no kill left anything in doubt: this has shown nothing")
	}
	if n := h.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and status = 'completed' and step = 6`, h.ws, flow); n != people {
		t.Errorf("%d have arrived, of %d", n, people)
	}
	if n := h.count(`select count(*) from trigger_events where workspace_id = $1`, h.ws); n != people {
		t.Errorf("%d events are on record, of %d", n, people)
	}
}

// killOnTheWay kills workers while people from first to last are led to the
// end, and says how many turns were held at the times when all workers died.
func (h *house) killOnTheWay(f *flows.Flows, workers []*worker, dice *rand.Rand, first, last int) (held int) {
	h.t.Helper()
	const kills, lot = 50, 400
	before := h.passed()
	told := make(chan error, 1)
	go func() {
		for from := first; from <= last; from += lot {
			for range 2 {
				if err := h.signUp(f, from, from+lot-1); err != nil {
					told <- err
					return
				}
			}
		}
		told <- nil
	}()
	for i, at := range points(dice, kills, (last-first+1)*5) { // of six steps that each takes
		h.until(60*time.Second, "people move on", func() bool {
			select {
			case err := <-told: // who was never told of does not move
				h.must(err)
				told <- nil
			default:
			}
			h.forgetTheDead()
			return h.passed() >= before+at
		})
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
	return held
}
