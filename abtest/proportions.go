package abtest

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/integrate/quad"
	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// Count has the recipients of a variant and those that converted.
type Count struct {
	Recipients int64
	Converted  int64
}

// Rate is the fraction of recipients that converted; 0 without recipients.
func (c Count) Rate() float64 {
	if c.Recipients == 0 {
		return 0
	}
	return float64(c.Converted) / float64(c.Recipients)
}

// Interval is a confidence interval.
type Interval struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// quantile is the two-sided standard normal quantile of a confidence.
func quantile(confidence float64) float64 { return distuv.UnitNormal.Quantile(1 - (1-confidence)/2) }

// Wilson is the score interval of a proportion (Wilson 1927; method 3 of Newcombe 1998a).
func (c Count) Wilson(confidence float64) Interval {
	if c.Recipients == 0 {
		return Interval{0, 1}
	}
	n, p, z := float64(c.Recipients), c.Rate(), quantile(confidence)
	middle := p + z*z/(2*n)
	half := z * math.Sqrt(p*(1-p)/n+z*z/(4*n*n))
	scale := 1 + z*z/n
	interval := Interval{max(0, (middle-half)/scale), min(1, (middle+half)/scale)}
	if c.Converted == 0 {
		interval.Low = 0 // exactly, without a rounding error
	}
	if c.Converted == c.Recipients {
		interval.High = 1
	}
	return interval
}

// Difference is the interval of the rate of a minus the rate of b: Newcombe's hybrid
// of two score intervals (method 10 of Newcombe 1998b).
func Difference(a, b Count, confidence float64) Interval {
	p, q := a.Rate(), b.Rate()
	wa, wb := a.Wilson(confidence), b.Wilson(confidence)
	return Interval{
		p - q - math.Hypot(p-wa.Low, wb.High-q),
		p - q + math.Hypot(wa.High-p, q-wb.Low),
	}
}

// ZTest is the two-proportion z-test with the pooled variance: z, and its two-sided
// p-value. Without variance, z is 0 and p is 1.
func ZTest(a, b Count) (z, p float64) {
	n, m := float64(a.Recipients), float64(b.Recipients)
	if n == 0 || m == 0 {
		return 0, 1
	}
	pooled := float64(a.Converted+b.Converted) / (n + m)
	deviation := math.Sqrt(pooled * (1 - pooled) * (1/n + 1/m))
	if deviation == 0 {
		return 0, 1
	}
	z = (a.Rate() - b.Rate()) / deviation
	return z, math.Erfc(math.Abs(z) / math.Sqrt2) // exact in the tail, where 1 - CDF is 0
}

// Holm adjusts the p-values of several tests (Holm 1979): the chance that any of them
// is below alpha without a difference is at most alpha.
func Holm(p []float64) []float64 {
	order := make([]int, len(p))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		switch {
		case p[i] < p[j]:
			return -1
		case p[i] > p[j]:
			return 1
		}
		return 0
	})
	adjusted := make([]float64, len(p))
	highest := 0.0
	for rank, i := range order {
		highest = max(highest, min(1, float64(len(p)-rank)*p[i]))
		adjusted[i] = highest
	}
	return adjusted
}

// ChanceToBeBest is for each variant the posterior probability that its rate is the
// highest. The prior of each rate is uniform, so the posterior is
// Beta(converted + 1, not converted + 1).
func ChanceToBeBest(counts []Count) []float64 {
	posteriors := make([]distuv.Beta, len(counts))
	for i, c := range counts {
		posteriors[i] = distuv.Beta{Alpha: float64(c.Converted) + 1, Beta: float64(max(c.Recipients-c.Converted, 0)) + 1}
	}
	best := make([]float64, len(counts))
	sum := 0.0
	for i, own := range posteriors {
		best[i] = chanceAbove(own, i, posteriors)
		sum += best[i]
	}
	for i := range best { // the rest is the error of the integration
		best[i] /= sum
	}
	return best
}

// chanceAbove integrates the density of one posterior times the chance that all others
// are below, over 10 standard deviations around its mean.
func chanceAbove(own distuv.Beta, index int, all []distuv.Beta) float64 {
	wide := 10 * own.StdDev()
	low, high := max(0, own.Mean()-wide), min(1, own.Mean()+wide)
	return quad.Fixed(func(x float64) float64 {
		p := own.Prob(x)
		for i, other := range all {
			if i != index {
				p *= other.CDF(x)
			}
		}
		return p
	}, low, high, 200, quad.Legendre{}, 0)
}

// SampleRatioMismatch is the p-value of Pearson's chi-square test that the recipients
// are distributed by the weights (Fabijan et al. 2019).
func SampleRatioMismatch(recipients []int64, weights []int) float64 {
	total, sum := 0.0, 0.0
	for i, n := range recipients {
		total += float64(n)
		sum += float64(weights[i])
	}
	if total == 0 || len(recipients) < 2 {
		return 1
	}
	observed, expected := make([]float64, len(recipients)), make([]float64, len(recipients))
	for i, n := range recipients {
		observed[i], expected[i] = float64(n), total*float64(weights[i])/sum
	}
	return distuv.ChiSquared{K: float64(len(recipients) - 1)}.Survival(stat.ChiSquare(observed, expected))
}
