package sender

import (
	"context"
	"sync"
	"time"

	"github.com/riverqueue/river"

	"lemma/loop"
	"lemma/notifications"
)

// worker works batch_send jobs. A job is a hint: the row of the batch decides.
type worker struct {
	river.WorkerDefaults[notifications.BatchSend]
	sender *Sender
}

// Work is a run of the job.
func (w *worker) Work(ctx context.Context, job *river.Job[notifications.BatchSend]) error {
	again, err := w.sender.Work(ctx, job.Args.Ref)
	if err == nil && again > 0 {
		return river.JobSnooze(again)
	}
	return err
}

// Timeout is later than the time at which Work gives its batch back.
func (w *worker) Timeout(*river.Job[notifications.BatchSend]) time.Duration {
	return JobTimeout(w.sender.cfg)
}

// JobTimeout is the longest that a batch_send job may run, before which River must not rescue it.
func JobTimeout(cfg Config) time.Duration { return 3 * cfg.withDefaults().Lease }

// Register adds the sender's workers to a River client's.
func (s *Sender) Register(workers *river.Workers) { river.AddWorker(workers, &worker{sender: s}) }

// releaseEvery is the time between two pages of a resumed origin. At 5,000 batches a page,
// more are enqueued than the workers of a process claim.
const releaseEvery = time.Second

// Loop runs the reaper, the sweep, FillRate, and the release of resumed batches until ctx ends, and
// returns when all have stopped. It may run on every process.
func (s *Sender) Loop(ctx context.Context) {
	down := false
	var loops sync.WaitGroup
	loops.Go(func() {
		loop.Every(ctx, s.cfg.ReapEvery, func(ctx context.Context) (err error) {
			down, err = s.reapUnlessDown(ctx, down)
			return err
		}, s.failed("reap"))
	})
	loops.Go(func() {
		loop.Every(ctx, s.cfg.SweepEvery, func(ctx context.Context) error { _, err := s.Sweep(ctx); return err }, s.failed("sweep"))
	})
	loops.Go(func() {
		loop.Every(ctx, s.cfg.FillEvery, func(ctx context.Context) error { _, err := s.FillRate(ctx); return err }, s.failed("fill rate"))
	})
	loops.Go(func() { loop.Every(ctx, releaseEvery, s.Release, s.failed("release")) })
	loops.Wait()
}

// Release opens the next held batches of each origin that was resumed. One that fails does
// not stop the others.
func (s *Sender) Release(ctx context.Context) error {
	all, err := s.ledger.ReadReleases(ctx)
	if err != nil {
		return err
	}
	return loop.Each(ctx, all, func(r notifications.Release) error { return s.ledger.Release(ctx, r) })
}

// reapUnlessDown skips the run after one in which the database did not answer, so that
// workers can first store the outcomes that they received meanwhile. A run that ended as
// many batches as it may is followed by another.
func (s *Sender) reapUnlessDown(ctx context.Context, down bool) (downNow bool, err error) {
	if down {
		return false, nil
	}
	for {
		reaped, err := s.Reap(ctx)
		if err != nil || reaped.Batches < reapMost || ctx.Err() != nil {
			return err != nil && retryable(err), err
		}
	}
}

func (s *Sender) failed(what string) func(error) {
	return func(err error) { s.log.Error(what+" failed", "error", err) }
}
