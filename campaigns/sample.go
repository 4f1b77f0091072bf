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

// smallestPart is the fraction of the profiles outside the holdout that the smallest variant gets at once.
func (e Experiment) smallestPart() float64 {
	least := 100
	for _, v := range e.Variants {
		least = min(least, v.Weight)
	}
	return e.SamplePercent / 100 * float64(least) / 100
}

// design is what the experiment is planned for.
func (e Experiment) design() abtest.Design {
	return abtest.Design{BaseRate: e.BaseRate, Effect: e.Effect, Variants: len(e.Variants), Confidence: e.Confidence, Power: plannedPower}
}

// smallest is how many of n outside the holdout the smallest variant gets.
func (e Experiment) smallest(n int64) int64 { return int64(float64(n) * e.smallestPart()) }

// warnings are why a sample is too small. The smallest variant has n recipients, and so many
// notifications are sent to them: a recipient may have several addresses.
func (e Experiment) warnings(n, sent int64) (all []string) {
	if e.Metric == nil {
		return nil
	}
	if sent < e.MinSample {
		all = append(all, fmt.Sprintf("the smallest variant has %d notifications and min_sample is %d: with fewer there is no winner",
			sent, e.MinSample))
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
	recipients, sent := it.sizes(events[written].At, results)
	if len(recipients) == 0 {
		return []string{"there are no results from after the sample was written, so it is not known whether it is too small"}
	}
	return it.warnings(slices.Min(recipients), slices.Min(sent))
}

// sizes are the recipients of the variants, and the notifications that were sent to them, by the verdict,
// or by the newest results if they are from after the sample was written. Those that wait then count as
// sent.
func (it Iteration) sizes(written time.Time, results []Tally) (recipients, sent []int64) {
	if it.Verdict != nil {
		for _, v := range it.Verdict.Variants {
			recipients, sent = append(recipients, v.Recipients), append(sent, v.Sent)
		}
		return recipients, sent
	}
	for _, t := range results {
		if !t.At.Before(written) && t.At.Equal(results[len(results)-1].At) && t.Ordinal != holdout {
			recipients, sent = append(recipients, t.Recipients), append(sent, t.Written-t.Failed-t.Skipped)
		}
	}
	return recipients, sent
}
