package execution

import (
	"log/slog"
	"testing"
	"time"
)

// Executions that are left since the conditions of their chunk take too long are tried again after a
// time that doubles; those that write too much at once, after a moment.
func TestCostlyConditionsAreTriedLessOften(t *testing.T) {
	t.Parallel()
	e := &Evaluator{cfg: Config{BackOff: time.Second, MaxBackOff: 10 * time.Minute}, log: slog.New(slog.DiscardHandler)}
	for reason, longer := range map[string]bool{codeConditionTime: true, codeChunkBytes: false} {
		one := &Execution{Route: &Route{}, Now: time.Now()}
		for i := range 12 {
			e.blockCostly([]*Execution{one}, reason)
			want := time.Second
			if longer {
				want = min(time.Second<<i, 10*time.Minute)
			}
			if after := one.Until.Sub(one.Now); after < want || after > want*6/5 {
				t.Errorf("%s: after %d failures in %s, want %s", reason, i, after, want)
			}
			one.Failures = i + 1
		}
	}
}
