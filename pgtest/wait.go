package pgtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// inTime is how long most conditions have. A machine under load is slow, and a test
// that passes does not wait for it.
const inTime = 20 * time.Second

// Eventually polls a condition that gives no signal, such as a state of Postgres or of
// another process. It fails the test unless the condition is true within that time.
func Eventually(t testing.TB, within time.Duration, what string, is func() bool) {
	t.Helper()
	late := time.Now().Add(within)
	for pause := time.Millisecond; !is(); pause = min(2*pause, 20*time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("after %s it is not true that %s", within, what)
		}
		time.Sleep(pause)
	}
}

// Waits returns a context, and a channel that is closed when work with the context begins to
// wait: when it reads Done for the first time.
func Waits(ctx context.Context) (context.Context, <-chan struct{}) {
	w := &waits{Context: ctx, begun: make(chan struct{})}
	return w, w.begun
}

type waits struct {
	context.Context //nolint:containedctx // it is a context
	once            sync.Once
	begun           chan struct{}
}

// Done is that of the context.
func (w *waits) Done() <-chan struct{} {
	w.once.Do(func() { close(w.begun) })
	return w.Context.Done()
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
