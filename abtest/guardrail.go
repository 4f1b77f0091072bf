package abtest

import "gonum.org/v1/gonum/mathext"

// GuardrailChecks is how often a guardrail is checked, at most: at fixed times before the
// cut-off, and at the cut-off.
const GuardrailChecks = 10

// guardrailLevel is the chance that a guardrail stops a variant whose rate is the limit.
// It is divided among the checks (Bonferroni), so that checking early does not raise it.
const guardrailLevel = 0.05

// PAbove is the chance of at least as many conversions if the rate were the limit: the
// p-value of the one-sided exact binomial test (Clopper and Pearson 1934).
func (c Count) PAbove(limit float64) float64 {
	if c.Converted <= 0 {
		return 1
	}
	return mathext.RegIncBeta(float64(c.Converted), float64(c.Recipients-c.Converted)+1, limit)
}

// Breaks reports whether a check of a guardrail stops a variant: its rate is above the
// limit by more than chance explains.
func (c Count) Breaks(limit float64) bool {
	return c.Recipients >= c.Converted && c.PAbove(limit) < guardrailLevel/GuardrailChecks
}
