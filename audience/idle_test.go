package audience

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma/pgtest"
)

// backends are the processes that serve the role, oldest first.
func (b bundle) backends(t testing.TB) []int {
	t.Helper()
	rows, err := b.DB.Query(context.Background(), "select pid from pg_stat_activity where usename = $1 order by backend_start", b.Role)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func (b bundle) waitForBackends(t *testing.T, n int) {
	t.Helper()
	pgtest.Eventually(t, 10*time.Second, "the number of connections is "+strconv.Itoa(n), func() bool { return len(b.backends(t)) == n })
}

func TestLookupsShareAConnection(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x := b.addAudience(t, shopSQL)
	b.waitForNoSessions(t)
	var first int
	for i := range 5 {
		pgtest.Exec(t, b.DB, "update customers set name = $1 where id = 1", strconv.Itoa(i)) // another snapshot each time
		got, err := b.lookup(t, x.ID, []string{"name"}, []string{"1"})
		if err != nil || got["1"].Payload != fmt.Sprintf(`{"name":"%d"}`, i) {
			t.Fatalf("%+v, %v", got, err)
		}
		now := b.backends(t)
		if i == 0 && len(now) == 1 {
			first = now[0]
		}
		if len(now) != 1 || now[0] != first {
			t.Fatalf("backends %v, first %d", now, first)
		}
		var state string
		if err := b.DB.QueryRow(t.Context(), "select state from pg_stat_activity where pid = $1", first).Scan(&state); err != nil ||
			state != "idle" {
			t.Errorf("between two lookups it is %q, %v", state, err)
		}
	}
}

func TestEveryTransactionOfAConnectionIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x := b.keyed(t,
		`select pg_backend_pid()::text as pid, '1' as k,
	concat_ws(' ', current_setting('statement_timeout'), current_setting('lock_timeout'),
 current_setting('idle_in_transaction_session_timeout'), current_setting('transaction_read_only'), current_setting('transaction_isolation'),
 current_setting('TimeZone'), current_setting('application_name')) as email`)
	pids := map[string]bool{}
	for range 3 {
		got, err := b.lookup(t, x.ID, []string{"pid"}, []string{"1"})
		if err != nil || got["1"].Email != "9s 9s 10min on repeatable read UTC lemma" {
			t.Errorf("%+v, %v", got, err)
		}
		pids[got["1"].Payload] = true
	}
	if len(pids) != 1 {
		t.Errorf("on %d connections", len(pids))
	}
}

// TestTextsOfValuesDoNotDependOnTheSource has a database with other settings of the forms of
// values: a profile has the same data from each, also on a connection that is used again.
func TestTextsOfValuesDoNotDependOnTheSource(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	name := pgtest.One[string](t, b.DB, "select quote_ident(current_database())")
	for _, setting := range []string{"timezone = 'Asia/Tokyo'", "datestyle = 'German, DMY'", "intervalstyle = 'sql_standard'",
		"bytea_output = 'escape'", "extra_float_digits = -5", "standard_conforming_strings = off", "xmlbinary = 'hex'",
		"quote_all_identifiers = on", "transform_null_equals = on", "array_nulls = off"} {
		pgtest.Exec(t, b.DB, "alter database "+name+" set "+setting)
	}
	x := b.keyed(t, `select '1' as k, 'a@shop.example' as email, concat_ws(' ', '2024-03-01T12:00:00Z'::timestamptz, '2024-03-02'::date,
 interval '1 day 2 hours', '\x41ff'::bytea, 0.1::float8 + 0.2, 'a\b',
 xmlelement(name x, '\x41'::bytea), quote_ident('a'), num_nulls(1 = null), num_nulls(('{null}'::text[])[1])) as forms`)
	for range 2 {
		got, err := b.lookup(t, x.ID, []string{"forms"}, []string{"1"})
		want := `{"forms":"2024-03-01 12:00:00+00 2024-03-02 P1DT2H \\x41ff 0.30000000000000004 a\\b <x>QQ==</x> a 1 1"}`
		if err != nil || got["1"].Payload != want {
			t.Errorf("%s, %v, want %s", got["1"].Payload, err, want)
		}
	}
}

// TestSettingsOfAQueryAreReset has a function of the customer that changes
// settings of the session: the next lookup on the connection has the original ones.
func TestSettingsOfAQueryAreReset(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	pgtest.Exec(t, b.DB, `create function leave() returns text language plpgsql as $$
declare old text := current_setting('TimeZone') || coalesce(current_setting('my.mark', true), '') || current_setting('search_path');
begin
	perform set_config('TimeZone', 'Asia/Tokyo', false), set_config('my.mark', 'left', false), set_config('search_path', 'nowhere', false);
	return old;
end $$`)
	x := b.keyed(t, "select '1' as k, public.leave() as email")
	var before string
	for i := range 3 {
		got, err := b.lookup(t, x.ID, nil, []string{"1"})
		b.Must(err)
		if now := got["1"].Email; i > 0 && now != before || strings.Contains(now, "left") {
			t.Errorf("%q, then %q", before, now)
		} else if i == 0 {
			before = strings.TrimSpace(now)
		}
	}
}

func TestIdleConnections(t *testing.T) {
	t.Parallel()
	o := dev
	o.LookupTimeout = time.Minute
	b := setup(t, o)
	b.idle.longer = time.Hour
	x := b.keyed(t, "select id::text as k, email from customers")
	shut, err := b.DB.Begin(t.Context())
	b.Must(err)
	defer func() { _ = shut.Rollback(context.Background()) }() // also when the test fails: others would wait
	if _, err := shut.Exec(t.Context(), "lock table customers in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	var together sync.WaitGroup
	for range 5 {
		together.Go(func() {
			if _, err := b.Lookup(t.Context(), b.Workspace, x.ID, nil, []string{"1"}, 0); err != nil {
				t.Error(err)
			}
		})
	}
	b.waitForBackends(t, 5) // none is there to be used again: all wait for the table
	b.Must(shut.Rollback(t.Context()))
	together.Wait()
	b.waitForBackends(t, maxIdle)

	name := "another version of the source"
	if _, err := b.UpdateSource(t.Context(), b.Workspace, b.source, nil, SourcePatch{Name: &name}); err != nil {
		t.Fatal(err)
	}
	old := b.backends(t)
	b.idle.longer = 100 * time.Millisecond
	if _, err := b.lookup(t, x.ID, nil, []string{"1"}); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, 10*time.Second, "the connections of the older version are closed", func() bool {
		return !slices.ContainsFunc(b.backends(t), func(pid int) bool { return pid == old[0] || pid == old[1] })
	})
	b.waitForNoSessions(t) // closed when it is idle for long

	b.idle.longer = time.Hour
	if _, err := b.lookup(t, x.ID, nil, []string{"1"}); err != nil {
		t.Fatal(err)
	}
	b.waitForBackends(t, 1)
	b.Close()
	b.waitForNoSessions(t)
	if _, err := b.lookup(t, x.ID, nil, []string{"1"}); err != nil {
		t.Error("after Close:", err)
	}
	b.waitForNoSessions(t)
}

// TestAnOldConnectionIsProbedAnew has a role that became powerful meanwhile.
func TestAnOldConnectionIsProbedAnew(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x := b.addAudience(t, shopSQL)
	if _, err := b.lookup(t, x.ID, nil, []string{"1"}); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, b.DB, "alter role "+b.Role+" createdb")
	for _, c := range b.idle.lists[sourceID{b.Workspace, b.source}] {
		c.since = c.since.Add(-longestLife)
	}
	_, err := b.lookup(t, x.ID, nil, []string{"1"})
	wantCode(t, err, CodeRefused)
	b.waitForNoSessions(t)
}

func TestConnectionThatBrokeWhileIdle(t *testing.T) {
	t.Parallel()
	o := dev
	o.LookupTimeout = 4 * time.Second
	b := setup(t, o)
	l, source := b.through(t)
	b.source = source
	x := b.addAudience(t, shopSQL)
	read := func() {
		t.Helper()
		got, err := b.lookup(t, x.ID, nil, []string{"1", "2"})
		if err != nil || len(got) != 2 {
			t.Errorf("%+v, %v", got, err)
		}
	}
	read()
	pgtest.Exec(t, b.DB, "select pg_terminate_backend(pid) from pg_stat_activity where usename = $1", b.Role)
	read()
	l.closeConnections()
	read()
	l.limit.Store(0) // it forwards nothing: the connection is not dead, but blocked
	started := time.Now()
	_, err := b.lookup(t, x.ID, nil, []string{"1"})
	wantCode(t, err, CodeTimeout)
	if d := time.Since(started); d > b.options.LookupTimeout+30*time.Second {
		t.Errorf("it took %s", d)
	}
	l.limit.Store(-1)
	read()
}

// closeConnections closes open connections and accepts new ones.
func (l *line) closeConnections() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for _, c := range l.open {
		c.Close()
	}
	l.open = nil
}
