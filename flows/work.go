package flows

import (
	"context"
	"time"

	"lemma"
	"lemma/flows/enrollment"
)

// pollShards wakes a worker periodically: an enrollment may have become due by time, or by
// the work of another process. One worker polls all shards; if it finds work it wakes the
// next.
func (f *Flows) pollShards(ctx context.Context) {
	next := time.NewTimer(f.cfg.Poll)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
			f.waker.WakeAll()
			next.Reset(max(f.cfg.Poll, min(idlePollShare*time.Duration(f.idlePoll.Load()), idleMost)))
		}
	}
}

// idlePollShare bounds polls without result, whose cost grows with the flows, to a
// twentieth of one processor. idleMost bounds the delay after a poll that only waited for
// a lock or a connection.
const (
	idlePollShare = 20
	idleMost      = 20 * time.Second
)

// work advances chunks while any is due, and then waits for the waker.
func (f *Flows) work(ctx context.Context) {
	for ctx.Err() == nil {
		where, ok := f.waker.Next()
		if !ok {
			select {
			case <-ctx.Done():
			case <-f.waker.Woken:
			}
			continue
		}
		f.workAt(ctx, where)
	}
}

// workAt advances chunks where enrollments are due. In a single shard it advances one
// chunk and enqueues the shard again: another worker may have polled it without result
// while this one held the lease. A full chunk means a backlog; then all shards are polled,
// so that this one gets no preference.
func (f *Flows) workAt(ctx context.Context, where enrollment.Shard) {
	for ctx.Err() == nil {
		var n int
		var claimed bool
		err := lemma.Recovered(func() (err error) { n, claimed, err = f.runOnce(ctx, where); return err })
		if err != nil && ctx.Err() == nil {
			f.log.Error("advance enrollments", "error", err)
		}
		switch {
		case !claimed || err != nil || n == 0 && where == (enrollment.Shard{}):
			return
		case where != (enrollment.Shard{}) && n < f.cfg.Chunk:
			f.waker.WakeShards(map[enrollment.Shard]bool{where: true})
			return
		}
		where = enrollment.Shard{}
		f.waker.WakeAll() // there may be work for another worker as well
	}
}
