package abtest

import (
	"cmp"
	"fmt"
)

// Method describes how Compare decides, as it is stored with a verdict.
const Method = "two-proportion z-tests of all pairs of variants, Holm's correction"

// srmLevel is the p-value below which recipients are not distributed by the weights.
// It is low, since the check runs in every experiment (Fabijan et al. 2019).
const srmLevel = 0.0005

// leastEvents is the number of recipients that must have converted, and that must not
// have, in each variant: the z-test approximates the binomial distribution.
const leastEvents = 5

// Outcome is the result of a comparison.
type Outcome string

// The outcomes. All but Significant are inconclusive.
const (
	Significant    Outcome = "significant"     // the best variant is better than every other
	NotSignificant Outcome = "not_significant" // the differences may be chance
	TooFewSent     Outcome = "too_few_sent"    // a variant was sent to fewer recipients than the least sample
	TooFewEvents   Outcome = "too_few_events"  // a variant has too few conversions for the test
	NoEvents       Outcome = "no_events"       // no recipient converted
	RatioMismatch  Outcome = "ratio_mismatch"  // the recipients are not distributed by the weights
	OneLeft        Outcome = "one_left"        // a guardrail has stopped all other variants
	NoneLeft       Outcome = "none_left"       // a guardrail has stopped all variants
)

// Observed has the numbers of one variant.
type Observed struct {
	Name   string
	Weight int
	Sent   int64
	Count
}

// Rules are the conditions for a winner.
type Rules struct {
	Confidence float64 // such as 0.95
	MinSample  int64   // notifications that each variant must have sent
	Did        string  // what a recipient that counts did, for sentences; empty: converted
}

// did is what recipients that count did.
func (r Rules) did() string { return cmp.Or(r.Did, "converted") }

// Comparison compares the best variant with another.
type Comparison struct {
	Variant    string   `json:"variant"`
	Effect     float64  `json:"effect"` // the rate of the best minus the rate of the other
	Interval   Interval `json:"interval"`
	Z          float64  `json:"z"`
	P          float64  `json:"p"`
	AdjustedP  float64  `json:"adjusted_p"`
	Conclusive bool     `json:"conclusive"`
}

// Verdict is the result of Compare.
type Verdict struct {
	Outcome        Outcome
	Best           int // the variant with the highest rate; the first of equal ones
	Comparisons    []Comparison
	ChanceToBeBest []float64
	RatioP         float64
	Sentence       string
}

// Compare compares variants. Of all pairs it tests the difference, with Holm's
// correction. The best variant wins if its difference from every other is significant.
// all are the variants that no guardrail has stopped.
func Compare(all []Observed, r Rules) Verdict {
	if len(all) == 0 {
		return Verdict{Outcome: NoneLeft, RatioP: 1, Sentence: "The guardrail stopped all variants, so there is no winner."}
	}
	counts := make([]Count, len(all))
	for i, o := range all {
		counts[i] = o.Count
	}
	v := decide(all, counts, r)
	v.ChanceToBeBest = ChanceToBeBest(counts)
	v.Sentence = v.sentence(all, r)
	return v
}

// decide is the part of Compare on which the outcome depends.
func decide(all []Observed, counts []Count, r Rules) (v Verdict) {
	recipients, weights := make([]int64, len(all)), make([]int, len(all))
	for i, o := range all {
		recipients[i], weights[i] = o.Recipients, o.Weight
		if o.Rate() > all[v.Best].Rate() {
			v.Best = i
		}
	}
	v.RatioP = SampleRatioMismatch(recipients, weights)
	v.compareBest(all, counts, r)
	v.Outcome = v.outcome(all, r)
	return v
}

// compareBest tests all pairs, and keeps those of the best variant.
func (v *Verdict) compareBest(all []Observed, counts []Count, r Rules) {
	var p []float64
	var pairs [][2]int
	for i := range counts {
		for j := range i {
			_, one := ZTest(counts[i], counts[j])
			p, pairs = append(p, one), append(pairs, [2]int{i, j})
		}
	}
	adjusted := Holm(p)
	for k, pair := range pairs {
		other := pair[0] + pair[1] - v.Best
		if pair[0] != v.Best && pair[1] != v.Best {
			continue
		}
		z, _ := ZTest(counts[v.Best], counts[other])
		v.Comparisons = append(v.Comparisons, Comparison{Variant: all[other].Name, Z: z, P: p[k], AdjustedP: adjusted[k],
			Effect: counts[v.Best].Rate() - counts[other].Rate(), Interval: Difference(counts[v.Best], counts[other], r.Confidence),
			Conclusive: adjusted[k] < 1-r.Confidence})
	}
}

func (v *Verdict) outcome(all []Observed, r Rules) Outcome {
	var converted int64
	tooFewSent, tooFewEvents := false, false
	for _, o := range all {
		converted += o.Converted
		tooFewSent = tooFewSent || o.Sent < r.MinSample || o.Sent == 0
		tooFewEvents = tooFewEvents || o.Converted < leastEvents || o.Recipients-o.Converted < leastEvents
	}
	switch {
	case len(all) == 1:
		return OneLeft
	case v.RatioP < srmLevel:
		return RatioMismatch
	case tooFewSent:
		return TooFewSent
	case converted == 0:
		return NoEvents
	case tooFewEvents:
		return TooFewEvents
	}
	for _, c := range v.Comparisons {
		if !c.Conclusive {
			return NotSignificant
		}
	}
	return Significant
}

func (v *Verdict) sentence(all []Observed, r Rules) string {
	best := all[v.Best]
	percent := func(x float64) string { return fmt.Sprintf("%.2f %%", 100*x) }
	switch v.Outcome {
	case OneLeft:
		return fmt.Sprintf("Only %s is left, since the guardrail stopped all others; there is nothing to compare it with.", best.Name)
	case RatioMismatch:
		return "The recipients are not distributed by the weights of the variants, so the numbers cannot be compared."
	case TooFewSent:
		return fmt.Sprintf("A variant was sent to fewer than %d recipients, so there is no winner.", max(r.MinSample, 1))
	case NoEvents:
		return fmt.Sprintf("No recipient %s, so there is no winner.", r.did())
	case TooFewEvents:
		return fmt.Sprintf("A variant has fewer than %d recipients that %s, or that did not, so there is no winner.", leastEvents, r.did())
	case NotSignificant:
		return fmt.Sprintf("%s has the highest rate (%s), but the difference may be chance at a confidence of %s.",
			best.Name, percent(best.Rate()), percent(r.Confidence))
	}
	second := v.second()
	return fmt.Sprintf("%s wins: %s of its recipients %s, %s more than of %s (between %s and %s at a confidence of %s).",
		best.Name, percent(best.Rate()), r.did(), percent(second.Effect), second.Variant, percent(second.Interval.Low),
		percent(second.Interval.High), percent(r.Confidence))
}

// second is the comparison with the variant that is closest to the best.
func (v *Verdict) second() Comparison {
	least := v.Comparisons[0]
	for _, c := range v.Comparisons[1:] {
		if c.Effect < least.Effect {
			least = c
		}
	}
	return least
}
