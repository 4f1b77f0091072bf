// Package loop repeats work. It promises that an error or a panic ends one run of
// the work, and not the loop. Jitter spreads what many workers repeat.
package loop

import (
	"context"
	"errors"
	"fmt"
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
// of runs that ctx did not end: one that is repeated every 10 seconds at most, with how often it was.
func Every(ctx context.Context, period time.Duration, work func(context.Context) error, failed func(error)) {
	first := period
	if period > firstWithin {
		first = 1 + rand.N(firstWithin)
	}
	tick := time.NewTicker(first)
	defer tick.Stop()
	var reported repeated
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
			if err = reported.next(err); err != nil {
				failed(err)
			}
		}
	}
}

// repeatedAfter is when an error that is repeated is reported again.
const repeatedAfter = 10 * time.Second

// repeated is the last error that a loop has reported. While the database is away, all loops fail in each run.
type repeated struct {
	text  string
	at    time.Time
	times int // since then
}

// next returns what is to be reported of an error; nil: nothing now.
func (r *repeated) next(err error) error {
	text, now := err.Error(), time.Now()
	if text == r.text && now.Sub(r.at) < repeatedAfter {
		r.times++
		return nil
	}
	if r.times > 0 && text == r.text {
		err = fmt.Errorf("%w (%d times more since it was last reported)", err, r.times)
	}
	*r = repeated{text: text, at: now}
	return err
}
