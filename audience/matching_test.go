package audience

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"lemma"
	"lemma/pgtest"
)

var enrolled = time.Date(2026, 1, 10, 12, 0, 0, 123_456_000, time.FixedZone("", 2*60*60))

func people(keys ...string) []Person {
	list := make([]Person, len(keys))
	for i, key := range keys {
		list[i] = Person{key, enrolled}
	}
	return list
}

func (b bundle) match(t testing.TB, sql string, keys ...string) (map[string]bool, error) {
	t.Helper()
	t.Cleanup(b.Close)
	return b.Matching(t.Context(), b.Workspace, b.source, sql, people(keys...))
}

func TestMatching(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	pgtest.Exec(t, b.DB, `
create table orders (customer bigint, at timestamptz); grant select on orders to `+b.Role+`;
insert into orders values (1, '2026-01-10 09:59:59Z'), (2, '2026-01-10 10:00:00.123456Z'),
  (3, '2026-01-10 10:00:00.123457Z'), (3, '2026-02-01'), (99, '2026-02-01')`)
	const since = " (select from orders o where o.customer = p.profile_key::bigint and o.at > p.enrolled_at)"
	for _, c := range []struct {
		sql  string
		want []string
	}{
		{"select profile_key from people p where exists" + since, []string{"3"}},
		{"select profile_key from people p where not exists" + since + " -- no order", []string{"1", "2", "4"}},
		{"select customer from orders", []string{"1", "2", "3"}}, // 99 is not in people
		{"select customer::numeric from orders union all select null", []string{"1", "2", "3"}},
		{"with people as (select * from people where profile_key < '3') select profile_key from people", []string{"1", "2"}},
		{"with p as (select * from people) select a.profile_key from p a join p b using (profile_key) " +
			"where a.profile_key > '2' order by 1 limit 5", []string{"3", "4"}},
		{"(select profile_key from people limit 1) union (select '4')", []string{"1", "4"}},
		{"select profile_key from people where enrolled_at = '2026-01-10 10:00:00.123456Z' " +
			"and pg_typeof(enrolled_at) = 'timestamptz'::regtype", []string{"1", "2", "3", "4"}},
		{"values ('1'), ('4')", []string{"1", "4"}},
		{"select profile_key from people where false", nil},
	} {
		for range 2 { // new and kept connection
			got, err := b.match(t, c.sql, "1", "2", "3", "4")
			if err != nil {
				t.Errorf("%s: %v", c.sql, err)
			}
			wantSet(t, got, c.want...)
		}
		if err := b.ValidateMatching(t.Context(), b.Workspace, b.source, c.sql); err != nil {
			t.Errorf("%s: %v", c.sql, err)
		}
	}
	b.waitForBackends(t, 1)
	var all []string
	for _, key := range oddKeys {
		if IsKey(key) {
			all = append(all, key)
		}
	}
	got, err := b.match(t, "select profile_key from people", oddKeys...)
	b.Must(err)
	wantSet(t, got, all...)
	if got, err := b.match(t, "select nonsense"); err != nil || len(got) != 0 {
		t.Errorf("of no people: %v, %v", got, err)
	}
}

func TestMatchingOfAChangedSource(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	const sql = "select c.id from customers c join people p on p.profile_key = c.id::text"
	read := func(want string) {
		t.Helper()
		_, err := b.match(t, sql, "1")
		wantCode(t, err, want)
	}
	read("fine")
	pgtest.Exec(t, b.DB, "alter table customers rename id to key")
	read(CodeChanged)
	pgtest.Exec(t, b.DB, "alter table customers rename key to id")
	read("fine")
	pgtest.Exec(t, b.DB, "revoke select on customers from "+b.Role)
	read(CodeChanged)
	_, err := b.match(t, "select (profile_key || 'x')::int from people", "1")
	wantCode(t, err, CodeFailed)
	_, err = b.match(t, "select 1 / (length(profile_key) - 1) from people", "1")
	wantCode(t, err, CodeFailed)
	_, err = b.match(t, "select now() from people", "1")
	wantCode(t, err, CodeChanged)
}

// TestHostileMatching has the texts that no audience may be, and more that aim at the wrapping of people.
func TestHostileMatching(t *testing.T) {
	t.Parallel()
	o := dev
	o.QueryTimeout, o.LookupTimeout, o.MaxRows = 30*time.Second, 30*time.Second, 50_000
	b := setup(t, o) // refusals are answers, for which a busy machine may need time
	b.makeHostile()
	texts := map[string]string{
		"parameter of ours":       "select unnest($1::text[])",
		"another parameter":       "select profile_key from people where profile_key = $3",
		"leaves both parentheses": "select 1)) , ((select 1",
		"leaves one of exists":    "select 1) union (select 2",
		"leaves it into a set":    "select '1') as audience union (select '2'",
		"writes to people":        "delete from people returning profile_key",
		"two columns":             "select * from people",
		"no column":               "select from people",
		"a column that is no key": "select enrolled_at from people",
		"into":                    "select profile_key into hacked from people",
		"data-modifying with":     "with gone as (delete from customers returning id) select id from gone",
		"for update":              "select profile_key from people for update",
		"an unknown relation":     "select profile_key from persons",
		"empty":                   " -- \n",
	}
	for _, q := range hostile {
		if q.want == "query_invalid /sql" {
			texts["hostile: "+q.name] = strings.ReplaceAll(strings.ReplaceAll(q.sql, "select id, email", "select id"),
				" as id, 'x' as email", "")
		}
	}
	for name, sql := range texts {
		t.Run(name, func(t *testing.T) {
			err := b.ValidateMatching(t.Context(), b.Workspace, b.source, sql)
			if name != "hostile: two columns of one name" && name != "hostile: values" {
				wantCode(t, err, "query_invalid /sql")
			}
			if err != nil && strings.Contains(err.Error(), "audience") {
				t.Error(err)
			}
			got, err := b.match(t, sql, "1", "2")
			if code := codeOf(err); err == nil || code != CodeChanged && code != "query_invalid /sql" {
				t.Errorf("it ran: %v, %v", got, err)
			}
		})
	}
	o.LookupTimeout = 3 * time.Second
	short := b.with(o)
	for _, sql := range []string{"select loop_forever()::text", "select count(*) from generate_series(1, 1e12::bigint)",
		"select generate_series(1, 1e12::bigint)", "select repeat('x', 500000000)",
		"with recursive r as (select 1::bigint as id union all select id + 1 from r) select id from r", "select add_customer()",
		"select pg_sleep(100)::text"} {
		started := time.Now()
		_, err := short.match(t, sql, "1")
		if code := codeOf(err); !strings.HasPrefix(code, "source_") {
			t.Errorf("%s: %v", sql, err)
		}
		if d := time.Since(started); d > 30*time.Second {
			t.Errorf("%s took %s", sql, d)
		}
	}
	b.Close()
	short.Close()
	b.isUnharmed(t)
}

// TestTwoFormsKeepMatchingInside runs without checkText: a text that closes
// the parentheses of one form must be invalid in the other.
func TestTwoFormsKeepMatchingInside(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	for _, sql := range []string{
		"select '1') as audience union select profile_key from (select profile_key from people",
		"select 1)) , ((select 1",
		"select 1) union (select 2",
		"select 1) as a, (select 2",
		"select '1' from people) as audience; drop table customers; --",
		"select '1' from people) as audience --",
		"select '1')) --",
		"select 1) as q, (select 2",
		"select 1 as k), (select 2",
		"select 1) as q union select * from (select 2",
	} {
		source, err := b.opened(t.Context(), b.Workspace, b.source)
		b.Must(err)
		err = b.within(t.Context(), source, b.readSpan(), func(r *run) error {
			_, err := r.describeMatching(r.ctx, sql)
			return err
		})
		wantCode(t, err, "query_invalid /sql")
	}
}

func TestMatchingFaultsHaveAPlace(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	for sql, want := range map[string][2]int{
		"select profile_key\nform people where":     {2, 6},
		"select 'ä', nothing from people":           {1, 13},
		"select profile_key from people\n;":         {2, 1},
		"select profile_key\n from people, nowhere": {2, 15},
	} {
		err := b.ValidateMatching(t.Context(), b.Workspace, b.source, sql)
		e, ok := err.(*lemma.Error)
		if !ok || len(e.Fields) != 1 || e.Fields[0].Pointer != "/sql" {
			t.Errorf("%s: %v", sql, err)
			continue
		}
		if f := e.Fields[0]; [2]int{f.Line, f.Column} != want {
			t.Errorf("%s: line %d column %d, want %v (%s)", sql, f.Line, f.Column, want, f.Detail)
		}
	}
}

// The error for a text that is not a query names what is expected.
func TestMatchingExpectsOneSelect(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	for sql, begins := range map[string]string{
		"delete from customers":                           "delete",
		" -- all\n/* of */ (Update customers set id = 1)": "update",
		"profile_key from people":                         "profile_key",
	} {
		err := b.ValidateMatching(t.Context(), b.Workspace, b.source, sql)
		wantCode(t, err, "query_invalid /sql")
		var e *lemma.Error
		if want := "one select is expected, and this begins with " + begins + ": "; !errors.As(err, &e) ||
			!strings.HasPrefix(e.Fields[0].Detail, want) {
			t.Errorf("%s: %v, want %s", sql, err, want)
		}
	}
	for _, sql := range []string{"select nothing from people", "with p as (select) select nothing", "(select nothing)",
		"values (nothing)"} {
		if err := b.ValidateMatching(t.Context(), b.Workspace, b.source, sql); err == nil || strings.Contains(err.Error(), "expected") {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

func BenchmarkMatching(bench *testing.B) {
	b := setup(bench, dev)
	pgtest.Exec(bench, b.DB, `
create table orders as select i % 100000 + 1 as customer, now() - i * interval '1 minute' as at from generate_series(1, 1000000) i;
create index on orders (customer, at); analyze orders; grant select on orders to `+b.Role)
	bench.Cleanup(b.Close)
	list := make([]Person, MaxLookup)
	for i := range list {
		list[i] = Person{strconv.Itoa(i*97 + 1), time.Now().AddDate(0, 0, -30)}
	}
	bench.ReportAllocs()
	cpu, n := cpuTime(), 0
	for bench.Loop() {
		n++
		_, err := b.Matching(bench.Context(), b.Workspace, b.source, "select profile_key from people p where not exists "+
			"(select from orders o where o.customer = p.profile_key::bigint and o.at > p.enrolled_at)", list)
		if err != nil {
			bench.Fatal(err)
		}
	}
	bench.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(n), "cpu-µs/op")
}
