package execution

import (
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/processors"
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

// The rest of a chunk whose conditions take long waits for a processor, which other workspaces use too,
// and the wait is not counted.
func TestCostlyChunksWaitForAProcessor(t *testing.T) {
	t.Parallel()
	var leave []func()
	for i := range runtime.GOMAXPROCS(0) {
		leave = append(leave, processors.Enter(uuid.UUID{byte(100 + min(i, 1))}))
	}
	e, one := &Evaluator{cfg: Config{ConditionTime: time.Second}}, &Execution{Route: &Route{}}
	done := make(chan struct{}, 2)
	run := func(busy time.Duration) {
		defer func() { _ = recover() }() // it has no version
		defer func() { done <- struct{}{} }()
		e.execute(one, busy)
	}
	go run(0)
	<-done
	go run(2 * Costly)
	select {
	case <-done:
		t.Fatal("it does not wait")
	case <-time.After(50 * time.Millisecond):
	}
	for _, l := range leave {
		l()
	}
	<-done
}
