package migrations_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/migrations"
	"lemma/pgtest"
)

// inTest are the options of databases that live as long as one test.
var inTest = migrations.GuardOptions{AllowNoFsync: true}

func red(guards []migrations.Guard) []string {
	var names []string
	for _, g := range guards {
		if !g.OK {
			names = append(names, g.Name)
		}
	}
	return names
}

func TestGuardsAreOKAfterMigration(t *testing.T) {
	t.Parallel()
	guards, err := migrations.Guards(t.Context(), pgtest.DB(t), inTest)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Red(guards); err != nil {
		t.Error(err)
	}
	if want := len(migrations.Expected()) + 8; len(guards) != want {
		t.Errorf("%d guards were checked instead of %d", len(guards), want)
	}
}

func TestEmptyDatabaseIsRed(t *testing.T) {
	t.Parallel()
	guards, err := migrations.Guards(t.Context(), pgtest.Empty(t), inTest)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(red(guards)), len(migrations.Expected())+2; got != want {
		t.Errorf("%d guards are red instead of %d: %v", got, want, red(guards))
	}
}

// redAfter changes the schema in a transaction that is rolled back, and returns
// the guards that are red in it.
func redAfter(t *testing.T, pool *pgxpool.Pool, statements ...string) []string {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	for _, sql := range statements {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	guards, err := migrations.GuardsIn(t.Context(), tx, inTest)
	if err != nil {
		t.Fatal(err)
	}
	return red(guards)
}

// drop removes a rule, with the foreign keys that depend on it.
func drop(w migrations.Want) string {
	switch {
	case strings.Contains(w.Definition, "USING"):
		return "drop index " + w.Name
	case strings.HasPrefix(w.Definition, "TRIGGER"):
		return fmt.Sprintf("drop trigger %s on %s", w.Name, w.Table)
	}
	return fmt.Sprintf("alter table %s drop constraint %s cascade", w.Table, w.Name)
}

// dropped are the guards that drop removes.
func dropped(w migrations.Want) []string {
	all := []string{w.Name}
	for _, other := range migrations.Expected() {
		if strings.HasPrefix(w.Definition, "PRIMARY KEY") && strings.Contains(other.Definition, "REFERENCES "+w.Table+"(") {
			all = append(all, other.Name)
		}
	}
	return all
}

func sameNames(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func TestEveryMissingGuardIsRed(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	for _, w := range migrations.Expected() {
		if got := redAfter(t, pool, drop(w)); !sameNames(got, dropped(w)) {
			t.Errorf("without %s these guards are red: %v", w.Name, got)
		}
	}
}

func TestEveryWeakerGuardIsRed(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	for _, w := range migrations.Expected() {
		for how, weaker := range weakened(w) {
			if got := redAfter(t, pool, drop(w), weaker); !sameNames(got, dropped(w)) {
				t.Errorf("%s %s: these guards are red: %v", w.Name, how, got)
			}
		}
	}
}

// weakened are rules of the same name that guard less.
func weakened(w migrations.Want) map[string]string {
	add := fmt.Sprintf("alter table %s add constraint %s ", w.Table, w.Name)
	definition, _, _ := strings.Cut(w.Definition, " NULLABLE")
	switch {
	case strings.HasPrefix(definition, "CHECK"):
		return map[string]string{
			"always true": add + "check (true)",
			"not valid":   add + definition + " not valid",
		}
	case strings.HasPrefix(definition, "TRIGGER"):
		created := fmt.Sprintf("create trigger %s before update on %s for each row execute function ", w.Name, w.Table)
		return map[string]string{
			"disabled":         created + fmt.Sprintf("%[2]s(); alter table %[1]s disable trigger %[2]s", w.Table, w.Name),
			"another function": created + "suppress_redundant_updates_trigger()",
		}
	case strings.HasPrefix(definition, "UNIQUE USING"):
		on := strings.TrimPrefix(definition, "UNIQUE ")
		columns, predicate, _ := strings.Cut(on, " WHERE")
		return map[string]string{
			"not unique":        fmt.Sprintf("create index %s on %s %s", w.Name, w.Table, on),
			"another predicate": fmt.Sprintf("create unique index %s on %s %s where workspace_id is null", w.Name, w.Table, columns),
			"another column": fmt.Sprintf("create unique index %s on %s (workspace_id, id%s) where%s",
				w.Name, w.Table, partitionedBy(columns), predicate),
		}
	case strings.HasSuffix(definition, ", workspace_id)"):
		return map[string]string{
			"in another order": add + strings.Replace(strings.TrimSuffix(definition, ", workspace_id)")+")", "(", "(workspace_id, ", 1),
			"deferrable":       add + definition + " deferrable",
		}
	case strings.HasPrefix(definition, "FOREIGN KEY"):
		return map[string]string{"not valid": add + definition + " not valid", "deferrable": add + definition + " deferrable"}
	case strings.Contains(w.Definition, "workspace_id"):
		return map[string]string{
			"in another order": add + strings.TrimSuffix(strings.Replace(definition, "workspace_id, ", "", 1), ")") + ", workspace_id)",
			"deferrable":       add + definition + " deferrable",
		}
	}
	return map[string]string{"deferrable": add + definition + " deferrable"}
}

// partitionedBy is the column that each unique index of a partitioned table has.
func partitionedBy(columns string) string {
	if strings.Contains(columns, "origin_id") {
		return ", origin_id"
	}
	return ""
}

func TestOtherFaultsMakeAGuardRed(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	partition := "attempts_default"
	for name, c := range map[string]struct {
		do   []string
		want string
	}{
		"a nullable column, which satisfies a check": {
			do: []string{"alter table batches alter column max_attempts drop not null"}, want: "batches_attempt"},
		"a partition without the constraint": { // Postgres does not drop it, but a restored or attached table can lack it
			do:   []string{"delete from pg_constraint where conname = 'attempts_bound' and conrelid = '" + partition + "'::regclass"},
			want: "attempts_bound"},
		"an unlogged table": {
			do: []string{"alter table resolutions set unlogged"}, want: "logged tables"},
		"an unlogged partition": {
			do: []string{"alter table " + partition + " set unlogged"}, want: "logged tables"},
		"an invalid index of a failed build": {
			do:   []string{"update pg_index set indisvalid = false where indexrelid = 'provider_events_once'::regclass"},
			want: "provider_events_once"},
		"an invalid index of a partition": {
			do:   []string{"update pg_index set indisvalid = false where indexrelid = 'notifications_default_pkey'::regclass"},
			want: "notifications_pkey"},
		"a migration that was not applied": {
			do: []string{"delete from goose_db_version where version_id = 3"}, want: "migrations"},
		"commits that do not wait for the disk": {
			do: []string{"set local synchronous_commit = off"}, want: "synchronous_commit"},
		"an isolation level that hides commits during a wait": {
			do: []string{"set local default_transaction_isolation = 'repeatable read'"}, want: "default_transaction_isolation"},
	} {
		if got := redAfter(t, pool, c.do...); len(got) != 1 || got[0] != c.want {
			t.Errorf("%s: these guards are red: %v", name, got)
		}
	}
}

func TestSettingsOfProduction(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	guards, err := migrations.Guards(t.Context(), pool, migrations.GuardOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := red(guards); len(got) != 1 || got[0] != "fsync" {
		t.Errorf("on a cluster with fsync off these guards are red: %v", got)
	}
}

func TestRiverWithoutAMigration(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"the newest": "delete from river_migration where version = (select max(version) from river_migration)",
		"ours":       "drop trigger river_job_due on river_job",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.DB(t)
			if _, err := pool.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
			guards, err := migrations.Guards(t.Context(), pool, inTest)
			if err != nil {
				t.Fatal(err)
			}
			if got := red(guards); len(got) != 1 || got[0] != "river migrations" {
				t.Errorf("these guards are red: %v", got)
			}
		})
	}
}

// A job that a process inserts whose clock is a day ahead runs now. One that is to run later keeps
// its time.
func TestJobsOfAProcessWhoseClockIsAhead(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	for state, want := range map[string]bool{"available": true, "scheduled": false} {
		var due bool
		err := pool.QueryRow(t.Context(), `
			insert into river_job (args, kind, max_attempts, state, created_at, scheduled_at)
			values ('{}', 'test', 1, $1::river_job_state, now() + interval '1 day', now() + interval '1 day')
			returning scheduled_at <= now()`, state).Scan(&due)
		if err != nil || due != want {
			t.Errorf("%s: it is due: %t, %v", state, due, err)
		}
	}
}

// The comments in the database and the expected list name the same properties.
func TestPromisesAreWrittenOnTheConstraints(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	rows, err := pool.Query(t.Context(), `
		select conname::text, obj_description(oid, 'pg_constraint') from pg_constraint
		where obj_description(oid, 'pg_constraint') like '%!%'
		union all
		select relname::text, obj_description(oid, 'pg_class') from pg_class
		where relkind in ('i', 'I') and obj_description(oid, 'pg_class') like '%!%'
		union all
		select tgname::text, obj_description(oid, 'pg_trigger') from pg_trigger where obj_description(oid, 'pg_trigger') like '%!%'`)
	if err != nil {
		t.Fatal(err)
	}
	comments := map[string]string{}
	var name, comment string
	if _, err := pgx.ForEachRow(rows, []any{&name, &comment}, func() error { comments[name] = comment; return nil }); err != nil {
		t.Fatal(err)
	}
	for _, w := range migrations.Expected() {
		if strings.Contains(w.Promise, "!") && comments[w.Name] != w.Promise {
			t.Errorf("%s guards %s, its comment says %q", w.Name, w.Promise, comments[w.Name])
		}
		delete(comments, w.Name)
	}
	if len(comments) > 0 {
		t.Errorf("these promises are not in the expected list: %v", comments)
	}
}
