package audience

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/pgtest"
)

func (b bundle) collect(t testing.TB, id uuid.UUID, columns ...string) ([]Row, error) {
	t.Helper()
	var rows []Row
	read, err := b.Stream(t.Context(), b.Workspace, id, columns, func(r Row) error {
		rows = append(rows, r)
		return nil
	})
	if err == nil && int(read) != len(rows) {
		t.Errorf("read is %d, yield got %d", read, len(rows))
	}
	return rows, err
}

func TestStreamGivesTypedPayloads(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x := b.addAudience(t, shopSQL)
	rows, err := b.collect(t, x.ID, "name", "opted_out", "joined", "birthday", "balance", "score", "meta", "tag", "id")
	if err != nil || len(rows) != 20 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	want := Row{Key: "3", Email: "person3@example.com",
		Payload: `{"name":"Person \"3\"","opted_out":false,"joined":"2026-01-02T03:04:05.678Z","birthday":"1990-05-06","balance":3.50,` +
			`"score":0.75,"meta":{"n": 1},"tag":"00000000-0000-0000-0000-000000000001","id":3}`}
	if diff := cmp.Diff(want, rows[2]); diff != "" {
		t.Error(diff)
	}
	if rows, err = b.collect(t, x.ID); err != nil || rows[0].Payload != "{}" {
		t.Errorf("without columns: %q, %v", rows[0].Payload, err)
	}
}

func TestStreamOfOddValues(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	sql := `
select * from (values
  ('a', ' x@example.com ', null::boolean, 'NaN'::float8, 'infinity'::timestamptz, E'tab\t nl\n quote" back\\ \u00e9', 'null'::json),
  ('c', 'z@example.com', false, 0, '0044-03-15 00:00:00+00 BC', '', '"x"'),
  ('b', null, true, '-Infinity', '0044-03-15 00:00:00+00 BC', '', '"x"'),
  (null, '  ', false, 1e300, '2026-07-01 00:00:00+05:30', chr(1), '[1]'),
  (repeat('k', 300), 'y@example.com', true, 0, null, null, null)
) v (id, email, out, f, ts, txt, js)`
	x, err := b.Create(t.Context(), b.Workspace, NewAudience{ID: lemma.NewID(), DataSourceID: b.source, Name: "odd", SQL: sql,
		KeyColumn: "id", EmailColumn: "email", OptedOutColumn: "out"})
	b.Must(err)
	rows, err := b.collect(t, x.ID, "f", "ts", "txt", "js", "email")
	b.Must(err)
	want := []Row{
		{Key: "b", OptedOut: true, Payload: `{}`},
		{Key: strings.Repeat("k", 300), Email: "y@example.com", OptedOut: true, Payload: `{}`},
		{Key: "a", Email: " x@example.com ",
			Payload: `{"f":null,"ts":"infinity","txt":"tab\t nl\n quote\" back\\ é","js":null,"email":" x@example.com "}`},
		{Key: "c", Email: "z@example.com", Payload: `{"f":0,"ts":"0044-03-15 00:00:00+00 BC","txt":"","js":"x","email":"z@example.com"}`},
		{Email: "  ", Payload: `{"f":1e+300,"ts":"2026-06-30T18:30:00Z","txt":"\u0001","js":[1],"email":"  "}`},
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Error(diff)
	}
	for _, r := range rows {
		if !json.Valid([]byte(r.Payload)) {
			t.Errorf("not JSON: %s", r.Payload)
		}
	}
}

func TestStreamSeesOneMoment(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	pgtest.Exec(t, b.DB, "insert into customers (id, email) select i, 'm' || i || '@example.com' from generate_series(100, 60000) i")
	x := b.addAudience(t, "select id, email from customers")
	changed, n := false, 0
	_, err := b.Stream(t.Context(), b.Workspace, x.ID, nil, func(r Row) error {
		if !changed {
			pgtest.Exec(t, b.DB, "delete from customers where id > 50000")
			pgtest.Exec(t, b.DB, "insert into customers (id, email) values (1000000, 'late@example.com')")
			changed = true
		}
		if r.Key == "1000000" {
			return errors.New("a row of later")
		}
		n++
		return nil
	})
	if err != nil || n != 20+59901 {
		t.Errorf("%d rows, %v", n, err)
	}
}

func TestStreamStopsAtTheErrorOfYield(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x := b.addAudience(t, shopSQL)
	enough := errors.New("enough")
	n := 0
	read, err := b.Stream(t.Context(), b.Workspace, x.ID, nil, func(Row) error {
		if n++; n == 3 {
			return enough
		}
		return nil
	})
	if err != enough || read != 0 {
		t.Errorf("read %d, %v", read, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = b.Stream(ctx, b.Workspace, x.ID, nil, func(Row) error { cancel(); return ctx.Err() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// Each run of the query evaluates the opted-out column, here by the locks of another
// session, which no snapshot has. Every row comes, and the opt-out of either run wins.
func TestStreamOfAnOptOutThatChangesBetweenTheRuns(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	b.ExecDB(`create table people (id int)`)
	b.ExecDB(`insert into people values (1), (2), (3), (4)`)
	b.ExecDB(`grant select on people to public`)
	x, err := b.Create(t.Context(), b.Workspace, NewAudience{ID: lemma.NewID(), DataSourceID: b.source, Name: "people",
		KeyColumn: "id", EmailColumn: "email", OptedOutColumn: "opted_out", SQL: `
			select id, id || '@example.com' as email, exists (select from pg_locks l where l.locktype = 'advisory' and l.objid = id
				and l.database = (select oid from pg_database where datname = current_database())) as opted_out
			from people order by id`})
	b.Must(err)
	other, err := b.DB.Acquire(t.Context())
	b.Must(err)
	defer other.Release()
	lock := func(sql string) { _, err := other.Exec(t.Context(), sql); b.Must(err) }
	lock(`select pg_advisory_lock(1), pg_advisory_lock(4)`)
	var got []string
	var counts Counts
	known := newKnown(100)
	read, err := b.Stream(t.Context(), b.Workspace, x.ID, nil, func(r Row) error {
		if len(got) == 0 {
			lock(`select pg_advisory_lock(3), pg_advisory_unlock(4)`)
		}
		counts.add(r, r.Addresses(nil, lemma.Email)[0], false, known)
		got = append(got, fmt.Sprint(strings.Clone(r.Key), " ", r.OptedOut))
		return nil
	})
	if diff := cmp.Diff([]string{"1 true", "4 true", "2 false", "3 true", "4 false"}, got); diff != "" || err != nil || read != 4 {
		t.Errorf("%d rows, %v, %s", read, err, diff)
	}
	if want := (Counts{Rows: 4, Sendable: 1, Unsubscribed: 3}); counts != want {
		t.Errorf("%+v, want %+v", counts, want)
	}
}

// TestStreamMemoryIsConstant is not parallel: it measures the heap of all.
func TestStreamMemoryIsConstant(t *testing.T) {
	b := setup(t, dev)
	x := b.addAudience(t, `select i as id, 'p' || i || '@example.com' as email, repeat('x', 200) as pad from generate_series(1, 1000000) i`)
	var peak, n uint64
	_, err := b.Stream(t.Context(), b.Workspace, x.ID, []string{"pad"}, func(r Row) error {
		if n++; n%50_000 == 0 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapAlloc)
		}
		return nil
	})
	if err != nil || n != 1_000_000 {
		t.Fatalf("%d rows, %v", n, err)
	}
	if peak > 64<<20 { // the rows alone are 230 MB
		t.Errorf("the heap grew to %d MB", peak>>20)
	}
}

func TestLimitsEndAStream(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limit func(*Options)
		sql   string
		want  string
	}{
		"rows":            {func(o *Options) { o.MaxRows = 19 }, shopSQL, CodeLimit},
		"exactly as many": {func(o *Options) { o.MaxRows = 20 }, shopSQL, "fine"},
		"bytes":           {func(o *Options) { o.MaxBytes = 100 }, shopSQL, CodeLimit},
		"endless rows": {func(o *Options) { o.MaxRows = 100_000 },
			"select generate_series(1, 1e12::bigint) as id, 'x@example.com' as email", CodeLimit},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := dev
			o.QueryTimeout, o.FetchTimeout, o.RunTimeout = time.Minute, time.Minute, time.Minute
			c.limit(&o)
			b := setup(t, o)
			x := b.addAudience(t, c.sql)
			_, err := b.Stream(t.Context(), b.Workspace, x.ID, nil, func(Row) error { return nil })
			wantCode(t, err, c.want)
		})
	}
}

func TestSourceChanges(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ change, want string }{
		"nothing":            {"select 1", "fine"},
		"a column is gone":   {"alter table customers drop column name", CodeChanged},
		"another type":       {"alter table customers alter column name type integer using 1", CodeChanged},
		"a table is gone":    {"drop table customers", CodeChanged},
		"a right is gone":    {"revoke select on customers from %s", CodeChanged},
		"the login is gone":  {"alter role %s nologin", CodeRefused},
		"the role has power": {"alter role %s createdb", CodeRefused},
		"a column more":      {"alter table customers add column extra text", "fine"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, dev)
			x := b.addAudience(t, shopSQL)
			if strings.Contains(c.change, "%s") {
				c.change = fmt.Sprintf(c.change, b.Role)
			}
			pgtest.Exec(t, b.DB, c.change)
			_, err := b.collect(t, x.ID, "name")
			wantCode(t, err, c.want)
			_, err = b.Preview(t.Context(), b.Workspace, x.ID, 3)
			if (err == nil) != (c.want == "fine") && name != "another type" {
				t.Errorf("preview: %v", err)
			}
		})
	}
}

func TestPayloadColumnThatTheAudienceLacks(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x := b.addAudience(t, shopSQL)
	_, err := b.collect(t, x.ID, "nothing")
	wantCode(t, err, CodeChanged)
}

func TestCountSortsEveryRow(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	sql := `
select * from (values
  ('1', 'a@example.com', false), ('2', 'A@Example.com', false), ('3', null, false), ('4', '', true), ('5', 'not an address', false),
  ('6', 'b@example.com', true), (null, 'c@example.com', false), (repeat('k', 256), 'd@example.com', false), ('9', 'e@example.com', null),
  ('10', 'f@example.com', false), ('11', 'F@Example.com', true), ('12', 'g@example.com', false), (null, 'g@example.com', true)
) v (id, email, out)`
	x, err := b.Create(t.Context(), b.Workspace, NewAudience{ID: lemma.NewID(), DataSourceID: b.source, Name: "count", SQL: sql,
		KeyColumn: "id", EmailColumn: "email", OptedOutColumn: "out"})
	b.Must(err)
	got, err := b.Audiences.Count(t.Context(), b.Workspace, x.ID, "")
	b.Must(err)
	want := Counts{Rows: 13, Sendable: 2, Profiles: 2, MissingAddress: 1, InvalidAddress: 1, DuplicateAddress: 3, Unsubscribed: 3,
		InvalidKey: 3}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCountReportsWhenItIsTruncated(t *testing.T) {
	t.Parallel()
	o := dev
	o.MaxDistinct = 50_000
	b := setup(t, o)
	x := b.addAudience(t, `select i as id, 'p' || i % 60000 || '@example.com' as email from generate_series(0, 119999) i`)
	got, err := b.Audiences.Count(t.Context(), b.Workspace, x.ID, "")
	if err != nil || !got.Truncated || got.Rows != 120_000 || got.DuplicateAddress != 50_000 || got.Sendable != 70_000 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestPreviewIsTyped(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x := b.addAudience(t,
		"select id, email, name, opted_out, balance, meta, null::text as nothing, repeat('ä', 5000) as long from customers order by id")
	p, err := b.Preview(t.Context(), b.Workspace, x.ID, 2)
	if err != nil || len(p.Rows) != 2 {
		t.Fatalf("%d rows, %v", len(p.Rows), err)
	}
	long := strings.Repeat("ä", 500) + "…"
	want := []any{json.Number("1"), "person1@example.com", `Person "1"`, false, json.Number("1.50"), json.RawMessage(`{"n": 1}`), nil, long}
	if diff := cmp.Diff(want, p.Rows[0]); diff != "" {
		t.Error(diff)
	}
	if p, err = b.Preview(t.Context(), b.Workspace, x.ID, 1_000); err != nil || len(p.Rows) != 20 {
		t.Errorf("%d rows, %v", len(p.Rows), err)
	}
}

// BenchmarkStream reads 300,000 profiles with five columns each. The time includes
// the source; measure the CPU of Lemma with CPU profiles.
func BenchmarkStream(bench *testing.B) {
	b := setup(bench, dev)
	pgtest.Exec(bench, b.DB, `
create table people as
select i::bigint as id, 'person' || i || '@example.com' as email, 'Name ' || i as name,
  'de' as locale, now() as joined, i / 3.0 as balance, i % 7 = 0 as vip
  from generate_series(1, 300000) i`)
	pgtest.Exec(bench, b.DB, "grant select on people to "+b.Role)
	b.streamPeople(bench)
}

// streamPeople measures reading the 300,000 rows of people.
func (b bundle) streamPeople(bench *testing.B) {
	x := b.addAudience(bench, "select * from people")
	bench.ReportAllocs()
	started, rows, cpu := time.Now(), int64(0), cpuTime()
	for bench.Loop() {
		n, err := b.Stream(bench.Context(), b.Workspace, x.ID, []string{"name", "locale", "joined", "balance", "vip"},
			func(Row) error { return nil })
		if err != nil || n != 300_000 {
			bench.Fatal(n, err)
		}
		rows += n
	}
	bench.ReportMetric(float64(rows)/time.Since(started).Seconds(), "rows/s")
	bench.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/float64(rows), "cpu-ns/row")
	bench.ReportMetric(0, "ns/op")
}
