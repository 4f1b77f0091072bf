package campaigns

import (
	"fmt"
	"slices"
	"time"

	"lemma/abtest"
)

// The plan of an experiment without values of its own. A power of 80 % is the convention
// of Cohen 1988.
const (
	defaultBaseRate = 0.05
	defaultEffect   = 0.01
	plannedPower    = 0.8
)

// smallestPart is the fraction of an audience that the smallest variant gets at once.
func (e Experiment) smallestPart() float64 {
	least := 100
	for _, v := range e.Variants {
		least = min(least, v.Weight)
	}
	return e.SamplePercent / 100 * (1 - e.HoldoutPercent/100) * float64(least) / 100
}

// design is what the experiment is planned for.
func (e Experiment) design() abtest.Design {
	return abtest.Design{BaseRate: e.BaseRate, Effect: e.Effect, Variants: len(e.Variants), Confidence: e.Confidence, Power: plannedPower}
}

// warnings are why a sample is too small. n is the number of recipients of the smallest
// variant.
func (e Experiment) warnings(n int64) (all []string) {
	if e.Metric == nil {
		return nil
	}
	if n < e.MinSample {
		all = append(all, fmt.Sprintf("the smallest variant has %d recipients and min_sample is %d, so there will be no winner", n, e.MinSample))
	}
	if w := e.design().Warning(n); w != "" {
		all = append(all, fmt.Sprintf("the sample is too small for a confidence of %.4g %%: %s", 100*e.Confidence, w))
	}
	return all
}

// Warnings are why the sample of an iteration is too small, after it was written.
func (it Iteration) Warnings(events []IterationEvent, results []Tally) []string {
	written := slices.IndexFunc(events, func(e IterationEvent) bool { return e.Event == eventSampled })
	if written < 0 || it.Metric == nil {
		return nil
	}
	sizes := it.sizes(events[written].At, results)
	if len(sizes) == 0 {
		return []string{"there are no results from after the sample was written, so it is not known whether it is too small"}
	}
	return it.warnings(slices.Min(sizes))
}

// sizes are the recipients of the variants by the verdict, or by the newest results if they
// are from after the sample was written.
func (it Iteration) sizes(written time.Time, results []Tally) (all []int64) {
	if it.Verdict != nil {
		for _, v := range it.Verdict.Variants {
			all = append(all, v.Recipients)
		}
		return all
	}
	for _, t := range results {
		if !t.At.Before(written) && t.At.Equal(results[len(results)-1].At) && t.Ordinal != holdout {
			all = append(all, t.Recipients)
		}
	}
	return all
}
