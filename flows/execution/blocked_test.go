package execution

import (
	"log/slog"
	"testing"
	"time"
)

// What took too long is tried again after a time that doubles: less often if it came behind others, and
// not at all if it writes too much at once.
func TestCostlyConditionsAreTriedLessOften(t *testing.T) {
	t.Parallel()
	e := &Evaluator{cfg: Config{BackOff: time.Second, MaxBackOff: 10 * time.Minute}, log: slog.New(slog.DiscardHandler)}
	for doublings, longest := range map[int]time.Duration{mostDoublings: 10 * time.Minute, fewDoublings: 8 * time.Second, 0: time.Second} {
		one := &Execution{Route: &Route{}, Now: time.Now()}
		for i := range 12 {
			e.blockCostly([]*Execution{one}, codeConditionTime, doublings)
			want := min(time.Second<<i, longest)
			if after := one.Until.Sub(one.Now); after < want || after > want*6/5 {
				t.Errorf("after %d failures in %s, want %s", i, after, want)
			}
			one.Failures = i + 1
		}
	}
}
