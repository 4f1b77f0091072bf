package audience

import "testing"

// TestTextIsCheckedBeforeTheSourceGetsIt tests the first of three protections;
// the others are the source's parser and the read-only transaction.
func TestTextIsCheckedBeforeTheSourceGetsIt(t *testing.T) {
	for _, c := range []struct{ kind, sql, want string }{
		{Postgres, "select ';' as a, $$;$$ as b, $x$;$x$ as c, e'\\';' as d, \";\" /* ; */ from t -- ;", "fine"},
		{Postgres, "select 1; select 2", "query_invalid /sql"},
		{Postgres, "select '\\'; drop table t --'", "query_invalid /sql"},
		{Postgres, "select e'\\\\'; drop table t --'", "query_invalid /sql"},
		{Postgres, "select $a$ $b$; $a$", "fine"},
		{Postgres, "select $a$ $b$ $a$;", "query_invalid /sql"},
		{Postgres, "select a$b$c from t; select $b$", "query_invalid /sql"},
		{Postgres, "select 1 /* /* */ ; */", "fine"},
		{Postgres, "select 1 /* /* */ */ ;", "query_invalid /sql"},
		{Postgres, "select 1) as x, (select 2", "query_invalid /sql"},
		{Postgres, "select (1", "query_invalid /sql"},
		{Postgres, "select (1))", "query_invalid /sql"},
		{Postgres, "select pg_notify /* x */ -- y\n ('a', 'b')", "query_invalid /sql"},
		{Postgres, "select \"pg_notify\"('a', 'b')", "query_invalid /sql"},
		{Postgres, "select Lo_Unlink(1)", "query_invalid /sql"},
		{Postgres, "select U&\"pg\\005fnotify\"('a')", "query_invalid /sql"},
		{Postgres, "select pg_notify as column_name, 'pg_notify(' as text from t", "fine"},
		{Postgres, "select lower(a), count(*), coalesce(b, now()) from t where c in (1, 2)", "fine"},
		{Postgres, "select 1 from t for update", "query_invalid /sql"},
		{Postgres, "select substring(a for 3) from t", "fine"},
		{Postgres, "select pg_notify\f('a', 'b')", "query_invalid /sql"},
		{Postgres, "select pg_notify\v('a', 'b')", "query_invalid /sql"},
		{Postgres, "select 1 -- x\r, pg_notify('a', 'b')", "query_invalid /sql"},
		{Postgres, "select 1 -- x\r as a", "fine"},
		{Postgres, "select e'a'\n'\\', pg_notify($$a$$, $$b$$), '", "query_invalid /sql"},
		{Postgres, "select e'a' -- x\n '\\', pg_notify($$a$$, $$b$$), '", "query_invalid /sql"},
		{Postgres, "select e'a'\n'\\'', pg_notify($$a$$, $$b$$) --'", "query_invalid /sql"},
		{Postgres, "select e'a' as x, 'b\\' as y from t", "fine"},
		{Postgres, "select 'a'\n'b\\' as x", "fine"},
		{Postgres, "select 1$a$ ' $a$, pg_notify('a', 'b') --'", "query_invalid /sql"},
		{Postgres, "select 1e'\\', pg_notify($$a$$, $$b$$), e'", "fine"}, // one literal: its text is not called
		{Postgres, "select 1e5, 0x1f, 1_000, 1.5e-3 from t", "fine"},
		{MySQL, "select load_file\v('/etc/passwd')", "query_invalid /sql"},
		{MySQL, "select `LOAD_FILE`('/etc/passwd')", "query_invalid /sql"},
		{MySQL, "select gr\u00f6\u00dfe(a) from t", "fine"},
		{MySQL, "select 1 into\foutfile 'x'", "query_invalid /sql"},
		{MySQL, "select 1 for\vupdate", "query_invalid /sql"},
		{MySQL, "select 1 # x\r, load_file('a')\n from t", "fine"}, // all of it is a comment
		{MySQL, "select ';', \";\", `;` /* ; */ from t # ;", "fine"},
		{MySQL, "select '\\'; drop table t -- '", "fine"},
		{MySQL, "select '\\\\'; drop table t -- '", "query_invalid /sql"},
		{MySQL, "select 1 /* /* */ ; */", "query_invalid /sql"},
		{MySQL, "select 1 /*!; drop table t */", "query_invalid /sql"},
		{MySQL, "select 1 /*M!50101 ; drop table t */", "query_invalid /sql"},
		{MySQL, "select /*+ SET_VAR(max_execution_time=0) */ 1", "query_invalid /sql"},
		{MySQL, "select 5--1 from t --; x\n -- ; y\n --\n --", "query_invalid /sql"},
		{MySQL, "select 5--1 from t -- ; y\n --\t;\n --", "fine"},
		{MySQL, "select 5--1) as x, (select 2", "query_invalid /sql"},
		{MySQL, "select `load_file` ('/etc/passwd')", "query_invalid /sql"},
		{MySQL, "select 1 into outfile 'x'", "query_invalid /sql"},
		{MySQL, "select 1 into/**/dumpfile 'x'", "query_invalid /sql"},
	} {
		if got := codeOf(checkText(c.kind, c.sql)); got != c.want {
			t.Errorf("%s %s: %s", c.kind, c.sql, got)
		}
	}
}

func TestValuesAreAlwaysJSON(t *testing.T) {
	for _, c := range []struct {
		t          Type
		text, want string
	}{
		{Integer, "-12", "-12"}, {Integer, "007", `"007"`}, {Integer, "", `""`}, {Integer, "1,\"x\":2", `"1,\"x\":2"`},
		{Integer, "-", `"-"`},
		{Number, "1.50", "1.50"}, {Number, "1e+06", "1e+06"}, {Number, "1.", `"1."`}, {Number, "1e", `"1e"`}, {Number, ".5", `".5"`},
		{Number, "NaN", "null"},
		{Boolean, "t", "true"}, {Boolean, "f", "false"}, {Boolean, "0", "false"}, {Boolean, "1", "true"}, {Boolean, "", "false"},
		{Timestamp, "2026-01-02 03:04:05", `"2026-01-02T03:04:05Z"`},
		{Timestamp, "2026-01-02 03:04:05.120+00", `"2026-01-02T03:04:05.120Z"`},
		{Timestamp, "2026-01-02 03:04:05+05:30", `"2026-01-02T03:04:05+05:30"`},
		{Timestamp, "2026-01-02 03:04:05-07", `"2026-01-02T03:04:05-07:00"`},
		{Timestamp, "10000-01-02 03:04:05+00", `"10000-01-02 03:04:05+00"`}, {Timestamp, "infinity", `"infinity"`},
		{Timestamp, "0000-00-00 00:00:00", "null"},
		{Timestamp, `2026-01-02 03:04:05","x":"y`, `"2026-01-02 03:04:05\",\"x\":\"y"`}, {Date, "2026-01-02", `"2026-01-02"`},
		{Date, "0000-00-00", "null"},
		{JSON, `{"a":[1]}`, `{"a":[1]}`}, {JSON, `{"a":`, `"{\"a\":"`}, {JSON, `1} , "x": {`, `"1} , \"x\": {"`},
		{Text, "a\x00b\xff\x1f\"\\", "\"a\uFFFDb\uFFFD\\u001f\\\"\\\\\""}, {Text, "</script>\u2028", "\"</script>\u2028\""},
		{Other, "{1,2}", `"{1,2}"`},
	} {
		if got := string(appendValue(nil, c.t, []byte(c.text))); got != c.want {
			t.Errorf("%s %q: %s, want %s", c.t, c.text, got, c.want)
		}
	}
	if got := string(appendValue(nil, Text, nil)); got != "null" {
		t.Errorf("null: %s", got)
	}
}
