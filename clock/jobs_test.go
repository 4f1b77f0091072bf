package clock

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
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
		FetchCooldown: 10 * time.Millisecond, Test: river.TestConfig{Time: ForJobs(t.Context(), pool)}})
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

// An old reading counts until there is another, and the caller waits for none.
func TestTheTimeOfJobsDoesNotWait(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	first, second := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	pgtest.SetClock(t, pool, first)
	j := ForJobs(t.Context(), pool)
	pgtest.SetClock(t, pool, second)
	j.clock.age(time.Minute)
	var held []*pgxpool.Conn
	for range pool.Config().MaxConns {
		c, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	begun := time.Now()
	if got := j.Now(); got.Sub(first.Add(time.Minute)).Abs() > time.Minute || time.Since(begun) > readFor/2 {
		t.Errorf("%s after %s", got, time.Since(begun))
	}
	pgtest.Eventually(t, 10*time.Second, "the reading fails", func() bool { return j.failed.Load() != nil && !j.reads.Load() })
	for range 100 {
		j.Now()
	}
	if j.reads.Load() {
		t.Error("it reads again at once")
	}
	for _, c := range held {
		c.Release()
	}
	j.failed.Store(nil)
	pgtest.Eventually(t, 10*time.Second, "the new time", func() bool { return j.Now().Sub(second).Abs() < time.Minute })
	if j.NowOrNil() != nil {
		t.Error("statements have the time of the process")
	}
}

// Without a reading it is the time of the process.
func TestTheTimeOfJobsWithoutADatabase(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	pool.Close()
	if d := time.Since(ForJobs(t.Context(), pool).Now()).Abs(); d > time.Minute {
		t.Errorf("it differs by %s", d)
	}
}
