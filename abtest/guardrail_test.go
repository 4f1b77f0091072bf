package abtest

import (
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"
)

func TestPAbove(t *testing.T) {
	for _, c := range []struct {
		n, x  int64
		limit float64
		want  float64
	}{
		{10, 9, 0.5, 11.0 / 1024},
		{10, 10, 0.5, 1.0 / 1024},
		{10, 0, 0.5, 1},
		{3, 1, 0.1, 1 - 0.9*0.9*0.9},
		{925, 682, 0.75, 0.824089}, // the exact sum of the terms
	} {
		if got := (Count{c.n, c.x}).PAbove(c.limit); math.Abs(got-c.want) > 1e-6 {
			t.Errorf("%d of %d above %g: p = %g, want %g", c.x, c.n, c.limit, got, c.want)
		}
	}
	if (Count{Recipients: 0, Converted: 5}).Breaks(0.1) {
		t.Error("a variant without recipients is stopped")
	}
}

// Of 10,000 variants whose rate is the limit, the ten checks stop at most 5 %. Of those
// with three times the limit they stop most.
func TestGuardrailsStopFewByChance(t *testing.T) {
	const runs, limit = 10_000, 0.01
	stopped := func(rate float64) (n int) {
		random := rand.New(rand.NewPCG(1, uint64(rate*1000)))
		step := distuv.Binomial{N: 200, P: rate, Src: random}
		for range runs {
			var c Count
			for range GuardrailChecks {
				c.Recipients, c.Converted = c.Recipients+200, c.Converted+int64(step.Rand())
				if c.Breaks(limit) {
					n++
					break
				}
			}
		}
		return n
	}
	if n := stopped(limit); n > runs*guardrailLevel {
		t.Errorf("%d of %d are stopped by chance", n, runs)
	} else {
		t.Logf("%d of %d are stopped by chance", n, runs)
	}
	if n := stopped(3 * limit); n < runs*0.95 {
		t.Errorf("%d of %d with three times the limit are stopped", n, runs)
	}
}
