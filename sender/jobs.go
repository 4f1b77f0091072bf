package sender

import (
	"context"
	"sync"
	"time"

	"github.com/riverqueue/river"

	"lemma/loop"
	"lemma/notifications"
)

// worker answers bells. The job is a hint: whatever becomes of it, the batch
// row says what is to be done.
type worker struct {
	river.WorkerDefaults[notifications.BatchSend]
	sender *Sender
}

func (w *worker) Work(ctx context.Context, job *river.Job[notifications.BatchSend]) error {
	again, err := w.sender.Work(ctx, job.Args.Ref)
	if err == nil && again > 0 {
		return river.JobSnooze(again)
	}
	return err
}

// Timeout is past the point at which Work gives its batch back by itself.
func (w *worker) Timeout(*river.Job[notifications.BatchSend]) time.Duration {
	return JobTimeout(w.sender.cfg)
}

// JobTimeout is the longest that a batch_send job may run. River must not
// rescue one earlier than this.
func JobTimeout(cfg Config) time.Duration { return 3 * cfg.withDefaults().Lease }

// Register adds the sender's workers to a River client's.
func (s *Sender) Register(workers *river.Workers) { river.AddWorker(workers, &worker{sender: s}) }

// Loop runs the reaper and the sweep until ctx ends, and returns when both have
// stopped. Both are bounded, and safe on every node at once.
func (s *Sender) Loop(ctx context.Context) {
	away := false
	var loops sync.WaitGroup
	loops.Go(func() {
		loop.Every(ctx, s.cfg.ReapEvery, func(ctx context.Context) (err error) { away, err = s.reapTurn(ctx, away); return err }, s.failed("reap"))
	})
	loops.Go(func() {
		loop.Every(ctx, s.cfg.SweepEvery, func(ctx context.Context) error { _, err := s.Sweep(ctx); return err }, s.failed("sweep"))
	})
	loops.Wait()
}

// reapTurn runs the reaper, but leaves out the turn after one for which the
// database did not answer: workers have answers to write down that came
// meanwhile, and what is known need not be tried again.
func (s *Sender) reapTurn(ctx context.Context, away bool) (awayNow bool, err error) {
	if away {
		return false, nil
	}
	_, err = s.Reap(ctx)
	return err != nil && retryable(err), err
}

func (s *Sender) failed(what string) func(error) {
	return func(err error) { s.log.Error(what+" failed", "error", err) }
}
