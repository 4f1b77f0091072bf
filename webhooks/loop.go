package webhooks

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"lemma"
	"lemma/loop"
)

// Loop calls due messages until ctx ends, and returns when the calls that had begun
// by then are settled.
func (w *Webhooks) Loop(ctx context.Context) {
	var calls sync.WaitGroup
	defer func() {
		w.settler.drain()
		calls.Wait()
	}()
	calls.Go(func() { w.cleanLoop(ctx) })
	published := make(chan *reservation)
	calls.Go(func() { w.publishLoop(ctx, published) })
	calls.Go(func() { w.disableLoop(ctx) })
	done := make(chan struct{}, 1)
	tick := time.NewTicker(w.options.Poll)
	defer tick.Stop()
	after := func() { notify(done) }
	for claims := true; ctx.Err() == nil; {
		if claims && w.start(ctx, &calls, after) > 0 {
			continue
		}
		claims = true
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-done:
		case <-w.wake:
		case r := <-published:
			w.startPublished(ctx, &calls, r, after)
			claims = r.left
		}
	}
}

// Wake makes Loop poll at once. It is a hint after the commit of new messages.
func (w *Webhooks) Wake() { notify(w.wake) }

// notify sends a signal unless one is pending.
func notify(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// start claims messages within the limits and starts to call them.
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
			w.serve(ctx, calls, w.buffers.begin(m), w.buffers.acquireMore(m.EndpointID))
		})
	}
	return len(taken)
}

// RunOnce claims due messages once, calls and settles them, and returns how many
// they were.
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

// settleTime bounds a settlement, which continues during a shutdown: otherwise the
// message would be called again.
const settleTime = 10 * time.Second

// settleTries is how often a settlement is tried. Without it the message is called
// again.
const settleTries = 3

// work calls a message and settles it.
func (w *Webhooks) work(ctx context.Context, m claimed) {
	defer w.limiter.release(m.WorkspaceID, m.EndpointID)
	v := w.callOnce(ctx, m)
	m.forget()
	w.finish(ctx, m, v, nil)
}

// callOnce calls a message, also during a shutdown. A panic counts as a call without
// an answer.
func (w *Webhooks) callOnce(ctx context.Context, m claimed) (v result) {
	w.reached("claimed")
	defer w.reached("called")
	err := lemma.Recovered(func() error {
		v = w.call(context.WithoutCancel(ctx), m)
		return nil
	})
	if err != nil {
		return result{reason: ReasonNetwork, cause: err}
	}
	return v
}

// finish settles a call, and logs a panic. failed is the error of an earlier try; nil: there
// was none.
func (w *Webhooks) finish(ctx context.Context, m claimed, v result, failed error) {
	if err := lemma.Recovered(func() error { w.settleAndLog(ctx, m, v, failed); return nil }); err != nil {
		w.log.ErrorContext(ctx, "webhook not settled; it is called again when its lease expires",
			"workspace", m.WorkspaceID, "message", m.ID, "error", err)
	}
}

func (w *Webhooks) settleAndLog(ctx context.Context, m claimed, v result, failed error) {
	one := w.settleWithRetries(ctx, m, v, failed)
	if one.err == nil {
		w.logSettled(ctx, one)
		return
	}
	log, wait, label := w.logOf(m, v), w.delay(m.Attempts, result{retryAfter: v.retryAfter}), "error"
	if isLocked(one.err) {
		label = "locked"
		if v.final { // another answer is that of a call that is made again
			wait = afterLock(one.err)
		}
		log.InfoContext(ctx, "webhook not settled, since another transaction has its enrollment; it is settled later")
	} else {
		log.ErrorContext(ctx, "webhook not settled; it is settled later", "error", one.err)
	}
	if err := w.keepAnswer(ctx, m, v, wait); err != nil {
		log.ErrorContext(ctx, "answer of a webhook not stored; it is called again when its lease expires", "error", err)
		return
	}
	w.metrics.kept.WithLabelValues(label).Inc()
}

func (w *Webhooks) logOf(m claimed, v result) *slog.Logger {
	return w.log.With("workspace", m.WorkspaceID, "message", m.ID, "endpoint", m.EndpointID, "attempt", m.Attempts,
		"status", v.status, "reason", v.reason)
}

// logSettled counts a settlement, and logs one that delivered nothing.
func (w *Webhooks) logSettled(ctx context.Context, one *settlement) {
	v := one.result
	if !one.held {
		w.logOf(one.claimed, v).WarnContext(ctx, "webhook not settled: it was settled before, or its lease expired")
		return
	}
	w.metrics.settled(v, one.ended)
	if v.reason == ReasonSecret {
		w.logOf(one.claimed, v).ErrorContext(ctx, "webhook cannot be signed", "error", v.cause)
	} else if !v.delivered() {
		w.logOf(one.claimed, v).InfoContext(ctx, "webhook not delivered", "ended", one.ended, "cause", logged(v.cause))
	}
}

// settleWithRetries settles a call. It waits before each try after the first.
func (w *Webhooks) settleWithRetries(ctx context.Context, m claimed, v result, failed error) *settlement {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	one := &settlement{claimed: m, result: v, err: failed}
	for try := range settleTries {
		if isLocked(one.err) {
			return one // the transaction may last
		}
		if one.err != nil {
			select {
			case <-ctx.Done():
				return one
			case <-time.After(time.Duration(max(try, 1)) * 100 * time.Millisecond):
			}
		}
		if one = w.settle(ctx, m, v); one.err == nil {
			break
		}
	}
	return one
}

// putBackEvery is how often an answer that cannot be stored is put back again.
const putBackEvery = time.Second

// keepAnswer puts back the answer of a message that could not be settled. While the
// database fails it tries again, until the lease ends or the process shuts down.
func (w *Webhooks) keepAnswer(ctx context.Context, m claimed, v result, wait time.Duration) error {
	for {
		err := w.putBack(m, v, wait)
		if err == nil {
			return nil
		}
		w.reached("not put back")
		if time.Since(m.since) > w.options.Lease {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(putBackEvery):
		}
	}
}

// publishLoop publishes events, and passes on those that Loop may call. While there are more
// than one transaction publishes, it continues at once. Later ones wait for the next
// period, so that they can be joined.
func (w *Webhooks) publishLoop(ctx context.Context, to chan<- *reservation) {
	loop.Every(ctx, w.options.Poll/2, func(ctx context.Context) error {
		for {
			r := w.newReservation()
			done, err := w.publishChunk(ctx, r)
			if err != nil {
				return err
			}
			if done.written > 0 {
				select {
				case to <- r:
				case <-ctx.Done():
					w.dropReservation(ctx, r)
				}
			}
			if !done.more {
				return nil
			}
		}
	}, func(err error) {
		w.log.ErrorContext(ctx, "events not published; they are published later", "error", err)
	})
}

// disableEvery is how often Loop disables failing endpoints.
const disableEvery = 10 * time.Minute

func (w *Webhooks) disableLoop(ctx context.Context) {
	loop.Every(ctx, disableEvery, func(ctx context.Context) error { _, err := w.DisableFailing(ctx); return err },
		func(err error) { w.log.ErrorContext(ctx, "failing webhook endpoints not disabled", "error", err) })
}

func (w *Webhooks) cleanLoop(ctx context.Context) {
	loop.Every(ctx, cleanEvery, func(ctx context.Context) error { _, err := w.Clean(ctx); return err },
		func(err error) { w.log.ErrorContext(ctx, "outbox not cleaned", "error", err) })
}
