package webhooks

import (
	"context"
	"sync"
	"time"

	"lemma"
	"lemma/loop"
)

// Loop calls what is due until ctx ends, and returns when the calls that were
// being made by then are settled.
func (w *Webhooks) Loop(ctx context.Context) {
	var calls sync.WaitGroup
	defer calls.Wait()
	calls.Go(func() { w.cleanLoop(ctx) })
	done := make(chan struct{}, 1)
	tick := time.NewTicker(w.options.Poll)
	defer tick.Stop()
	for ctx.Err() == nil {
		n := w.start(ctx, &calls, func() { ring(done) })
		if n > 0 {
			continue
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-done:
		case <-w.wake:
		}
	}
}

// Wake has Loop look for what is due at once: messages have been written, and
// their transaction has committed. It is a hint.
func (w *Webhooks) Wake() { ring(w.wake) }

// ring says that there is room for another call.
func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// start claims what there is room for and begins to call it.
func (w *Webhooks) start(ctx context.Context, calls *sync.WaitGroup, after func()) int {
	taken, err := w.claim(ctx)
	if err != nil {
		if ctx.Err() == nil {
			w.log.ErrorContext(ctx, "webhooks not claimed", "error", err)
		}
		return 0
	}
	for _, m := range taken {
		calls.Go(func() {
			defer after()
			w.serve(ctx, calls, m)
		})
	}
	return len(taken)
}

// RunOnce calls what is due now and there is room for, waits until that is
// settled, and answers with how many it were.
func (w *Webhooks) RunOnce(ctx context.Context) (int, error) {
	taken, err := w.claim(ctx)
	if err != nil {
		return 0, err
	}
	var calls sync.WaitGroup
	for _, m := range taken {
		calls.Go(func() { w.work(ctx, m) })
	}
	calls.Wait()
	return len(taken), ctx.Err()
}

// settleTime bounds the settling of a call that was made: it goes on when the
// process is told to stop, or the message would be called once more for nothing.
const settleTime = 10 * time.Second

// settleTries is how often settling is tried. The call has been made, and not
// to write that down is to make it again.
const settleTries = 3

// work calls a message and settles it.
func (w *Webhooks) work(ctx context.Context, m claimed) {
	defer w.lanes.leave(m.EndpointID)
	w.finish(ctx, m, w.callOnce(ctx, m))
}

// callOnce calls a message, also while the process is told to stop. A panic
// counts as a call that was not answered.
func (w *Webhooks) callOnce(ctx context.Context, m claimed) (v verdict) {
	w.reached("claimed")
	defer w.reached("called")
	err := lemma.Recovered(func() error {
		v = w.call(context.WithoutCancel(ctx), m)
		return nil
	})
	if err != nil {
		return verdict{reason: ReasonNetwork, cause: err}
	}
	return v
}

// finish settles a call that was made.
func (w *Webhooks) finish(ctx context.Context, m claimed, v verdict) {
	if err := lemma.Recovered(func() error { w.conclude(ctx, m, v); return nil }); err != nil {
		w.log.ErrorContext(ctx, "webhook not settled; it is called again when its lease has run out", "workspace", m.WorkspaceID, "message", m.ID, "error", err)
	}
}

func (w *Webhooks) conclude(ctx context.Context, m claimed, v verdict) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	log := w.log.With("workspace", m.WorkspaceID, "message", m.ID, "endpoint", m.EndpointID, "attempt", m.Attempts, "status", v.status, "reason", v.reason)
	held, ended, err := w.settleAtLast(ctx, m, v)
	switch {
	case err != nil:
		log.ErrorContext(ctx, "webhook not settled; that is tried again", "error", err, "also", w.putBack(m, v))
	case !held:
		log.WarnContext(ctx, "webhook not settled: that was done before, or its lease ran out")
	default:
		w.metrics.settled(v, ended)
		if v.reason == ReasonSecret {
			log.ErrorContext(ctx, "webhook cannot be signed", "error", v.cause)
		} else if !v.delivered() {
			log.InfoContext(ctx, "webhook not delivered", "ended", ended, "cause", withoutURL(v.cause))
		}
	}
}

func (w *Webhooks) settleAtLast(ctx context.Context, m claimed, v verdict) (held, ended bool, err error) {
	for try := range settleTries {
		if try > 0 {
			select {
			case <-ctx.Done():
				return false, false, err
			case <-time.After(time.Duration(try) * 100 * time.Millisecond):
			}
		}
		if held, ended, err = w.settle(ctx, m, v); err == nil {
			break
		}
	}
	return held, ended, err
}

func (w *Webhooks) cleanLoop(ctx context.Context) {
	loop.Every(ctx, cleanEvery, func(ctx context.Context) error { _, err := w.Clean(ctx); return err },
		func(err error) { w.log.ErrorContext(ctx, "outbox not cleaned", "error", err) })
}
