package clock

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Jobs is the time for River. River writes when a job is due by the clock of the process, and gives it
// to a worker when that of the database has reached this time: with the clock of the process ahead, each job
// that is put off would wait for longer.
type Jobs struct {
	clock  *Clock
	reads  atomic.Bool
	failed atomic.Pointer[time.Time]
}

// readAgain is how long Jobs waits after a reading that failed.
const readAgain = 5 * time.Second

// ForJobs is the time of a database for River. It reads it once; while it has no reading, it is that of the process.
func ForJobs(ctx context.Context, pool *pgxpool.Pool) *Jobs {
	j := &Jobs{clock: New(pool)}
	j.read(ctx)
	return j
}

// Now is the time of the database. It never waits for it: River's workers and its loops call it. It is as smooth as the
// monotonic clock, but has no reading of it: the clock of the machine, which may be set, is not in it.
func (j *Jobs) Now() time.Time {
	last := j.clock.last.Load()
	if j.mayRead(last) && j.reads.CompareAndSwap(false, true) {
		go func() {
			defer j.reads.Store(false)
			j.read(context.Background())
		}()
	}
	if last == nil {
		return time.Now()
	}
	return last.now()
}

// mayRead reports that the last reading is old, and that none has just failed.
func (j *Jobs) mayRead(last *Reading) bool {
	failed := j.failed.Load()
	return (last == nil || time.Since(last.Ended) > maxAge) && (failed == nil || time.Since(*failed) > readAgain)
}

func (j *Jobs) read(ctx context.Context) {
	before := j.clock.last.Load()
	if _, _ = j.clock.Now(ctx); j.clock.last.Load() == before {
		now := time.Now()
		j.failed.Store(&now)
	}
}

// NowOrNil is nil: statements have the time of the database.
func (j *Jobs) NowOrNil() *time.Time { return nil }
