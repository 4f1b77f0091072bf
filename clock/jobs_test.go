package clock

import (
	"context"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"lemma/pgtest"
)

type putOff struct{}

func (putOff) Kind() string { return "put_off" }

// The worker puts a job off for a minute.
type putOffWorker struct{ river.WorkerDefaults[putOff] }

func (putOffWorker) Work(context.Context, *river.Job[putOff]) error {
	return river.JobSnooze(time.Minute)
}

// A job that is put off is due by the clock of the database, however wrong that of the process is.
func TestJobsArePutOffByTheClockOfTheDatabase(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	at := time.Now().Add(-time.Hour).Truncate(time.Second)
	pgtest.SetClock(t, pool, at)
	workers := river.NewWorkers()
	river.AddWorker(workers, putOffWorker{})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Workers: workers,
		Queues: map[string]river.QueueConfig{"default": {MaxWorkers: 1}}, FetchPollInterval: 10 * time.Millisecond,
		FetchCooldown: 10 * time.Millisecond, Test: river.TestConfig{Time: ForJobs(pool)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Insert(t.Context(), putOff{}, nil); err != nil {
		t.Fatal(err)
	}
	var due time.Time
	pgtest.Eventually(t, 10*time.Second, "the job is put off", func() bool {
		err := pool.QueryRow(t.Context(), `select scheduled_at from river_job where state = 'scheduled'`).Scan(&due)
		return err == nil
	})
	if wait := due.Sub(at); wait < time.Minute || wait > 2*time.Minute {
		t.Errorf("it is due in %s", wait)
	}
	if err := client.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}

// Durations are measured by the monotonic clock.
func TestTheTimeOfJobsIsMonotonic(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	j := ForJobs(pool)
	first := j.Now()
	if first.Round(0) == first {
		t.Error("it has no reading of the monotonic clock")
	}
	if d := j.Now().Sub(first); d < 0 || d > time.Minute || j.NowOrNil() != nil {
		t.Errorf("then it is %s later", d)
	}
	pool.Close()
	if d := time.Since(ForJobs(pool).Now()).Abs(); d > time.Minute {
		t.Errorf("without a database it differs by %s", d)
	}
}
