package audience

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/pgtest"
)

// schema makes a database of this test, which the bundle's login can read.
func (s *server) schema(t testing.TB, b *bundle, statements ...string) {
	t.Helper()
	name := "s" + strings.ReplaceAll(uuid.NewString(), "-", "")
	user := b.DSN[len("mysql://"):strings.LastIndex(b.DSN, ":pw@")]
	s.exec(t, "create database "+name+" character set utf8mb4 collate utf8mb4_unicode_ci",
		"grant select on "+name+".* to "+user+"@'127.0.0.1'")
	t.Cleanup(func() { s.exec(t, "drop database "+name) })
	for _, statement := range statements {
		s.exec(t, strings.ReplaceAll(statement, "$", name))
	}
	b.DSN = strings.TrimSuffix(b.DSN, "/shop") + "/" + name
	b.source = b.addSource(t, MySQL, b.DSN)
}

func TestMySQLLookupGivesTheRowsOfAStream(t *testing.T) {
	t.Parallel()
	b, s := mariadbShop(t, dev)
	x, err := b.Create(t.Context(), b.Workspace,
		NewAudience{ID: lemma.NewID(), DataSourceID: b.source, Name: "all", SQL: "select * from customers order by id # all",
			KeyColumn: "id", EmailColumn: "email", OptedOutColumn: "opted_out"})
	if err != nil {
		t.Fatal(err)
	}
	columns := []string{"name", "opted_out", "joined", "seen", "birthday", "balance", "score", "ratio", "meta", "raw", "bits", "y", "id"}
	streamed, err := b.collect(t, x.ID, columns...)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]Row{}
	for _, row := range streamed {
		if row.Key != "1" {
			want[row.Key] = row
		}
	}
	keys := []string{"21", "unknown", "1abc", "01", "18446744073709551615", "18446744073709551616", "-1", ""}
	for i := range 19 {
		keys = append(keys, strconv.Itoa(i+2))
	}
	for range 3 {
		got, err := b.lookup(t, x.ID, columns, keys)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, streamOf(got)); diff != "" {
			t.Error(diff)
		}
	}
	got, err := b.lookup(t, x.ID, nil, []string{"unknown"})
	if err != nil || len(got) != 0 {
		t.Errorf("no key that could be one: %v, %v", got, err)
	}
	user := b.DSN[len("mysql://"):strings.LastIndex(b.DSN, ":pw@")]
	if n := s.count(t, "select count(*) from information_schema.processlist where user = '"+user+"'"); n != 1 {
		t.Errorf("%d connections", n)
	}
	if n := s.count(t,
		"select count(*) from information_schema.innodb_trx t "+
			"join information_schema.processlist p on p.id = t.trx_mysql_thread_id where p.user = '"+user+"'"); n != 0 {
		t.Error("between two lookups it is in a transaction")
	}
}

func TestMySQLLookupByKeysOfEveryType(t *testing.T) {
	t.Parallel()
	b, s := mariadbShop(t, dev)
	s.schema(t, &b, `
create table $.odd (tiny tinyint, u bigint unsigned, i bigint, d decimal(30,2), f float, dd double,
  text_ci varchar(300), text_bin varchar(300) character set utf8mb4 collate utf8mb4_bin,
  latin varchar(20) character set latin1, old varchar(20) character
set utf8, c char(10), e enum('7', 'red'), b varbinary(20), id uuid, y year)`,
		`insert into $.odd values
(7, 18446744073709551615, -9223372036854775808, 7.00, 0.1, 1e20, 'abc', 'abc', 'é', 'é', '7 ', '7', '7',
  '00000000-0000-0000-0000-000000000007', 2026),
(8, 7, 9223372036854775807, 99999999999999999999999999.50, 7, 7, 'a''b"c\\\\d{e}', '😀', '7', '7', 'x', 'red', 'é', null, null)`)
	keys := append([]string{"abc", "ABC", "abc ", "0.1", "7.00", "8", "red", "18446744073709551615", "-9223372036854775808",
		"99999999999999999999999999.50", "2026", "x"}, oddKeys...)
	for column, want := range map[string][]string{
		"tiny": {"7", "8"}, "u": {"7", "18446744073709551615"}, "i": {"-9223372036854775808", "9223372036854775807"},
		"d":  {"7.00", "99999999999999999999999999.50"},
		"dd": {"7"}, "text_ci": {"abc", `a'b"c\\d{e}`}, "text_bin": {"abc", "😀"},
		"latin": {"é", "7"}, "old": {"é", "7"},
		"c": {"7", "x"},
		"e": {"7", "red"}, "b": {"7", "é"}, "id": {"00000000-0000-0000-0000-000000000007"}, "y": {"2026"},
	} {
		t.Run(column, func(t *testing.T) {
			x := b.keyed(t, "select "+column+" as k, 'x@example.com' as email from odd")
			got, err := b.lookup(t, x.ID, nil, append(keys, `a'b"c\\d{e}`))
			if err != nil {
				t.Fatal(err)
			}
			wantKeys(t, got, want...)
		})
	}
}

func TestMySQLMatching(t *testing.T) {
	t.Parallel()
	b, s := mariadbShop(t, dev)
	s.schema(t, &b,
		"create table $.orders (customer bigint, code varchar(40), latin varchar(40) character set latin1, at datetime(6), key (code))",
		`insert into $.orders
			values (1, 'c1', 'c1', '2026-01-10 09:59:59'), (2, 'c2', 'c2', '2026-01-10 10:00:00.123456'),
			(3, 'c3', 'é', '2026-01-10 10:00:00.123457'), (3, 'c3', 'é', '2026-02-01'), (99, 'c99', 'c99', '2026-02-01')`)
	keys := append([]string{"1", "2", "3", "4", "c1", "c2", "c3", "é"}, oddKeys...)
	var all []string
	for _, key := range keys {
		if IsKey(key) {
			all = append(all, key)
		}
	}
	for sql, want := range map[string][]string{
		"select customer from orders": {"1", "2", "3"},
		"select o.code from orders o join people p on p.profile_key = o.code where o.at > p.enrolled_at":         {"c3"},
		"select p.profile_key from orders o join people p on p.profile_key = o.latin where o.at > p.enrolled_at": {"é"},
		"select profile_key from people p where exists (" +
			"select 1 from orders o where cast(o.customer as char) = p.profile_key and o.at <= p.enrolled_at) # so": {"1", "2"},
		"with o as (select code from orders) " +
			"select p.profile_key from people p left join o on o.code = p.profile_key order by 1 limit 1000000": all,
		"(select profile_key from people) -- all":                                         all,
		"select profile_key from people where enrolled_at = '2026-01-10 10:00:00.123456'": all,
		// as the tables of this database, whose indexes then serve
		"select profile_key from people where collation(profile_key) = 'utf8mb4_unicode_ci'": all,
		"select profile_key from people where false":                                         nil,
	} {
		if err := b.ValidateMatching(t.Context(), b.Workspace, b.source, sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
		for range 2 {
			got, err := b.match(t, sql, keys...)
			if err != nil {
				t.Errorf("%s: %v", sql, err)
				break
			}
			wantSet(t, got, want...)
		}
	}
	for name, sql := range map[string]string{
		"a parameter":             "select profile_key from people where profile_key = ?",
		"leaves both parentheses": "select 1)) , ((select 1",
		"leaves one of exists":    "select 1) union (select 2",
		"leaves it by arithmetic": "select 1--1) union (select 2",
		"a comment":               "select profile_key from people) #",
		"two statements":          "select 1; select 2",
		"writes":                  "delete from orders returning customer",
		"outfile":                 "select profile_key from people into outfile 'x'",
		"variables":               "select profile_key from people into @a",
		"two columns":             "select * from people",
		"a column that is no key": "select enrolled_at from people",
		"an unknown relation":     "select profile_key from persons",
		"executed comment":        "select profile_key /*! , 1 */ from people",
		"an option":               "set session transaction read write",
	} {
		err := b.ValidateMatching(t.Context(), b.Workspace, b.source, sql)
		if codeOf(err) != "query_invalid /sql" {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := b.match(t, sql, "1"); err == nil {
			t.Errorf("%s ran: %v", name, got)
		}
	}
	err := b.ValidateMatching(t.Context(), b.Workspace, b.source, "select profile_key\nfrom people\nwhere and")
	if e, ok := err.(*lemma.Error); !ok || len(e.Fields) != 1 || e.Fields[0].Line != 3 {
		t.Errorf("%v", err)
	}
}

// TestMySQLFormsKeepMatchingInside runs without checkText.
func TestMySQLFormsKeepMatchingInside(t *testing.T) {
	t.Parallel()
	b, _ := mariadbShop(t, dev)
	for _, sql := range []string{
		"select '1') as audience union select profile_key from (select profile_key from people",
		"select 1)) , ((select 1",
		"select 1) union (select 2",
		"select 1) as audience #",
		"select 1)) #",
		"select 1) as q, (select 2",
		"select 1 as k), (select 2",
		"select 1) as q union select * from (select 2",
		"select 1) as audience; drop table customers; #",
	} {
		source, err := b.opened(t.Context(), b.Workspace, b.source)
		if err != nil {
			t.Fatal(err)
		}
		err = b.within(t.Context(), source, b.readSpan(), func(r *run) error {
			_, err := r.describeMatching(r.ctx, sql)
			return err
		})
		wantCode(t, err, "query_invalid /sql")
	}
}

func TestMySQLKeptConnections(t *testing.T) {
	t.Parallel()
	o := dev
	o.LookupTimeout = 2 * time.Second
	b, s := mariadbShop(t, o)
	user := b.DSN[len("mysql://"):strings.LastIndex(b.DSN, ":pw@")]
	s.schema(t, &b, "create table $.people (k varchar(50) primary key, email varchar(50))",
		"insert into $.people values ('1', 'x@example.com')")
	x := b.keyed(t, "select * from people")
	read := func(want string) {
		t.Helper()
		_, err := b.lookup(t, x.ID, nil, []string{"1"})
		wantCode(t, err, want)
	}
	table := b.DSN[strings.LastIndexByte(b.DSN, '/')+1:] + ".people"
	read("fine")
	id := s.count(t, "select max(id) from information_schema.processlist where user = '"+user+"'")
	read("fine")
	s.exec(t, "kill "+strconv.Itoa(id))
	read("fine")
	s.exec(t, "update "+table+" set email = null", "alter table "+table+" modify email int null")
	read("source_changed")
	s.exec(t, "alter table "+table+" modify email varchar(50)")
	read("fine")
	s.exec(t, "revoke select on "+strings.TrimSuffix(table, ".people")+".* from "+user+"@'127.0.0.1'")
	b.Close() // MariaDB reads the privileges of a database when a connection begins
	read("source_refused")
	s.exec(t, "grant select on "+strings.TrimSuffix(table, ".people")+".* to "+user+"@'127.0.0.1'")
	read("fine")
	started := time.Now()
	_, err := b.match(t, "select profile_key from people where sleep(100) = 0", "1")
	wantCode(t, err, CodeTimeout)
	if d := time.Since(started); d > 30*time.Second {
		t.Errorf("it took %s", d)
	}
	read("fine")
	b.Close()
	pgtest.Eventually(t, 10*time.Second, "no connection is left", func() bool {
		return s.count(t, "select count(*) from information_schema.processlist where user = '"+user+"'") == 0
	})
}

func BenchmarkMySQLLookup(bench *testing.B) {
	b, s := mariadbShop(bench, dev)
	s.schema(bench, &b, `
create table $.people (primary key (id), key (code)) as
with recursive d as (select 0 as n union all select n + 1 from d where n < 999), s as (select a.n * 1000 + b.n as n from d a, d b
where a.n < 301)
select n as id, concat('customer-', n) as code, concat('person', n, '@example.com') as email, concat('Name ', n) as name,
  'de' as locale, now() as joined, n / 3.0 as balance, n % 7 = 0 as vip from s`)
	bench.Cleanup(b.Close)
	for name, key := range map[string]func(i int) string{"id": strconv.Itoa,
		"code": func(i int) string { return "customer-" + strconv.Itoa(i) }} {
		x := b.keyed(bench, "select "+name+" as k, email, name, locale, joined, balance, vip from people")
		bench.Run(name, func(bench *testing.B) { b.benchLookup(bench, x.ID, make([]string, MaxLookup), key) })
	}
}
