package server

import (
	"testing"

	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"lemma/cache"
	"lemma/notifications"
	"lemma/pgtest"
)

// A fetch of a few jobs of many is planned by its limit: without it, the plan joins them with all jobs.
func TestFetchesOfAFewJobsOfMany(t *testing.T) {
	t.Parallel()
	b := pgtest.NewShop(t)
	b.Exec(`insert into river_job (kind, args, max_attempts, queue, state)
		select 'batch_send', '{}', 25, $1, 'available' from generate_series(1, 20000)`, notifications.QueueDirect)
	b.Exec(`analyze river_job`)
	pool, err := OpenPool(t.Context(), Config{DatabaseURL: pgtest.DSN(b.Pool)})
	b.Must(err)
	t.Cleanup(pool.Close)
	jobs, err := openJobs(t.Context(), pool, nil)
	b.Must(err)
	t.Cleanup(jobs.Close)
	executor := riverpgxv5.New(jobs).GetExecutor()
	for range 10 {
		result, err := executor.JobGetAvailable(t.Context(), &riverdriver.JobGetAvailableParams{
			ClientID: "c", MaxAttemptedBy: 10, MaxToLock: 3, Queue: notifications.QueueDirect})
		if err != nil || len(result.Jobs) != 3 {
			t.Fatalf("%+v, %v", result, err)
		}
	}
	var generic, custom int
	b.Must(jobs.QueryRow(t.Context(), `select sum(generic_plans), sum(custom_plans) from pg_prepared_statements
		where statement like '%JobGetAvailable%' and statement not like '%pg_prepared_statements%'`).Scan(&generic, &custom))
	if generic != 0 || custom != 10 {
		t.Errorf("%d plans without the limit, %d with it", generic, custom)
	}
}

// After a failover, or when another database is restored in the place of one, no job of the earlier
// one is fetched.
func TestJobsFollowTheDatabase(t *testing.T) {
	t.Parallel()
	b := pgtest.NewShop(t)
	var history cache.History
	jobs, err := openJobs(t.Context(), b.Pool, &history)
	b.Must(err)
	t.Cleanup(jobs.Close)
	process := func() (pid int) {
		b.Must(jobs.QueryRow(t.Context(), "select pg_backend_pid()").Scan(&pid))
		return pid
	}
	history.Continue("one")
	first := process()
	if again := process(); again != first {
		t.Error("a connection is used once")
	}
	history.Continue("another")
	if process() == first {
		t.Error("the connection to the earlier server is used")
	}
}
