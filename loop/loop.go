// Package loop repeats work. It promises that an error or a panic ends one run of
// the work, and not the loop. Jitter spreads what many workers repeat.
package loop

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"lemma"
)

// firstWithin is the longest time until the first run. Without it, a process that is
// restarted more often than a period would never do the work.
const firstWithin = time.Minute

// Jitter is a random time from half of d to one and a half of it, so that workers that wait at
// the same time do not return at the same time. d must be positive.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// Each does work for each item until ctx ends. One that fails or panics does not stop the
// others, so that a row that fails at each run does not hide those behind it. The error is that
// of Errors.
func Each[T any](ctx context.Context, items []T, work func(T) error) error {
	var failed Errors
	for _, item := range items {
		if err := ctx.Err(); err != nil {
			return errors.Join(failed.Err(), err)
		}
		failed.Add(lemma.Recovered(func() error { return work(item) }))
	}
	return failed.Err()
}

// Every does work each period until ctx ends. The first run comes after one period, or at
// a random time within the first minute if a period is longer. failed receives the errors
// of runs that ctx did not end.
func Every(ctx context.Context, period time.Duration, work func(context.Context) error, failed func(error)) {
	first := period
	if period > firstWithin {
		first = 1 + rand.N(firstWithin)
	}
	tick := time.NewTicker(first)
	defer tick.Stop()
	for runs := 0; ; runs++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if runs == 0 && first != period {
			tick.Reset(period)
		}
		if err := lemma.Recovered(func() error { return work(ctx) }); err != nil && ctx.Err() == nil {
			failed(err)
		}
	}
}
