package migrations_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/migrations"
	"lemma/pgtest"
)

// monthOf returns the partition of a table for a month, and creates it and the next three.
func monthOf(t *testing.T, pool *pgxpool.Pool, table string, month time.Time) migrations.Partition {
	t.Helper()
	if err := migrations.Partitions(t.Context(), pool, month); err != nil {
		t.Fatal(err)
	}
	return months(t, pool, table, month)[0]
}

// months lists the partitions of a table for a month: one or none.
func months(t *testing.T, pool *pgxpool.Pool, table string, month time.Time) []migrations.Partition {
	t.Helper()
	all, err := migrations.Months(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(p migrations.Partition) bool { return p.Table != table || !p.Month.Equal(month) })
}

func use(used bool) func(context.Context, pgx.Tx) (bool, error) {
	return func(context.Context, pgx.Tx) (bool, error) { return used, nil }
}

func TestAMonthIsDetachedAndDropped(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	month := time.Date(2019, 5, 1, 0, 0, 0, 0, time.UTC)
	p := monthOf(t, pool, "attempts", month)
	if !p.Attached || p.Name() != "attempts_2019_05" || p.Bytes == 0 {
		t.Fatalf("the partition is %+v", p)
	}
	if got := landsIn(t, pool, pgtest.IDAt(month)); got != p.Name() {
		t.Fatalf("the row is in %s", got)
	}
	if done, err := migrations.Detach(t.Context(), pool, p, use(true)); done || err != nil {
		t.Errorf("a partition in use is detached: %v, %v", done, err)
	}
	if _, err := migrations.Drop(t.Context(), pool, p, use(false)); err == nil {
		t.Error("an attached partition was dropped")
	}
	for i := range 2 { // the second time it is detached already
		if done, err := migrations.Detach(t.Context(), pool, p, use(false)); err != nil || done != (i == 0) {
			t.Errorf("detach %d: %v, %v", i, done, err)
		}
		if p = months(t, pool, "attempts", month)[0]; p.Attached {
			t.Error("it is still attached")
		}
	}
	if done, err := migrations.Drop(t.Context(), pool, p, use(true)); err != nil || done || len(months(t, pool, "attempts", month)) != 1 {
		t.Errorf("a partition that stays is dropped: %v, %v", done, err)
	}
	for range 2 {
		if done, err := migrations.Drop(t.Context(), pool, p, use(false)); err != nil || !done {
			t.Error(done, err)
		}
	}
	if left := months(t, pool, "attempts", month); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if len(months(t, pool, "attempts", month.AddDate(0, 1, 0))) != 1 {
		t.Error("the next month is gone")
	}
}

// A transaction that uses the table is not waited for, and what waits behind the lock
// goes on.
func TestDetachingGivesUpOnLocks(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	p := monthOf(t, pool, "attempts", time.Date(2019, 5, 1, 0, 0, 0, 0, time.UTC))
	holder, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(context.Background())
	if _, err := holder.Exec(t.Context(), "select from attempts limit 1"); err != nil {
		t.Fatal(err)
	}
	bounded, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := migrations.Detach(bounded, pool, p, use(false)); !errors.Is(err, migrations.ErrBusy) {
		t.Errorf("detach beside a long transaction: %v", err)
	}
	if got := landsIn(t, pool, pgtest.IDAt(p.Month)); got != p.Name() {
		t.Errorf("the next row is in %s", got)
	}
}

// A month is either in the list of detached partitions or in its table until the transaction
// that reads the list ends.
func TestNoMonthIsDetachedAfterTheList(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	first, second := time.Date(2019, 5, 1, 0, 0, 0, 0, time.UTC), time.Date(2019, 6, 1, 0, 0, 0, 0, time.UTC)
	gone, stays := monthOf(t, pool, "attempts", first), monthOf(t, pool, "attempts", second)
	if done, err := migrations.Detach(t.Context(), pool, gone, use(false)); err != nil || !done {
		t.Fatal(done, err)
	}
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		names, err := migrations.Detached(t.Context(), tx, "attempts")
		if err != nil || !slices.Equal(names, []string{gone.Name()}) {
			t.Errorf("detached: %v, %v", names, err)
		}
		if done, err := migrations.Detach(t.Context(), pool, stays, use(false)); done || !errors.Is(err, migrations.ErrBusy) {
			t.Errorf("a month is detached after the list was read: %v, %v", done, err)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Two processes that drop a partition at the same moment have both dropped it.
func TestAMonthIsDroppedByTwoProcesses(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	month := time.Date(2019, 5, 1, 0, 0, 0, 0, time.UTC)
	p := monthOf(t, pool, "attempts", month)
	if done, err := migrations.Detach(t.Context(), pool, p, use(false)); err != nil || !done {
		t.Fatal(done, err)
	}
	deciding, decide := make(chan struct{}, 2), make(chan struct{})
	dropped := make(chan error, 2)
	for range 2 {
		go func() {
			done, err := migrations.Drop(t.Context(), pool, p, func(context.Context, pgx.Tx) (bool, error) {
				deciding <- struct{}{}
				<-decide
				return false, nil
			})
			if err == nil && !done {
				err = errors.New("it is not dropped")
			}
			dropped <- err
		}()
	}
	<-deciding
	pgtest.Eventually(t, 10*time.Second, "the other waits", func() bool {
		return pgtest.One[int](t, pool, `select count(*)::int from pg_locks where not granted`) > 0
	})
	close(decide)
	for range 2 {
		if err := <-dropped; err != nil {
			t.Error(err)
		}
	}
}
