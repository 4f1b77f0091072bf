package audience

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/pgtest"
)

// lookup is Lookup, closed when the test ends.
func (b bundle) lookup(t testing.TB, id uuid.UUID, columns, keys []string) (map[string]Row, error) {
	t.Helper()
	t.Cleanup(b.Close)
	found, err := b.Lookup(t.Context(), b.Workspace, id, columns, keys, 64<<20)
	return found.Rows, err
}

// keyed saves an audience whose key is the column k.
func (b bundle) keyed(t testing.TB, sql string) Audience {
	t.Helper()
	x, err := b.Create(t.Context(), b.Workspace,
		NewAudience{ID: lemma.NewID(), DataSourceID: b.source, Name: uuid.NewString(), SQL: sql, KeyColumn: "k", EmailColumn: "email"})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func wantKeys(t testing.TB, got map[string]Row, want ...string) {
	t.Helper()
	have := map[string]bool{}
	for key, row := range got {
		if row.Key != key {
			t.Errorf("%q has the row of %q", key, row.Key)
		}
		have[key] = true
	}
	wantSet(t, have, want...)
}

func wantSet(t testing.TB, got map[string]bool, want ...string) {
	t.Helper()
	set := map[string]bool{}
	for _, key := range want {
		set[key] = true
	}
	if diff := cmp.Diff(set, got); diff != "" {
		t.Error(diff)
	}
}

func TestLookupGivesTheRowsOfAStream(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x, err := b.Create(t.Context(), b.Workspace, NewAudience{ID: lemma.NewID(), DataSourceID: b.source, Name: "all", SQL: shopSQL,
		KeyColumn: "id", EmailColumn: "email", OptedOutColumn: "opted_out"})
	b.Must(err)
	pgtest.Exec(t, b.DB, "update customers set opted_out = true, name = null where id = 7; update customers set email = '  ' where id = 8")
	columns := []string{"name", "opted_out", "joined", "birthday", "balance", "score", "meta", "tag", "id"}
	streamed, err := b.collect(t, x.ID, columns...)
	b.Must(err)
	want := map[string]Row{}
	for _, row := range streamed {
		if row.Key != "20" {
			want[row.Key] = row
		}
	}
	keys := []string{"21", "unknown", "1", ""}
	for i := range 19 {
		keys = append(keys, strconv.Itoa(i+1))
	}
	got, err := b.lookup(t, x.ID, columns, keys)
	b.Must(err)
	if diff := cmp.Diff(want, streamOf(got)); diff != "" {
		t.Error(diff)
	}
	if got, err = b.lookup(t, x.ID, nil, []string{"3"}); err != nil || got["3"].Payload != "{}" {
		t.Errorf("without columns: %+v, %v", got, err)
	}
	if _, err = b.lookup(t, x.ID, nil, make([]string, MaxLookup+1)); err == nil {
		t.Error("more keys than allowed")
	}
	_, err = b.lookup(t, lemma.NewID(), nil, []string{"1"})
	wantCode(t, err, "not_found")
	_, err = b.lookup(t, x.ID, []string{"nothing"}, []string{"1"})
	wantCode(t, err, CodeChanged)
}

// streamOf removes what a stream omits: the payload of a row that is opted out.
func streamOf(rows map[string]Row) map[string]Row {
	for key, row := range rows {
		if row.OptedOut {
			row.Payload = "{}"
			rows[key] = row
		}
	}
	return rows
}

// oddKeys are keys with special characters and values.
var oddKeys = []string{"", "'", `"`, `\`, `\\`, `{`, `}`, `,`, `a,b`, `{"a"}`, "null", "NULL", "é", "😀", "a'b\"c\\d{e}", "\n",
	" 1", "1 ",
	"007", "+7", "-0", "7.0", "1e3", "12abc",
	"a\x00b", "\xff", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "2147483648", "99999999999999999999999999", "?",
	"$1", "); drop table customers; --",
	"NaN", "00000000-0000-0000-0000-000000000007", "00000000-0000-0000-0000-00000000000G", strings.Repeat("k", MaxKey),
	strings.Repeat("k", MaxKey+1), "7"}

func TestLookupByKeysOfEveryType(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	pgtest.Exec(t, b.DB, "create type colour as enum ('red', '7'); create table odd (k text); grant select on odd to "+b.Role)
	for _, key := range oddKeys {
		if IsKey(key) {
			pgtest.Exec(t, b.DB, "insert into odd values ($1)", key)
		}
	}
	all := []string{}
	for _, key := range oddKeys {
		if IsKey(key) {
			all = append(all, key)
		}
	}
	for name, c := range map[string]struct {
		k    string // the values of the key column
		want []string
	}{
		"smallint": {"values (7::smallint)", []string{"7"}},
		"integer":  {"values (7), (2147483647)", []string{"7"}},
		"bigint": {"values (7::bigint), (9223372036854775807), (2147483648)",
			[]string{"7", "9223372036854775807", "2147483648"}},
		"oid": {"values (7::oid), (2147483648)", []string{"7", "2147483648"}},
		"numeric": {"values (7::numeric), (7.0), ('NaN'), (9223372036854775808), (99999999999999999999999999), (1.50)",
			[]string{"7", "7.0", "NaN", "9223372036854775808", "99999999999999999999999999"}},
		"double":               {"values (7::float8), ('NaN'), (1000)", []string{"7", "NaN"}},
		"uuid":                 {"values ('00000000-0000-0000-0000-000000000007'::uuid)", []string{"00000000-0000-0000-0000-000000000007"}},
		"varchar":              {"values ('7'::varchar(3)), ('é')", []string{"7", "é"}},
		"char":                 {"values ('7'::char(2)), ('1'::char(2))", []string{"7"}},
		"name":                 {"values ('7'::name), ('😀')", []string{"7", "😀"}},
		"enum":                 {"values ('7'::colour), ('red')", []string{"7"}},
		"bytea":                {"values ('7'::bytea)", nil}, // its text is \x37
		"time":                 {"values ('07:00'::time)", nil},
		"point":                {"values ('(7,7)'::point)", nil},
		"text":                 {"select k from odd", all},
		"null":                 {"values (null::text), ('7')", []string{"7"}},
		"empty":                {"select 7 where false", nil},
		"an unusual collation": {`select k collate "C" from odd`, all},
	} {
		t.Run(name, func(t *testing.T) {
			x := b.keyed(t, "select v.k, 'x@example.com'::text as email from ("+c.k+") v (k)")
			got, err := b.lookup(t, x.ID, nil, oddKeys)
			if err != nil {
				t.Fatal(err)
			}
			wantKeys(t, got, c.want...)
		})
	}
	x := b.keyed(t, "select v.k, 'x' as email from (values ('(7,7)'::point)) v (k)")
	if got, err := b.lookup(t, x.ID, nil, []string{"(7,7)"}); err != nil || len(got) != 1 {
		t.Errorf("a type without an equality: %v, %v", got, err)
	}
}

func TestLookupOfTwoRowsWithOneKey(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x := b.keyed(t, "select * from (values ('a', 'first@example.com'), ('b', 'b@example.com'), ('a', 'second@example.com')) v (k, email)")
	got, err := b.lookup(t, x.ID, nil, []string{"a", "b"})
	if err != nil || len(got) != 2 || got["a"].Email != "first@example.com" {
		t.Errorf("%+v, %v", got, err)
	}
}

// A profile is opted out if any of its rows is; what else is known of it is of the first.
func TestLookupOfARowThatIsOptedOutAndOneThatIsNot(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x, err := b.Create(t.Context(), b.Workspace,
		NewAudience{ID: lemma.NewID(), DataSourceID: b.source, Name: "twice", KeyColumn: "k", EmailColumn: "email", OptedOutColumn: "out",
			SQL: "select * from (values ('a', 'first@example.com', false), ('b', 'b@example.com', false), " +
				"('a', 'second@example.com', true), ('a', 'third@example.com', null)) v (k, email, out)"})
	b.Must(err)
	got, err := b.lookup(t, x.ID, nil, []string{"a", "b"})
	if err != nil || len(got) != 2 || got["a"].Email != "first@example.com" || !got["a"].OptedOut || got["b"].OptedOut {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestLookupOnAServerOfAnotherEncoding has keys that this server has no characters for.
func TestLookupOnAServerOfAnotherEncoding(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	name := "latin_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	pgtest.Exec(t, b.DB, "create database "+name+" template template0 encoding 'LATIN1' locale 'C'")
	t.Cleanup(func() { pgtest.Exec(t, b.DB, "drop database "+name+" with (force)") })
	b.source = b.addSource(t, Postgres, strings.Replace(b.DSN, b.DB.Config().ConnConfig.Database, name, 1))
	x := b.keyed(t, "select v.k, 'x' as email from (values ('é'), ('7')) v (k)")
	got, err := b.lookup(t, x.ID, nil, oddKeys)
	b.Must(err)
	wantKeys(t, got, "é", "7")
}

// TestLookupUsesTheIndex explains the statement of Lookup.
func TestLookupUsesTheIndex(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	pgtest.Exec(t, b.DB, "insert into customers (id, email) select i, 'm' || i || '@example.com' from generate_series(100, 50000) i")
	pgtest.Exec(t, b.DB,
		"create table texts as select 'c' || id as k, email from customers; alter table texts add primary key (k); "+
			"analyze; grant select on texts to "+b.Role)
	for _, sql := range []string{"select id as k, email from customers order by email", "select * from texts"} {
		x := b.keyed(t, sql)
		if _, err := b.lookup(t, x.ID, nil, []string{"5"}); err != nil {
			t.Fatal(err)
		}
		rows, err := b.DB.Query(t.Context(), "explain select audience.k from (\n"+sql+wrapTail+" where audience.k = any('{5,6,7}')")
		b.Must(err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || !strings.Contains(strings.Join(lines, "\n"), "Index") {
			t.Errorf("%s: %v\n%s", sql, err, strings.Join(lines, "\n"))
		}
	}
}

func TestLookupThatTakesTooLong(t *testing.T) {
	t.Parallel()
	o := dev
	o.LookupTimeout = time.Second
	b := setup(t, o)
	x := b.keyed(t, "select id::text as k, email from customers where pg_sleep(30) is not null")
	started := time.Now()
	_, err := b.lookup(t, x.ID, nil, []string{"1"})
	wantCode(t, err, CodeTimeout)
	if lemma.KindOf(err) != lemma.Unavailable {
		t.Errorf("kind %s", lemma.KindOf(err))
	}
	_, err = b.Matching(t.Context(), b.Workspace, b.source, "select profile_key from people where pg_sleep(30) is not null", people("1"))
	wantCode(t, err, CodeTimeout)
	if d := time.Since(started); d > 25*time.Second {
		t.Errorf("they took %s", d)
	}
	b.waitForNoSessions(t)
}

// TestLookupOfAChangedSource changes the source and the audience under a kept connection.
func TestLookupOfAChangedSource(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x := b.keyed(t, "select id as k, email, name from customers")
	read := func(want string) map[string]Row {
		t.Helper()
		got, err := b.lookup(t, x.ID, []string{"name"}, []string{"1", "3000000000"})
		wantCode(t, err, want)
		return got
	}
	read("fine")
	pgtest.Exec(t, b.DB, "alter table customers alter id type int")
	read("fine")
	pgtest.Exec(t, b.DB, `alter table customers alter id type bigint;
		insert into customers (id, email) values (3000000000, 'big@example.com')`)
	wantKeys(t, read("fine"), "1", "3000000000")
	pgtest.Exec(t, b.DB, "alter table customers alter name type int using null")
	read(CodeChanged)
	pgtest.Exec(t, b.DB, "alter table customers alter name type text")
	read("fine")
	pgtest.Exec(t, b.DB, "alter table customers rename email to mail")
	read(CodeChanged)
	pgtest.Exec(t, b.DB, "alter table customers rename mail to email; revoke select on customers from "+b.Role)
	read(CodeChanged)
	pgtest.Exec(t, b.DB, "grant select on customers to "+b.Role)
	sql := "select id + 1 as k, email, name from customers"
	if _, err := b.Update(t.Context(), b.Workspace, x.ID, nil, Patch{SQL: &sql}, nil); err != nil {
		t.Fatal(err)
	}
	wantKeys(t, read("fine"))
	pgtest.Exec(t, b.DB, "alter role "+b.Role+" nologin")
	read("fine") // on the connection that is there
	b.Close()
	read(CodeRefused)
}

// TestLookupOfATextWithAParameter has one that no validation let through: it would read the keys.
func TestLookupOfATextWithAParameter(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x := b.keyed(t, "select id as k, email from customers")
	pgtest.Exec(t, b.Pool, "update audiences set sql = sql || ' where $1::bigint[] is not null' where id = $1", x.ID)
	_, err := b.lookup(t, x.ID, nil, []string{"1"})
	wantCode(t, err, CodeChanged)
}

// TestLookupStaysInItsWorkspace has the ids of another workspace's things.
func TestLookupStaysInItsWorkspace(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x := b.addAudience(t, shopSQL)
	if _, err := b.lookup(t, x.ID, nil, []string{"1"}); err != nil {
		t.Fatal(err)
	}
	_, err := b.Lookup(t.Context(), lemma.NewID(), x.ID, nil, []string{"1"}, 0)
	wantCode(t, err, "not_found")
	_, err = b.Matching(t.Context(), lemma.NewID(), b.source, "select profile_key from people", people("1"))
	wantCode(t, err, "not_found")
}

func TestCancelledLookupIsNotTheSource(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x := b.keyed(t, "select id::text as k, email from customers where pg_sleep(30) is not null")
	err := b.cancelled(t, func(ctx context.Context) error {
		_, err := b.Lookup(ctx, b.Workspace, x.ID, nil, []string{"1"}, 0)
		return err
	})
	if codeOf(err) != "read data source: context canceled" {
		t.Error(err)
	}
	b.waitForNoSessions(t)
}

func BenchmarkLookup(bench *testing.B) {
	b := setup(bench, dev)
	pgtest.Exec(bench, b.DB, `
create table people as
select i as id, 'customer-' || i as code, 'person' || i || '@example.com' as email, 'Name ' || i as name,
  'de' as locale, now() as joined, i / 3.0 as balance, i % 7 = 0 as vip
  from generate_series(1, 1000000) i;
alter table people add primary key (id); create unique index on people (code); analyze people; grant select on people to `+b.Role)
	bench.Cleanup(b.Close)
	for name, key := range map[string]func(i int) string{"id": strconv.Itoa,
		"code": func(i int) string { return "customer-" + strconv.Itoa(i) }} {
		x := b.keyed(bench, "select "+name+" as k, email, name, locale, joined, balance, vip from people")
		bench.Run(name, func(bench *testing.B) { b.benchLookup(bench, x.ID, make([]string, MaxLookup), key) })
		bench.Run("one "+name, func(bench *testing.B) { b.benchLookup(bench, x.ID, make([]string, 1), key) })
	}
}

func (b bundle) benchLookup(bench *testing.B, id uuid.UUID, keys []string, key func(i int) string) {
	bench.ReportAllocs()
	cpu, n := cpuTime(), 0
	for bench.Loop() {
		for i := range keys {
			keys[i] = key((n*7919+i*997)%300_000 + 1)
		}
		n++
		got, err := b.Lookup(bench.Context(), b.Workspace, id, []string{"name", "locale", "joined", "balance", "vip"}, keys, 8<<20)
		if err != nil || len(got.Rows) != len(keys) {
			bench.Fatal(len(got.Rows), err)
		}
	}
	bench.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(n), "cpu-µs/op")
}

// TestLookupOfTooMuch reads rows of which each is within the limit, but not all together.
func TestLookupOfTooMuch(t *testing.T) {
	t.Parallel()
	o := dev
	o.MaxLookupBytes = 10_000
	b := setup(t, o)
	x := b.keyed(t, "select i as k, repeat('x', 1000) as email from generate_series(1, 20) i")
	keys := make([]string, 20)
	for i := range keys {
		keys[i] = strconv.Itoa(i + 1)
	}
	_, err := b.lookup(t, x.ID, nil, keys)
	wantCode(t, err, CodeLimit)
	if lemma.KindOf(err) != lemma.TooLarge {
		t.Errorf("kind %s", lemma.KindOf(err))
	}
	if rows, err := b.lookup(t, x.ID, nil, keys[:9]); err != nil || len(rows) != 9 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	if rows, err := b.collect(t, x.ID); err != nil || len(rows) != 20 {
		t.Errorf("a stream gives %d rows, %v", len(rows), err)
	}
	_, err = b.match(t, "select repeat('x', 1000) from generate_series(1, 20)", "1")
	wantCode(t, err, CodeLimit)
}
