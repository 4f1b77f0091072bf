package migrations_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"golang.org/x/sync/errgroup"

	"lemma/migrations"
	"lemma/pgtest"
)

func TestProcessesThatStartAtOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.Empty(t)
	var processes errgroup.Group
	for range 4 {
		processes.Go(func() error { return migrations.Up(t.Context(), pool) })
	}
	if err := processes.Wait(); err != nil {
		t.Fatal(err)
	}
	guards, err := migrations.Guards(t.Context(), pool, inTest)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Red(guards); err != nil {
		t.Error(err)
	}
}

func TestUpWaitsForTheMigrationLock(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	holder, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Release()
	if _, err := holder.Exec(t.Context(), "select pg_advisory_lock($1)", int64(migrations.LockKey)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	waiter := make(chan error, 1)
	go func() { waiter <- migrations.Up(ctx, pool) }()
	for asked := false; !asked; {
		err := pool.QueryRow(t.Context(), `select exists (select from pg_stat_activity where datname = current_database()
			and application_name = 'lemma migrate' and query like '%try_advisory_lock%')`).Scan(&asked)
		if err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := <-waiter; err == nil || !strings.Contains(err.Error(), "the migration lock") {
		t.Errorf("up beside another one: %v", err)
	}
	if _, err := holder.Exec(t.Context(), "select pg_advisory_unlock($1)", int64(migrations.LockKey)); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Errorf("up afterwards: %v", err)
	}
}

func TestDownUndoesUp(t *testing.T) {
	t.Parallel()
	pool := pgtest.Empty(t)
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	p, err := goose.NewProvider(goose.DialectPostgres, db, migrations.Files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		t.Fatal(err)
	}
	schema := func() string {
		s, err := migrations.Schema(t.Context(), pool)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	before := []string{schema()} // before each migration
	for range p.ListSources() {
		if _, err := p.UpByOne(t.Context()); err != nil {
			t.Fatal(err)
		}
		before = append(before, schema())
	}
	for i := len(before) - 2; i >= 0; i-- {
		r, err := p.Down(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before[i], schema()); diff != "" {
			t.Errorf("down of %s leaves (-before +after):\n%s", r.Source.Path, diff)
		}
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pool    *pgxpool.Pool
		applied bool
	}{"empty": {pgtest.Empty(t), false}, "migrated": {pgtest.DB(t), true}} {
		steps, err := migrations.Status(t.Context(), c.pool)
		if err != nil {
			t.Fatal(err)
		}
		if len(steps) < 5 || steps[0].Name != "00001_tenants.sql" {
			t.Errorf("%s: steps are %v", name, steps)
		}
		for i, s := range steps {
			if s.Version != int64(i+1) {
				t.Errorf("migration %s is number %d in order", s.Name, i+1)
			}
			if (s.AppliedAt != nil) != c.applied {
				t.Errorf("%s: %s was applied at %v", name, s.Name, s.AppliedAt)
			}
		}
	}
}

// partitionsOf lists the partitions of a table with their bounds.
func partitionsOf(t *testing.T, pool *pgxpool.Pool, table string) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
		select c.relname || ' ' || pg_get_expr(c.relpartbound, c.oid) || coalesce(' ' || array_to_string(c.reloptions, ' '), '')
		from pg_inherits join pg_class c on c.oid = inhrelid where inhparent = $1::regclass`, table)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(found)
	return found
}

func TestPartitions(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	before := len(partitionsOf(t, pool, "batches"))
	now := time.Date(2031, 11, 30, 23, 59, 0, 0, time.UTC)
	var processes errgroup.Group
	for range 4 {
		processes.Go(func() error { return migrations.Partitions(t.Context(), pool, now) })
	}
	if err := processes.Wait(); err != nil {
		t.Fatal(err)
	}
	options := "fillfactor=70 autovacuum_vacuum_scale_factor=0 autovacuum_vacuum_threshold=2000"
	for table, options := range map[string]string{"notifications": "", "batches": " " + options, "attempts": ""} {
		found := partitionsOf(t, pool, table)
		if len(found) != before+4 {
			t.Errorf("%s has %d partitions: %v", table, len(found), found)
		}
		// 2031-12-01 and 2032-01-01 in milliseconds, in hexadecimal.
		want := table + "_2031_12 FOR VALUES FROM ('01c6ea82-e800-0000-0000-000000000000') " +
			"TO ('01c78a28-0c00-0000-0000-000000000000')" + options
		if !slices.Contains(found, want) {
			t.Errorf("%s lacks %s: %v", table, want, found)
		}
	}
}

// An id belongs to the month in which it was made.
func TestIDsLandInTheirMonth(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	now := time.Date(2031, 11, 15, 0, 0, 0, 0, time.UTC)
	if err := migrations.Partitions(t.Context(), pool, now); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[time.Time]string{
		time.Date(2031, 11, 1, 0, 0, 0, 0, time.UTC):             "attempts_2031_11",
		time.Date(2031, 11, 30, 23, 59, 59, 999e6, time.UTC):     "attempts_2031_11",
		time.Date(2031, 12, 1, 0, 0, 0, 0, time.UTC):             "attempts_2031_12",
		time.Date(2032, 2, 29, 12, 0, 0, 0, time.UTC):            "attempts_2032_02",
		time.Date(2032, 3, 1, 0, 0, 0, 0, time.UTC):              "attempts_default",
		time.Date(2031, 10, 31, 23, 59, 59, 999_000e3, time.UTC): "attempts_default",
	} {
		if got := landsIn(t, pool, pgtest.IDAt(at)); got != want {
			t.Errorf("an id of %s lands in %s instead of %s", at, got, want)
		}
	}
}

func landsIn(t *testing.T, pool *pgxpool.Pool, batch uuid.UUID) string {
	t.Helper()
	var where string
	err := pool.QueryRow(t.Context(), `insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis)
		values ($1, $2, 0, 1, 'accepted', true, 'response') returning tableoid::regclass::text`, uuid.Nil, batch).Scan(&where)
	if err != nil {
		t.Fatal(err)
	}
	return where
}

// Rows of a process whose clock is months ahead are moved when their month gets its partition;
// those of other months stay. More than can be moved at once stay too.
func TestMonthWithRowsInTheDefaultPartition(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	now := time.Date(2033, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, at := range []time.Time{now.AddDate(0, 1, 3), now.AddDate(0, 9, 0)} {
		if got := landsIn(t, pool, pgtest.IDAt(at)); got != "attempts_default" {
			t.Fatalf("the row is in %s", got)
		}
	}
	_, err := pool.Exec(t.Context(), `insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis)
		select $1, $2, n, 1, 'accepted', true, 'response' from generate_series(1, 10001) n`,
		uuid.Nil, pgtest.IDAt(now.AddDate(0, 2, 3)))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := migrations.Partitions(t.Context(), pool, now); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := rowsIn(t, pool, "attempts"), []string{"attempts_2033_02 1", "attempts_default 10002"}; !slices.Equal(got, want) {
		t.Errorf("rows are in %v instead of %v", got, want)
	}
	if found := fmt.Sprint(partitionsOf(t, pool, "attempts")); strings.Contains(found, "attempts_2033_03") ||
		!strings.Contains(found, "attempts_2033_04") || !strings.Contains(found, "attempts_default DEFAULT") {
		t.Errorf("partitions are %s", found)
	}
}

// A row of the audit log is moved too, though it cannot be deleted. The default partition has
// all its guards afterwards.
func TestRowsOfTheAuditLogAreMoved(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	now := time.Date(2033, 1, 1, 0, 0, 0, 0, time.UTC)
	_, err := pool.Exec(t.Context(), `insert into audit_log (workspace_id, id, actor_type, action, resource_type)
		values ($1, $2, 'cli', 'a', 'b'), ($1, $3, 'cli', 'a', 'b')`,
		uuid.Nil, pgtest.IDAt(now.AddDate(0, 1, 3)), pgtest.IDAt(now.AddDate(0, 9, 0)))
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Partitions(t.Context(), pool, now); err != nil {
		t.Fatal(err)
	}
	if got, want := rowsIn(t, pool, "audit_log"), []string{"audit_log_2033_02 1", "audit_log_default 1"}; !slices.Equal(got, want) {
		t.Errorf("rows are in %v instead of %v", got, want)
	}
	_, err = pool.Exec(t.Context(), "delete from audit_log_default")
	if err == nil || !strings.Contains(err.Error(), "do not change") {
		t.Errorf("deleting the other row: %v", err)
	}
	guards, err := migrations.Guards(t.Context(), pool, inTest)
	if err != nil || len(red(guards)) > 0 {
		t.Errorf("red guards: %v, %v", red(guards), err)
	}
}

// rowsIn are the partitions of a table that have rows, with their numbers.
func rowsIn(t *testing.T, pool *pgxpool.Pool, table string) []string {
	t.Helper()
	rows, _ := pool.Query(t.Context(), "select tableoid::regclass || ' ' || count(*) from "+table+" group by tableoid order by 1")
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A partition is created beside other writers, and does not wait long for locks.
func TestPartitionsGiveUpOnLocks(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	holder, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(context.Background())
	if _, err := holder.Exec(t.Context(), "lock table notifications_default in row exclusive mode"); err != nil {
		t.Fatal(err)
	}
	err = migrations.Partitions(t.Context(), pool, time.Date(2034, 1, 1, 0, 0, 0, 0, time.UTC))
	if err == nil || !strings.Contains(err.Error(), "lock timeout") {
		t.Errorf("partitions beside a long transaction: %v", err)
	}
}
