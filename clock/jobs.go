package clock

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Jobs is the time for River. River writes when a job is due by the clock of the process, and gives it
// to a worker when that of the database has reached this time: with the clock of the process ahead, each job
// that is put off would wait for longer.
type Jobs struct{ clock *Clock }

// ForJobs is the time of a database for River.
func ForJobs(pool *pgxpool.Pool) *Jobs { return &Jobs{New(pool)} }

// Now is the time of the database, and that of the process until the first reading. It has a reading of the monotonic
// clock, so that River can measure durations.
func (j *Jobs) Now() time.Time {
	now := time.Now()
	at, err := j.clock.Now(context.Background())
	if err != nil {
		return now
	}
	return now.Add(at.Sub(now))
}

// NowOrNil is nil: statements have the time of the database.
func (j *Jobs) NowOrNil() *time.Time { return nil }
