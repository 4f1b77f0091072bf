package sqltext

import (
	"strings"
	"testing"
)

// TestTextIsCheckedBeforeTheSourceGetsIt tests the first of three protections;
// the others are the source's parser and the read-only transaction.
func TestTextIsCheckedBeforeTheSourceGetsIt(t *testing.T) {
	for _, c := range []struct{ kind, sql, want string }{
		{Postgres, "select ';' as a, $$;$$ as b, $x$;$x$ as c, e'\\';' as d, \";\" /* ; */ from t -- ;", "fine"},
		{Postgres, "select 1; select 2", "refused"},
		{Postgres, "select '\\'; drop table t --'", "refused"},
		{Postgres, "select e'\\\\'; drop table t --'", "refused"},
		{Postgres, "select $a$ $b$; $a$", "fine"},
		{Postgres, "select $a$ $b$ $a$;", "refused"},
		{Postgres, "select a$b$c from t; select $b$", "refused"},
		{Postgres, "select 1 /* /* */ ; */", "fine"},
		{Postgres, "select 1 /* /* */ */ ;", "refused"},
		{Postgres, "select 1) as x, (select 2", "refused"},
		{Postgres, "select (1", "refused"},
		{Postgres, "select (1))", "refused"},
		{Postgres, "select pg_notify /* x */ -- y\n ('a', 'b')", "refused"},
		{Postgres, "select \"pg_notify\"('a', 'b')", "refused"},
		{Postgres, "select Lo_Unlink(1)", "refused"},
		{Postgres, "select U&\"pg\\005fnotify\"('a')", "refused"},
		{Postgres, "select pg_notify as column_name, 'pg_notify(' as text from t", "fine"},
		{Postgres, "select lower(a), count(*), coalesce(b, now()) from t where c in (1, 2)", "fine"},
		{Postgres, "select 1 from t for update", "refused"},
		{Postgres, "select substring(a for 3) from t", "fine"},
		{Postgres, "select pg_notify\f('a', 'b')", "refused"},
		{Postgres, "select pg_notify\v('a', 'b')", "refused"},
		{Postgres, "select 1 -- x\r, pg_notify('a', 'b')", "refused"},
		{Postgres, "select 1 -- x\r as a", "fine"},
		{Postgres, "select e'a'\n'\\', pg_notify($$a$$, $$b$$), '", "refused"},
		{Postgres, "select e'a' -- x\n '\\', pg_notify($$a$$, $$b$$), '", "refused"},
		{Postgres, "select e'a'\n'\\'', pg_notify($$a$$, $$b$$) --'", "refused"},
		{Postgres, "select e'a' as x, 'b\\' as y from t", "fine"},
		{Postgres, "select 'a'\n'b\\' as x", "fine"},
		{Postgres, "select 1$a$ ' $a$, pg_notify('a', 'b') --'", "refused"},
		{Postgres, "select 1e'\\', pg_notify($$a$$, $$b$$), e'", "fine"}, // one literal: its text is not called
		{Postgres, "select 1e5, 0x1f, 1_000, 1.5e-3 from t", "fine"},
		{MySQL, "select load_file\v('/etc/passwd')", "refused"},
		{MySQL, "select `LOAD_FILE`('/etc/passwd')", "refused"},
		{MySQL, "select gr\u00f6\u00dfe(a) from t", "fine"},
		{MySQL, "select 1 into\foutfile 'x'", "refused"},
		{MySQL, "select 1 for\vupdate", "refused"},
		{MySQL, "select 1 # x\r, load_file('a')\n from t", "fine"}, // all of it is a comment
		{MySQL, "select ';', \";\", `;` /* ; */ from t # ;", "fine"},
		{MySQL, "select '\\'; drop table t -- '", "fine"},
		{MySQL, "select '\\\\'; drop table t -- '", "refused"},
		{MySQL, "select 1 /* /* */ ; */", "refused"},
		{MySQL, "select 1 /*!; drop table t */", "refused"},
		{MySQL, "select 1 /*M!50101 ; drop table t */", "refused"},
		{MySQL, "select /*+ SET_VAR(max_execution_time=0) */ 1", "refused"},
		{MySQL, "select 5--1 from t --; x\n -- ; y\n --\n --", "refused"},
		{MySQL, "select 5--1 from t -- ; y\n --\t;\n --", "fine"},
		{MySQL, "select 5--1) as x, (select 2", "refused"},
		{MySQL, "select `load_file` ('/etc/passwd')", "refused"},
		{MySQL, "select 1 into outfile 'x'", "refused"},
		{MySQL, "select 1 into/**/dumpfile 'x'", "refused"},
	} {
		if fault := Check(c.kind, c.sql); (fault == nil) != (c.want == "fine") {
			t.Errorf("%s %s: %v", c.kind, c.sql, fault)
		}
	}
}

func TestStatementsForAdministrators(t *testing.T) {
	for text, want := range map[string]string{
		"revoke insert on table public.t from r":     "revoke insert on table public.t from r",
		`revoke insert on table "odd name" from "R"`: `revoke insert on table "odd name" from "R"`,
		"revoke insert on `shop\\_2`.* from `r`@`%`": "revoke insert on `shop\\_2`.* from `r`@`%`",
		"revoke insert on t from r\n":                "revoke insert on t from r ",
		"grant all on t to public":                   "", "drop owned by app": "",
		"alter table t owner to app": "alter table t owner to app", `alter role "odd name" superuser`: "",
		`alter role "odd name" nosuperuser nocreaterole`:   `alter role "odd name" nosuperuser nocreaterole`,
		`revoke insert on t from r \! touch x`:             "",
		`revoke insert on t from r\`:                       "",
		"revoke insert on t from r; drop table t":          "",
		"revoke insert on t from r -- x":                   "",
		"revoke insert on t from r /* x":                   "",
		"revoke insert on t from r\n\\! touch x":           "",
		"revoke " + strings.Repeat("x", maxMessage+1):      "",
		"revoke a " + strings.Repeat("\xff", 8*maxMessage): "", // invalid bytes become one character
	} {
		if got := Statement(text); got != want {
			t.Errorf("%q: %q instead of %q", text, got, want)
		}
	}
}
