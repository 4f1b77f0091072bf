package audience

import (
	"slices"
	"strings"
	"testing"

	"lemma/pgtest"
)

// TestRevokesRemoveWhatTheRoleDoesNotNeed grants what a role is refused or
// warned for and runs the statements that the test of the source shows, until
// nothing is left.
func TestRevokesRemoveWhatTheRoleDoesNotNeed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		grant string // % is the role, $ another
		want  string // a part of what the test finds
	}{
		"writes to a table":               {"grant insert, update on customers to %", "public.customers"},
		"writes to a column":              {"grant update (name) on customers to %", "public.customers"},
		"public writes":                   {"grant delete on customers to public", "public.customers"},
		"writes as a member":              {"grant truncate on customers to $; grant $ to %", "public.customers"},
		"could become a role that writes": {"alter role % noinherit; grant insert on customers to $; grant $ to %", "public.customers"},
		"owns a table":                    {"create table mine (id int); alter table mine owner to %", "public.mine"},
		"writes to a view":                {"create view odd as select * from customers; grant update on odd to %", "public.odd"},
		"creates in a schema":             {"grant create on schema public to public", "schema public"},
		"owns a schema":                   {"create schema own authorization %", "schema own"},
		"creates schemas": {"do $$ begin execute format('grant create on database %I to %', current_database()); end $$",
			"database"},
		"reads files": {"grant execute on function pg_read_file(text) to $; grant $ to %", "pg_read_file"},
		"has a function of dblink": {"create extension dblink; revoke execute on all functions in schema public from public; " +
			"grant execute on function dblink_exec(text, text) to %", "dblink_exec"},
		"dblink as it is installed":    {"create extension dblink", "dblink"},
		"has the powers of a role":     {"grant pg_signal_backend to %", "pg_signal_backend"},
		"acts outside of transactions": {"select 1", "pg_terminate_backend"},
		"calls with another's rights": {"create function powerful() returns int language sql volatile security definer as 'select 1'",
			"public.powerful"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, dev)
			other := "other_" + b.Role
			pgtest.Exec(t, b.DB, "create role "+other)
			t.Cleanup(func() { pgtest.Exec(t, b.Pool, "drop role "+other) })
			t.Cleanup(func() { pgtest.Exec(t, b.DB, "drop owned by "+other); pgtest.Exec(t, b.DB, "drop owned by "+b.Role) })
			b.run(t, other, c.grant)
			found := ""
			for range 20 {
				report, err := b.TestSource(t.Context(), b.Workspace, b.source)
				found += report.Source.TestError + strings.Join(report.Source.RoleWarnings, "\n") + "\n"
				if err != nil {
					wantCode(t, err, CodeRefused)
				}
				if len(report.Source.RoleRevokes) == 0 {
					if err != nil {
						t.Fatalf("it is refused without a statement that revokes: %v", err)
					}
					break
				}
				for _, statement := range report.Source.RoleRevokes {
					pgtest.Exec(t, b.DB, statement)
				}
			}
			report, err := b.TestSource(t.Context(), b.Workspace, b.source)
			if err != nil || len(report.Source.RoleWarnings)+len(report.Source.RoleRevokes) > 0 {
				t.Errorf("left: %q, %q, %v", report.Source.RoleWarnings, report.Source.RoleRevokes, err)
			}
			if !strings.Contains(found, c.want) {
				t.Errorf("%q is not in what was found: %s", c.want, found)
			}
		})
	}
}

// run runs statements that are separated by semicolons, or one that has some inside.
func (b bundle) run(t *testing.T, other, script string) {
	t.Helper()
	statements := []string{script}
	if !strings.HasPrefix(script, "do ") {
		script = strings.ReplaceAll(script, "$", other)
		statements = strings.Split(script, ";")
	}
	for _, s := range statements {
		s = strings.ReplaceAll(s, "%I", "\x00")
		s = strings.ReplaceAll(s, "%", b.Role)
		pgtest.Exec(t, b.DB, strings.ReplaceAll(s, "\x00", "%I"))
	}
}

// TestWritingRolesThatAreAllowed has the setting that accepts them.
func TestWritingRolesThatAreAllowed(t *testing.T) {
	t.Parallel()
	o := dev
	o.AllowWriting = true
	b := setup(t, o)
	pgtest.Exec(t, b.DB, "grant insert on customers to "+b.Role)
	report, err := b.TestSource(t.Context(), b.Workspace, b.source)
	if err != nil || !slices.ContainsFunc(report.Source.RoleWarnings,
		func(w string) bool { return strings.Contains(w, "can write to public.customers") }) ||
		!slices.Contains(report.Source.RoleRevokes, "revoke insert on table public.customers from "+b.Role) {
		t.Errorf("%+v, %v", report, err)
	}
	pgtest.Exec(t, b.DB, "alter role "+b.Role+" createdb")
	if _, err := b.TestSource(t.Context(), b.Workspace, b.source); codeOf(err) != CodeRefused {
		t.Errorf("a role with powers: %v", err)
	}
}
