// Package loop repeats work. It promises that an error or a panic ends one run of
// the work, and not the loop.
package loop

import (
	"context"
	"time"

	"lemma"
)

// Every does work each period, the first time after one, until ctx ends. failed
// receives the errors of runs that ctx did not end.
func Every(ctx context.Context, period time.Duration, work func(context.Context) error, failed func(error)) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := lemma.Recovered(func() error { return work(ctx) }); err != nil && ctx.Err() == nil {
			failed(err)
		}
	}
}
