package suppression

import (
	"bytes"
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/pgtest"
)

// Lists that are restored from a dump are new, also when no trigger fires.
func TestListsThatAreRestored(t *testing.T) {
	l := newList(t, Config{})
	l.suppress(l.pool, 0, 1, 2)
	l.must(New(l.pool).SetTopic(t.Context(), l.ws, l.topic, lemma.Email, person(4), false))
	conn, err := l.pool.Acquire(t.Context())
	l.must(err)
	defer conn.Release()
	tables := []string{"suppressions", "topic_unsubscribes"}
	var dumps [2]bytes.Buffer
	for i, table := range tables {
		_, err = conn.Conn().PgConn().CopyTo(t.Context(), &dumps[i], "copy "+table+" to stdout")
		l.must(err)
		pgtest.Exec(t, l.pool, "delete from "+table)
	}
	l.suppress(l.pool, 9)
	f := l.load()
	l.want(10, 9)
	_, err = conn.Exec(t.Context(), "set session_replication_role = replica")
	l.must(err)
	for i, table := range tables {
		_, err = conn.Conn().PgConn().CopyFrom(t.Context(), &dumps[i], "copy "+table+" from stdin")
		l.must(err)
	}
	l.want(10, 0, 1, 2, 4, 9)
	if l.loaded() != f {
		t.Error("the filter is given up")
	}
}

// Another table or another database may repeat the numbers of transactions.
func TestListsOfAnotherDatabase(t *testing.T) {
	for _, table := range []string{"suppressions", "topic_unsubscribes"} {
		t.Run(table, func(t *testing.T) {
			l := newList(t, Config{})
			l.suppress(l.pool, 1)
			f := l.load()
			f.bits = newBloom(0, 10)
			l.want(10)
			pgtest.Exec(t, l.pool, "vacuum full "+table) // a new file with the same numbers
			l.want(10, 1)
			if l.loaded() == f {
				t.Error("the filter is kept")
			}
		})
	}
}

// A server that has recovered from a crash or that starts anew may repeat numbers of
// transactions. The first has the same start.
func TestAServerThatRecovers(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Cluster(t)
	pool := pgtest.DBIn(t, cluster)
	ws := pgtest.Workspace(t, pool)
	database := func() (now moment) {
		t.Helper()
		pgtest.Eventually(t, time.Minute, "the server answers", func() (ok bool) {
			var err error
			now, err = readSince(t.Context(), pool, ws, nothing, 0)
			return err == nil
		})
		return now
	}
	first := database()
	kill(t, pool)
	recovered := database()
	if recovered.database == first.database || strings.Split(recovered.database, "+")[0] != strings.Split(first.database, "+")[0] {
		t.Errorf("after recovery: %q, before: %q", recovered.database, first.database)
	}
	if err := cluster.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if restarted := database(); restarted.database == recovered.database {
		t.Errorf("after a start: %q, before: %q", restarted.database, recovered.database)
	}
}

// kill kills the process of a connection. The server ends all others then, and recovers.
func kill(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	killed, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer killed.Release()
	other, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Release()
	if err := syscall.Kill(int(killed.Conn().PgConn().PID()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, time.Minute, "the server has ended the other", func() bool { return other.Ping(t.Context()) != nil })
}

// What is added at once may be more than a check reads: the filter is given up then.
func TestMoreThanACheckReads(t *testing.T) {
	l := newList(t, Config{New: 5})
	l.suppress(l.pool, 100)
	f := l.load()
	l.suppress(l.pool, 0, 1, 2)
	l.must(New(l.pool).SetTopic(t.Context(), l.ws, l.topic, lemma.Email, person(3), false))
	l.suppress(l.pool, 4)
	l.want(10, 0, 1, 2, 3, 4)
	if l.loaded() != f {
		t.Error("the filter is given up for as much as a check reads")
	}
	now, err := readSince(t.Context(), l.pool, l.ws, f.since, l.checker.cfg.New)
	l.must(err)
	l.suppress(l.pool, 5, 6, 7)
	for _, i := range []int{8, 9, 10, 11} {
		l.must(New(l.pool).SetTopic(t.Context(), l.ws, l.topic, lemma.Email, person(i), false))
	}
	now, err = readSince(t.Context(), l.pool, l.ws, now.snapshot, l.checker.cfg.New)
	l.must(err)
	if n := len(now.added); n != 6 || !now.isMore {
		t.Errorf("%d entries are read", n)
	}
	l.want(12, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
	if l.loaded() == f {
		t.Error("the filter is kept")
	}
	l.want(12, people(0, 12)...) // no filter is stored
	if l.stored() == nil || l.load() == f {
		t.Error("the filter is not loaded again")
	}
	l.want(12, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
}

// A transaction that stays open does not make checks read again what was written beside it.
func TestATransactionThatStaysOpen(t *testing.T) {
	l := newList(t, Config{New: 100})
	late, err := l.pool.Begin(t.Context())
	l.must(err)
	defer func() { _ = late.Rollback(context.WithoutCancel(t.Context())) }()
	l.suppress(late, 0)
	f := l.load()
	want := []int{}
	for i := range 10 {
		var people []int
		for p := range 50 {
			people = append(people, 1+i*50+p)
		}
		l.suppress(l.pool, people...)
		want = append(want, people...)
		l.want(600, want...)
	}
	reader, err := l.pool.Begin(t.Context())
	l.must(err)
	defer func() { _ = reader.Rollback(context.WithoutCancel(t.Context())) }()
	entries := func() (read int) {
		l.must(reader.QueryRow(t.Context(), `select pg_stat_get_xact_tuples_returned('suppressions_written_by'::regclass)`).Scan(&read))
		return read
	}
	before := entries()
	if _, err = readSince(t.Context(), reader, l.ws, f.since, 100); err != nil {
		t.Fatal(err)
	}
	if read := entries() - before; read > 0 || l.loaded() != f {
		t.Errorf("a check reads %d entries again", read)
	}
	l.must(late.Commit(t.Context()))
	l.want(600, append([]int{0}, want...)...)
}
