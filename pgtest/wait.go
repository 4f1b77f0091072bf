package pgtest

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// pollEvery is the pause between two polls of a condition, and inTime how long most
// conditions have. A machine under load is slow, and a test that passes does not wait.
const (
	pollEvery = 2 * time.Millisecond
	inTime    = 20 * time.Second
)

// Eventually polls a condition that gives no signal, such as a state of Postgres or of
// another process. It fails the test unless the condition is true within that time.
func Eventually(t testing.TB, within time.Duration, what string, is func() bool) {
	t.Helper()
	for late := time.Now().Add(within); !is(); time.Sleep(pollEvery) {
		if time.Now().After(late) {
			t.Fatalf("after %s it is not true that %s", within, what)
		}
	}
}

// LockWaits counts the sessions in a pool's database that wait for a lock.
func LockWaits(t testing.TB, pool *pgxpool.Pool) int {
	t.Helper()
	return One[int](t, pool, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`)
}

// WaitForLocks returns once n sessions in a pool's database wait for a lock.
func WaitForLocks(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	Eventually(t, inTime, "enough sessions wait for a lock", func() bool { return LockWaits(t, pool) >= n })
}
