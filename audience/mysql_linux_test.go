package audience

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/audience/value"
	"lemma/pgtest"
)

func TestMySQLStreamGivesTypedPayloads(t *testing.T) {
	t.Parallel()
	b, _ := mariadbShop(t, dev)
	x, err := b.Create(t.Context(), b.Workspace,
		NewAudience{ID: lemma.NewID(), DataSourceID: b.source, Name: "all", SQL: "select * from customers order by id # all",
			KeyColumn: "id", EmailColumn: "email", OptedOutColumn: "opted_out"})
	if err != nil {
		t.Fatal(err)
	}
	rows, err := b.collect(t, x.ID, "name", "opted_out", "joined", "seen", "birthday", "balance", "score", "ratio", "meta", "raw", "y",
		"id")
	if err != nil || len(rows) != 20 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	if want := (Row{Key: "10", Email: "person10@example.com", OptedOut: true, Payload: "{}"}); rows[1] != want ||
		rows[4].Key != "1" {
		t.Errorf("%+v, want the rows that are opted out first", rows[:5])
	}
	want := Row{Key: "6", Email: "person6@example.com",
		Payload: `{"name":"Bjørn \"6\"","opted_out":0,"joined":"2026-01-02T03:04:05.678Z","seen":"2026-01-02T03:04:05Z",` +
			`"birthday":"1990-05-06","balance":6.50,"score":1.5,"ratio":0.1,"meta":"{\"n\": 1}","raw":"hi","y":2026,"id":6}`}
	if diff := cmp.Diff(want, rows[8]); diff != "" {
		t.Error(diff)
	}
	counts, err := b.Audiences.Count(t.Context(), b.Workspace, x.ID, "")
	if err != nil || counts.Sendable != 16 || counts.Unsubscribed != 4 {
		t.Errorf("%+v, %v", counts, err)
	}
	p, err := b.Preview(t.Context(), b.Workspace, x.ID, 3)
	if err != nil || len(p.Rows) != 3 || len(p.Columns) != 14 {
		t.Errorf("%+v, %v", p, err)
	}
	report, err := b.TestSource(t.Context(), b.Workspace, b.source)
	if err != nil || report.Source.Status != "ok" || !strings.HasPrefix(report.Version, "MariaDB ") {
		t.Errorf("%+v, %v", report, err)
	}
	schema, err := b.Schema(t.Context(), b.Workspace, b.source)
	if err != nil || len(schema.Tables) != 1 || schema.Tables[0].Columns[0] != (TableColumn{"id", value.Integer, false}) {
		t.Errorf("%+v, %v", schema, err)
	}
}

func TestMySQLHostileQueries(t *testing.T) {
	t.Parallel()
	o := dev
	o.QueryTimeout, o.FetchTimeout, o.RunTimeout, o.MaxRows = 2*time.Second, time.Second, 2*time.Second, 50_000
	b, s := mariadbShop(t, o)
	for _, q := range []struct{ name, sql, want string }{
		{"not SQL", "give me all", "query_invalid /sql"},
		{"insert", "insert into customers (id) values (99)", "query_invalid /sql"},
		{"insert returning", "insert into customers (id) values (99) returning id, email", "query_invalid /sql"},
		{"delete returning", "delete from customers returning id, email", "query_invalid /sql"},
		{"replace", "replace into customers (id) values (99) returning id, email", "query_invalid /sql"},
		{"drop", "drop table customers", "query_invalid /sql"},
		{"two statements", "select id, email from customers; drop table customers", "query_invalid /sql"},
		{"leaves the parenthesis", "select id, email from customers) as q; drop table customers; -- ", "query_invalid /sql"},
		{"leaves it with a hash", "select id, email from customers) as audience #", "query_invalid /sql"},
		{"leaves it into a union", "select id, email from customers) as q union select id, email from (select 1 as id, 'x' as email",
			"query_invalid /sql"},
		{"executed comment", "select id, email from customers /*! ) as q; drop table customers */", "query_invalid /sql"},
		{"executed comment of MariaDB", "select id, email from customers /*M! into outfile 'x' */", "query_invalid /sql"},
		{"outfile", "select id, email from customers into outfile 'hacked'", "query_invalid /sql"},
		{"outfile behind a comment", "select id, email into /**/ outfile 'hacked' from customers", "query_invalid /sql"},
		{"dumpfile", "select id, email from customers into dumpfile 'hacked'", "query_invalid /sql"},
		{"into variables", "select id, email from customers limit 1 into @a, @b", "query_invalid /sql"},
		{"load data", "load data local infile '/etc/passwd' into table customers", "query_invalid /sql"},
		{"load file", "select 1 as id, load_file('/etc/passwd') as email", "query_invalid /sql"},
		{"load file, quoted", "select 1 as id, `load_file`('/etc/passwd') as email", "query_invalid /sql"},
		{"lock", "select 1 as id, get_lock('x', 1) as email", "query_invalid /sql"},
		{"benchmark", "select 1 as id, benchmark(1e12, md5('x')) as email", "query_invalid /sql"},
		{"for update", "select id, email from customers for update", "query_invalid /sql"},
		{"share lock", "select id, email from customers lock in share mode", "query_invalid /sql"},
		{"parameter", "select id, email from customers where id = ?", "query_invalid /sql"},
		{"show", "show grants", "query_invalid /sql"},
		{"set", "set session transaction read write", "query_invalid /sql"},
		{"handler", "handler customers open", "query_invalid /sql"},
		{"the passwords", "select user as id, password as email from mysql.user", "query_invalid /sql"},
		{"two columns of one name", "select id, email, name, name from customers", "query_invalid /sql"},
		{"ends in a comment", "select id, email from customers -- ) as audience", "harmless"},
		{"semicolon in a literal", `select id, email, '; \'drop' as x, "; drop" as y from customers`, "harmless"},
		{"sleep", "select id, email from customers where sleep(1000) = 0", "harmless"},
		{"cross join bomb",
			"select count(*) as id, max(a.email) as email from customers a, customers b, customers c, customers d, " +
				"customers e, customers f, customers g, customers h", "harmless"},
		{"a function that writes", "select 1 as id, hacked() as email", "query_invalid /sql"},
	} {
		if q.name == "a function that writes" {
			s.exec(t, "create or replace table shop_log.log (at timestamp)",
				"create or replace function shop.hacked() returns int deterministic sql security definer "+
					"begin insert into shop_log.log values (now()); return 1; end",
				"grant execute on shop.* to "+b.DSN[len("mysql://"):strings.LastIndex(b.DSN, ":pw@")]+"@'127.0.0.1'")
		}
		t.Run(q.name, func(t *testing.T) {
			x, err := b.Create(t.Context(), b.Workspace,
				NewAudience{ID: lemma.NewID(), DataSourceID: b.source, Name: q.name, SQL: q.sql, KeyColumn: "id", EmailColumn: "email"})
			if q.want != "harmless" {
				wantCode(t, err, q.want)
				return
			}
			if err != nil {
				t.Fatalf("refused: %v", err)
			}
			started := time.Now()
			_, err = b.Stream(t.Context(), b.Workspace, x.ID, nil, func(Row) error { return nil })
			if d := time.Since(started); d > 40*time.Second {
				t.Errorf("took %s: %v", d, err)
			}
			if code := codeOf(err); err != nil && !strings.HasPrefix(code, "source_") && code != "query_invalid /sql" {
				t.Errorf("ended as %q: %v", code, err)
			}
		})
	}
	if n := s.count(t, "select count(*) from shop.customers"); n != 20 {
		t.Errorf("%d customers", n)
	}
	if n := s.count(t, "select count(*) from shop_log.log"); n != 0 {
		t.Errorf("%d lines were written by a function", n)
	}
}

func TestMySQLFaultsHaveALine(t *testing.T) {
	t.Parallel()
	b, _ := mariadbShop(t, dev)
	_, err := b.validate(t, "select id, email\nform customers where")
	if e, ok := err.(*lemma.Error); !ok || len(e.Fields) != 1 || e.Fields[0].Line != 2 {
		t.Errorf("%v", err)
	}
}

func TestMySQLRoles(t *testing.T) {
	t.Parallel()
	b, s := mariadbShop(t, dev)
	s.exec(t, "create or replace role files", "grant file on *.* to files", "create or replace role readers",
		"grant select on shop.* to readers")
	for i, c := range []struct {
		name     string
		grants   []string
		want     string
		warnings int
	}{
		{"select only", []string{"grant select on shop.* to $"}, "fine", 0},
		{"select on some columns", []string{"grant select (id, email) on shop.customers to $"}, "fine", 0},
		{"select on everything", []string{"grant select, show databases, show view on *.* to $"}, "fine", 0},
		{"may write", []string{"grant select, insert on shop.* to $"}, CodeRefused, 0},
		{"owns the database", []string{"grant all on shop.* to $"}, CodeRefused, 0},
		{"everything", []string{"grant all on *.* to $"}, CodeRefused, 0},
		{"super", []string{"grant super on *.* to $", "grant select on shop.* to $"}, CodeRefused, 0},
		{"files", []string{"grant file on *.* to $", "grant select on shop.* to $"}, CodeRefused, 0},
		{"processes", []string{"grant process on *.* to $", "grant select on shop.* to $"}, CodeRefused, 0},
		{"may grant", []string{"grant select on shop.* to $ with grant option"}, CodeRefused, 0},
		{"system tables", []string{"grant select on mysql.* to $", "grant select on shop.* to $"}, CodeRefused, 0},
		{"a role that only selects", []string{"grant readers to $", "grant select on shop.* to $"}, "fine", 0},
		{"a role with files", []string{"grant files to $", "grant select on shop.* to $"}, CodeRefused, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := b.addSource(t, MySQL, s.login(t, fmt.Sprintf("probe%d", i), c.grants...))
			report, err := b.TestSource(t.Context(), b.Workspace, id)
			wantCode(t, err, c.want)
			if err == nil && len(report.Source.RoleWarnings) != c.warnings {
				t.Errorf("warnings %q", report.Source.RoleWarnings)
			}
			if err != nil && report.Source.Status != "failed" {
				t.Errorf("stored as %+v", report.Source)
			}
			if strings.HasPrefix(c.name, "may write") || strings.HasPrefix(c.name, "owns") {
				s.exec(t, report.Source.RoleRevokes...)
				_, err := b.TestSource(t.Context(), b.Workspace, id)
				if c.name == "owns the database" {
					wantCode(t, err, CodeRefused) // nothing is left that could be read
				} else {
					wantCode(t, err, "fine")
				}
			}
		})
	}
	id := b.addSource(t, MySQL, s.dsn("unknown", "canary"))
	report, err := b.TestSource(t.Context(), b.Workspace, id)
	wantCode(t, err, CodeRefused)
	if strings.Contains(report.Source.TestError, "canary") || strings.Contains(report.Source.TestError, "127.0.0.1") {
		t.Errorf("the error shows too much: %s", report.Source.TestError)
	}
}

// TestMySQLOverTLS begins TLS below the driver: what it logs in with must be
// what it would have been.
func TestMySQLOverTLS(t *testing.T) {
	t.Parallel()
	b, s := mariadbShop(t, dev)
	s.exec(t, "create or replace user tls_only@'127.0.0.1' identified by 'pw' require ssl",
		"grant select on shop.* to tls_only@'127.0.0.1'")
	for parameter, want := range map[string]string{"": "fine", "?tls=preferred": "fine", "?tls=skip-verify": "fine",
		"?tls=true": CodeUnavailable, "?tls=false": CodeRefused} {
		id := b.addSource(t, MySQL, s.dsn("tls_only", "pw")+parameter)
		report, err := b.TestSource(t.Context(), b.Workspace, id)
		wantCode(t, err, want)
		if len(report.Source.RoleWarnings) > 0 {
			t.Errorf("%s: %q", parameter, report.Source.RoleWarnings)
		}
	}
	report, err := b.TestSource(t.Context(), b.Workspace, b.addSource(t, MySQL, b.DSN+"?tls=false"))
	if err != nil || len(report.Source.RoleWarnings) != 1 {
		t.Errorf("without TLS: %q, %v", report.Source.RoleWarnings, err)
	}
}

func TestParseGrant(t *testing.T) {
	for line, want := range map[string]string{
		"GRANT USAGE ON *.* TO `a`@`%`":                                                            " false",
		"GRANT SELECT (`id`, `email`), INSERT ON `shop`.`customers` TO `a`@`%`":                    " true",
		"GRANT ALL PRIVILEGES ON `shop`.* TO `a`@`%`":                                              " true",
		"GRANT ALL PRIVILEGES ON *.* TO `a`@`%` WITH GRANT OPTION":                                 "has all privileges on *.* false",
		"GRANT BACKUP_ADMIN,BINLOG_ADMIN ON *.* TO `a`@`%`":                                        "has backup_admin on *.* false",
		"GRANT PROXY ON ``@`` TO `root`@`localhost` WITH GRANT OPTION":                             "may act as another user false",
		"GRANT SELECT ON `shop`.* TO `a`@`%` IDENTIFIED BY PASSWORD '*AB' WITH GRANT OPTION":       "may grant to others false",
		"GRANT EXECUTE ON FUNCTION `shop`.`f` TO `a`@`%`":                                          " false",
		"GRANT `readers`@`%`,`files`@`%` TO `a`@`%`":                                               "role `readers`@`%`,`files`@`%`",
		"GRANT SELECT ON *.* TO `a`@`%` REQUIRE SSL":                                               " false",
		"GRANT SELECT ON *.* TO `a`@`%` IDENTIFIED BY PASSWORD '*A' REQUIRE SSL WITH GRANT OPTION": "may grant to others false",

		"GRANT SELECT ON `mysql`.`user` TO `a`@`%`": "has privileges on the system tables false",
	} {
		g := parseGrant(line)
		power, writes := g.assess()
		got := fmt.Sprint(power, " ", writes)
		if g.role != "" {
			got = "role " + g.role
		}
		if got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

func BenchmarkMySQLStream(bench *testing.B) {
	b, s := mariadbShop(bench, dev)
	s.exec(bench, `
create or replace table shop.people as
with recursive d as (select 0 as n union all select n + 1 from d where n < 999), s as (select a.n * 1000 + b.n as n from d a, d b
where a.n < 300)
select n as id, concat('person', n, '@example.com') as email, concat('Name ', n) as name,
  'de' as locale, now() as joined, n / 3.0 as balance, n % 7 = 0 as vip from s`)
	b.streamPeople(bench)
}

// TestMySQLSessionIsBoundedByTheSourceToo reads the settings at the source.
func TestMySQLSessionIsBoundedByTheSourceToo(t *testing.T) {
	t.Parallel()
	b, _ := mariadbShop(t, dev)
	x := b.addAudience(t,
		"select 1 as id, concat_ws(' ', @@max_statement_time, @@tx_read_only, "+
			"@@tx_isolation, @@time_zone, @@sql_mode, @@local_infile) as email")
	rows, err := b.collect(t, x.ID)
	if err != nil || len(rows) != 1 || !strings.HasPrefix(rows[0].Email, "3600.000000 ON REPEATABLE-READ +00:00 STRICT_TRANS_TABLES") {
		t.Errorf("%+v, %v", rows, err)
	}
}

// TestMySQLQueryThatIsAbandonedStops reads the server's list of running queries.
func TestMySQLQueryThatIsAbandonedStops(t *testing.T) {
	t.Parallel()
	o := dev
	o.FetchTimeout = 500 * time.Millisecond
	b, s := mariadbShop(t, o)
	x := b.addAudience(t, "select id, email from customers where sleep(100) = 0")
	_, err := b.Stream(t.Context(), b.Workspace, x.ID, nil, func(Row) error { return nil })
	wantCode(t, err, CodeTimeout)
	user := b.DSN[len("mysql://"):strings.LastIndex(b.DSN, ":pw@")]
	pgtest.Eventually(t, 10*time.Second, "the query has stopped", func() bool {
		return s.count(t, "select count(*) from information_schema.processlist where user = '"+user+"'") == 0
	})
}
