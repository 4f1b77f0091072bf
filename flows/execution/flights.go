package execution

import (
	"context"
	"sync"

	"lemma"
	"lemma/cache"
)

// flights are the versions that are being compiled: once for all callers that wait for one.
type flights struct {
	mu   sync.Mutex
	open map[flightKey]*flight
}

// flightKey is a version, that of its audience, and when they were read.
type flightKey struct {
	VersionID
	audience int
	read     cache.Moment
}

// flight keeps its place among those that wait for a slot as long as a caller waits for it.
type flight struct {
	callers  int
	stop     context.CancelFunc
	done     chan struct{} // closed when it has a result
	compiled compiled
	err      error
}

// do returns the result of a flight. ctx ends the waiting of this caller; the context of
// compile ends when no caller waits any more.
func (f *flights) do(ctx context.Context, k flightKey, compile func(context.Context) (compiled, error)) (compiled, error) {
	one := f.join(k, compile)
	defer f.quit(k, one)
	select {
	case <-ctx.Done():
		return compiled{}, context.Cause(ctx)
	case <-one.done:
		return one.compiled, one.err
	}
}

// join finds or begins a flight.
func (f *flights) join(k flightKey, compile func(context.Context) (compiled, error)) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	one := f.open[k]
	if one == nil {
		ctx, stop := context.WithCancel(context.Background())
		one = &flight{stop: stop, done: make(chan struct{})}
		if f.open == nil {
			f.open = map[flightKey]*flight{}
		}
		f.open[k] = one
		go func() {
			one.err = lemma.Recovered(func() (err error) { // a panic of one definition is not the end of the process
				one.compiled, err = compile(ctx)
				return err
			})
			close(one.done)
			f.mu.Lock()
			defer f.mu.Unlock()
			f.end(k, one)
		}()
	}
	one.callers++
	return one
}

// quit ends a flight that no caller waits for.
func (f *flights) quit(k flightKey, one *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if one.callers--; one.callers == 0 {
		f.end(k, one)
	}
}

// end lets the next caller begin another flight. The caller holds the lock.
func (f *flights) end(k flightKey, one *flight) {
	one.stop()
	if f.open[k] == one {
		delete(f.open, k)
	}
}
