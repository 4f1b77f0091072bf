package abtest

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/stat/distuv"
)

// Design is an experiment to plan: the chance (Power) that one variant wins whose rate
// is BaseRate + Effect while that of the others is BaseRate.
type Design struct {
	BaseRate   float64
	Effect     float64 // absolute; may be negative
	Variants   int
	Confidence float64
	Power      float64
}

// alpha is the level of one comparison: that of all comparisons, divided by their
// number. Holm's correction is never stricter.
func (d Design) alpha() float64 {
	return (1 - d.Confidence) / float64(d.Variants*(d.Variants-1)/2)
}

// RequiredSample is the number of recipients that each variant needs (Fleiss, Levin
// and Paik 2003, formula 4.14, without correction for continuity). With more than two
// variants the winner must be found in several comparisons: the chance to miss it is
// divided among them.
func (d Design) RequiredSample() int64 {
	a, b := d.deviations()
	one := 1 - (1-d.Power)/float64(d.Variants-1)
	n := math.Pow((distuv.UnitNormal.Quantile(1-d.alpha()/2)*a+distuv.UnitNormal.Quantile(one)*b)/d.Effect, 2)
	return int64(math.Ceil(n))
}

// deviations are the factors of the standard deviation without and with the effect.
func (d Design) deviations() (without, with float64) {
	p, q := d.BaseRate, d.BaseRate+d.Effect
	middle := (p + q) / 2
	return math.Sqrt(2 * middle * (1 - middle)), math.Sqrt(p*(1-p) + q*(1-q))
}

// PowerOf is the chance to find the effect with n recipients per variant, at least: the
// inverse of RequiredSample.
func (d Design) PowerOf(n int64) float64 {
	a, b := d.deviations()
	one := distuv.UnitNormal.CDF((math.Sqrt(float64(n))*math.Abs(d.Effect) - distuv.UnitNormal.Quantile(1-d.alpha()/2)*a) / b)
	return max(0, 1-float64(d.Variants-1)*(1-one))
}

// SmallestEffect is the smallest rise of the base rate that n recipients per variant
// find with the power of the design; NaN if none does.
func (d Design) SmallestEffect(n int64) float64 {
	low, high := 0.0, 1-d.BaseRate
	d.Effect = high
	if d.PowerOf(n) < d.Power {
		return math.NaN()
	}
	for range 60 {
		d.Effect = (low + high) / 2
		if d.PowerOf(n) < d.Power {
			low = d.Effect
		} else {
			high = d.Effect
		}
	}
	return high
}

// Warning is for n recipients per variant that are fewer than the design needs; empty if
// they suffice.
func (d Design) Warning(n int64) string {
	needed := d.RequiredSample()
	if n >= needed {
		return ""
	}
	return fmt.Sprintf("%d recipients per variant find a difference from %.4g %% to %.4g %% with a chance of %.0f %%; "+
		"a chance of %.0f %% needs %d", n, 100*d.BaseRate, 100*(d.BaseRate+d.Effect), 100*d.PowerOf(n), 100*d.Power, needed)
}
