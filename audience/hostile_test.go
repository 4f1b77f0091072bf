package audience

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"lemma"
	"lemma/audience/sqltext"
	"lemma/pgtest"
)

// hostile are texts that a client could save as an audience. Each is refused
// with its code; "harmless" ones can be saved, and then a stream of
// them must end within its limits and leave the source unchanged.
var hostile = []struct{ name, sql, want string }{
	{"nothing", "", "query_invalid /sql"},
	{"white space", " \n\t", "query_invalid /sql"},
	{"only a comment", "-- nothing", "query_invalid /sql"},
	{"not SQL", "give me all", "query_invalid /sql"},
	{"NUL", "select 1 as id, 'x'\x00 as email", "query_invalid /sql"},
	{"too long", "select 1 as id, 'x' as email --" + strings.Repeat("x", sqltext.MaxLength), "query_invalid /sql"},
	{"insert", "insert into customers (id) values (99) returning id, email", "query_invalid /sql"},
	{"update", "update customers set email = 'x' returning id, email", "query_invalid /sql"},
	{"delete", "delete from customers returning id, email", "query_invalid /sql"},
	{"truncate", "truncate customers", "query_invalid /sql"},
	{"drop", "drop table customers", "query_invalid /sql"},
	{"create", "create table hacked (id int)", "query_invalid /sql"},
	{"create as", "create table hacked as select id, email from customers", "query_invalid /sql"},
	{"select into", "select id, email into hacked from customers", "query_invalid /sql"},
	{"data-modifying with", "with gone as (delete from customers returning id, email) select * from gone", "query_invalid /sql"},
	{"data-modifying with, nested", "select * from (with gone as (delete from customers returning id, email) select * from gone) x",
		"query_invalid /sql"},
	{"merge", "merge into customers c using customers d on c.id = d.id when matched then delete", "query_invalid /sql"},
	{"call", "call something()", "query_invalid /sql"},
	{"do", "do $$ begin delete from customers; end $$", "query_invalid /sql"},
	{"copy out", "copy customers to stdout", "query_invalid /sql"},
	{"copy to program", "copy customers to program 'touch hacked'", "query_invalid /sql"},
	{"copy from file", "copy customers from '/etc/passwd'", "query_invalid /sql"},
	{"set", "set statement_timeout = 0", "query_invalid /sql"},
	{"reset role", "reset role", "query_invalid /sql"},
	{"set role", "set role postgres", "query_invalid /sql"},
	{"begin", "begin read write", "query_invalid /sql"},
	{"commit", "commit", "query_invalid /sql"},
	{"listen", "listen everything", "query_invalid /sql"},
	{"notify", "notify everything", "query_invalid /sql"},
	{"lock", "lock table customers", "query_invalid /sql"},
	{"vacuum", "vacuum customers", "query_invalid /sql"},
	{"explain analyze", "explain analyze delete from customers", "query_invalid /sql"},
	{"prepare", "prepare x as delete from customers", "query_invalid /sql"},
	{"declare", "declare x cursor for select 1", "query_invalid /sql"},
	{"two statements", "select id, email from customers; drop table customers", "query_invalid /sql"},
	{"two selects", "select 1 as id, 'x' as email; select 2", "query_invalid /sql"},
	{"trailing semicolon", "select id, email from customers;", "query_invalid /sql"},
	{"leaves the parenthesis", "select id, email from customers) as q; drop table customers; --", "query_invalid /sql"},
	{"leaves the parenthesis into a union",
		"select id, email from customers) as q union select id, email from (select 1 as id, 'x' as email", "query_invalid /sql"},
	{"leaves it behind a comment", "select id, email from customers /* ( */ ) as audience --", "query_invalid /sql"},
	{"ends in a comment", "select id, email from customers -- ) as audience", "harmless"},
	{"ends in an open comment", "select id, email from customers /* ", "query_invalid /sql"},
	{"nested comment", "select id, email from customers /* /* */ ) as q; drop table customers -- */", "harmless"},
	{"open quote", "select id, email from customers where name = 'x", "query_invalid /sql"},
	{"open dollar quote", "select id, email, $x$ from customers", "query_invalid /sql"},
	{"semicolon in a literal", "select id, email, '; drop table customers' as x from customers", "harmless"},
	{"semicolon in a dollar quote", "select id, email, $q$; drop table customers$q$ as x from customers", "harmless"},
	{"backslash before a quote", `select id, email, '\' as x from customers`, "harmless"},
	{"escape string", `select id, email, e'\'; drop table customers --' as x from customers`, "harmless"},
	{"parameter", "select id, email from customers where id = $1", "query_invalid /sql"},
	{"for update", "select id, email from customers for update", "query_invalid /sql"},
	{"set_config", "select id, email, set_config('statement_timeout', '0', false) from customers", "query_invalid /sql"},
	{"set_config of a role", "select id, email, pg_catalog . /* x */ set_config ('role', 'postgres', false) from customers",
		"query_invalid /sql"},
	{"set_config, quoted", `select id, email, "set_config"('transaction_read_only', 'off', false) from customers`, "query_invalid /sql"},
	{"set_config, in capitals", "select id, email, SET_CONFIG('x.y', 'z', false) from customers", "query_invalid /sql"},
	{"set_config, unicode", `select id, email, U&"set\005fconfig"('x.y', 'z', false) from customers`, "query_invalid /sql"},
	{"notify function", "select id, email, pg_notify('x', 'y') from customers", "query_invalid /sql"},
	{"notify flood", "select i as id, pg_notify('x', i::text)::text as email from generate_series(1, 1000000) i", "query_invalid /sql"},
	{"advisory lock", "select id, email, pg_advisory_lock(1) from customers", "query_invalid /sql"},
	{"advisory try", "select id, email, pg_try_advisory_xact_lock(1) from customers", "query_invalid /sql"},
	{"large object", "select lo_create(0) as id, 'x' as email", "query_invalid /sql"},
	{"large object from bytes", "select lo_from_bytea(0, 'x') as id, 'x' as email", "query_invalid /sql"},
	{"file", "select 1 as id, pg_read_file('/etc/passwd') as email", "query_invalid /sql"},
	{"file, binary", "select 1 as id, pg_read_binary_file('/etc/passwd')::text as email", "query_invalid /sql"},
	{"directory", "select 1 as id, pg_ls_dir('/') as email", "query_invalid /sql"},
	{"import", "select lo_import('/etc/passwd') as id, 'x' as email", "query_invalid /sql"},
	{"SQL in a text", "select 1 as id, query_to_xml('select pg_notify(''a'', ''b'')', true, true, '')::text as email",
		"query_invalid /sql"},
	{"SQL in a text search", "select 1 as id, word as email from ts_stat('select to_tsvector(email) from customers')",
		"query_invalid /sql"},
	{"another database", "select * from dblink('host=127.0.0.1', 'select 1, 2') as t (id int, email text)", "query_invalid /sql"},
	{"ends a backend", "select pg_terminate_backend(pid) as id, 'x' as email from pg_stat_activity", "query_invalid /sql"},
	{"the passwords", "select rolname as id, rolpassword as email from pg_authid", "query_invalid /sql"},
	{"another's table", "select id::text as id, secret as email from private", "query_invalid /sql"},
	{"a function that writes", "select add_customer() as id, 'x' as email", "harmless"},
	{"a function that loops", "select loop_forever() as id, 'x' as email", "harmless"},
	{"a constant that loops", "select loop_constant() as id, 'x' as email", "source_timeout"},
	{"sleep", "select 1 as id, pg_sleep(1000)::text as email", "harmless"},
	{"sleep for each", "select id, email from customers where pg_sleep(1000) is null", "harmless"},
	{"generate_series bomb", "select count(*) as id, 'x' as email from generate_series(1, 1e12::bigint)", "harmless"},
	{"cross join bomb",
		"select count(*) as id, max(a.email) as email from customers a, customers b, customers c, customers d, " +
			"customers e, customers f, customers g, customers h", "harmless"},
	{"temp-file bomb", "select i as id, repeat('x', 1000) as email from generate_series(1, 1e12::bigint) i order by random()", "harmless"},
	{"endless recursion",
		"with recursive r as (select 1::bigint as id union all select id + 1 from r) select id, 'x@example.com' as email from r",
		"harmless"},
	{"memory bomb", "select 1 as id, repeat('x', 500000000) as email", "harmless"},
	{"deep parentheses", "select 1 as id, 'x' as email, " + strings.Repeat("(", 10000) + "1" + strings.Repeat(")", 10000) + " as x",
		"query_invalid /sql"},
	{"sequence", "select nextval('counter') as id, 'x' as email", "query_invalid /sql"},
	{"two columns of one name", "select id, email, name, name from customers", "query_invalid /sql"},
	{"no key column", "select id as other, email from customers", "query_invalid /key_column"},
	{"no email column", "select id, name from customers", "query_invalid /email_column"},
	{"key of a type that does not fit", "select joined as id, email from customers", "query_invalid /key_column"},
	{"email of a type that does not fit", "select id, 5 as email from customers", "query_invalid /email_column"},
	{"values", "values (1, 'x')", "query_invalid /key_column"},
	{"show", "show all", "query_invalid /sql"},
}

// makeHostile creates what hostile queries name: a table that may not be read, and
// functions that write or do not end.
func (b bundle) makeHostile() {
	b.T.Helper()
	b.ExecDB(`
create table private (id int, secret text); insert into private values (1, 'canary');
create table log (at timestamptz);
create sequence counter; grant usage on sequence counter to ` + b.Role + `;
create function add_customer() returns int language sql volatile security definer as 'insert into log values (now()); select 1';
create function loop_forever() returns int language plpgsql volatile as 'begin loop end loop; return 1; end';
create function loop_constant() returns int language plpgsql immutable as 'begin loop end loop; return 1; end'`)
}

func TestHostileQueries(t *testing.T) {
	t.Parallel()
	o := dev
	o.MaxRows = 50_000
	b := setup(t, o)
	b.makeHostile()
	o.QueryTimeout, o.FetchTimeout, o.RunTimeout = 2*time.Second, time.Second, 3*time.Second
	short := b.with(o)
	for _, q := range hostile {
		t.Run(q.name, func(t *testing.T) {
			b := b // a refusal of a text is an answer, for which a busy machine may need time
			if !strings.HasPrefix(q.want, "query_invalid") {
				b = short
			}
			x, err := b.Create(t.Context(), b.Workspace,
				NewAudience{ID: lemma.NewID(), DataSourceID: b.source, Name: q.name, SQL: q.sql, KeyColumn: "id", EmailColumn: "email"})
			if q.want != "harmless" {
				wantCode(t, err, q.want)
				return
			}
			if strings.HasPrefix(codeOf(err), "source_") { // it was bounded while it was planned
				return
			}
			if err != nil {
				t.Fatalf("refused: %v", err)
			}
			started := time.Now()
			_, err = b.Stream(t.Context(), b.Workspace, x.ID, nil, func(r Row) error { return nil })
			if d := time.Since(started); d > 40*time.Second {
				t.Errorf("took %s: %v", d, err)
			}
			if code := codeOf(err); err != nil && !strings.HasPrefix(code, "source_") && code != "query_invalid /sql" {
				t.Errorf("ended as %q: %v", code, err)
			}
		})
	}
	short.Close()
	b.isUnharmed(t)
}

// isUnharmed checks that the shop is unchanged and that no session is left.
func (b bundle) isUnharmed(t *testing.T) {
	t.Helper()
	var customers, logged, tables, objects, locks int
	err := b.DB.QueryRow(t.Context(), `
select (select count(*) from customers where email like 'person%'), (select count(*) from log),
       (select count(*) from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace),
       (select count(*) from pg_largeobject_metadata),
       (select count(*) from pg_locks
where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database()))`).
		Scan(&customers, &logged, &tables, &objects, &locks)
	if err != nil || customers != 20 || logged != 0 || tables != 3 || objects != 0 || locks != 0 {
		t.Errorf("%d customers, %d logged, %d tables, %d large objects, %d locks, %v", customers, logged, tables, objects, locks, err)
	}
	b.waitForNoSessions(t)
}

// waitForNoSessions waits until no session of the role is left.
func (b bundle) waitForNoSessions(t *testing.T) {
	t.Helper()
	pgtest.Eventually(t, 10*time.Second, "no session is left at the source", func() bool {
		return pgtest.One[int](t, b.DB, "select count(*) from pg_stat_activity where usename = $1", b.Role) == 0
	})
}

// cancelled returns the error of work that is cancelled while its statement sleeps.
func (b bundle) cancelled(t *testing.T, work func(context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- work(ctx) }()
	pgtest.Eventually(t, 20*time.Second, "the statement sleeps", func() bool {
		return pgtest.One[int](t, b.DB, "select count(*) from pg_stat_activity where usename = $1 and wait_event = 'PgSleep'", b.Role) > 0
	})
	cancel()
	return <-ended
}

// TestSourceAloneIsProtected runs without the list of denied functions:
// the transaction and the role are the protection.
func TestSourceAloneIsProtected(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	for _, sql := range []string{
		"with gone as (delete from customers returning id, email) select * from gone",
		"select id, email from customers; drop table customers",
		"select id, email from customers) as q; drop table customers; --",
		"select id, email from customers for update",
		"select 1 as id, pg_read_file('/etc/passwd') as email",
	} {
		source, err := b.opened(t.Context(), b.Workspace, b.source)
		b.Must(err)
		err = b.within(t.Context(), source, b.readSpan(), func(r *run) error {
			if _, err := r.describe(r.ctx, sql); err != nil {
				return err
			}
			c, err := r.open(r.ctx, sql, []string{"id"}, 0)
			if err != nil {
				return err
			}
			_, err = c.next(make([][]byte, 1))
			return err
		})
		if got := codeOf(err); got != "query_invalid /sql" {
			t.Errorf("%s: %q, %v", sql, got, err)
		}
	}
}

func TestFaultsHaveAPlace(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	for sql, want := range map[string][2]int{
		"select id,\n  email\nform customers where":                 {3, 6},
		"select id, email,\n  ä, nothing from customers":            {2, 3},
		"select id, email from customers\n;":                        {2, 1},
		"select id, email,\n 'ü', pg_notify('a') from x":            {2, 16},
		"select id, email from customers where (id = 1":             {0, 0},
		"select 1 as id, 'x' as email,\n (select 1 from nowhere) x": {2, 17},
	} {
		_, err := b.validate(t, sql)
		e, ok := err.(*lemma.Error)
		if !ok || len(e.Fields) != 1 {
			t.Errorf("%s: %v", sql, err)
			continue
		}
		if f := e.Fields[0]; want != [2]int{} && [2]int{f.Line, f.Column} != want {
			t.Errorf("%s: line %d column %d, want %v (%s)", sql, f.Line, f.Column, want, f.Detail)
		}
	}
}

func TestValidateDescribes(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	pgtest.Exec(t, b.DB, "create type colour as enum ('red'); alter table customers add column colour colour")
	r, err := b.validate(t, "select *, now() at time zone 'utc' as local, 1.5::real as r, 'a'::bytea as raw from customers")
	b.Must(err)
	want := "id integer, email text, name text, opted_out boolean, joined timestamp, birthday date, " +
		"balance number, score number, meta json, tag other, colour text, local timestamp, r number, raw other"
	var got []string
	for _, c := range r.Columns {
		got = append(got, c.Name+" "+string(c.Type))
	}
	if strings.Join(got, ", ") != want {
		t.Errorf("columns %s", strings.Join(got, ", "))
	}
	if r.EstimatedRows == nil || *r.EstimatedRows < 1 || len(r.Warnings) != 0 {
		t.Errorf("%d rows, warnings %q", r.EstimatedRows, r.Warnings)
	}
}

// A plan may be longer than a row may be.
func TestALongPlanIsEstimated(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	pgtest.Exec(t, b.DB, "insert into customers (id) select generate_series(10000, 60000); analyze customers")
	sql := "select id, email from customers where id = 0"
	for i := range 4_000 {
		sql += fmt.Sprintf(" or id = %d", i+1)
	}
	r, err := b.validate(t, sql)
	b.Must(err)
	if r.EstimatedRows == nil || *r.EstimatedRows < 1 {
		t.Errorf("%v rows", r.EstimatedRows)
	}
}

// TestSessionIsBoundedByTheSourceToo reads the settings at the source, since
// Lemma's timers would hide it if they were missing.
func TestSessionIsBoundedByTheSourceToo(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x := b.addAudience(t, `select 1 as id, concat_ws(' ', current_setting('statement_timeout'), current_setting('lock_timeout'),
 current_setting('idle_in_transaction_session_timeout'), current_setting('transaction_read_only'), current_setting('transaction_isolation'),
 current_setting('TimeZone'), current_setting('application_name')) as email`)
	rows, err := b.collect(t, x.ID)
	if err != nil || len(rows) != 1 || rows[0].Email != "54s 54s 10min on repeatable read UTC lemma" {
		t.Errorf("%+v, %v", rows, err)
	}
}
