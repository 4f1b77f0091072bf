package suppression

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"lemma"
	"lemma/pgtest"
)

// A filter is stored when more was added than half of what a check reads, and again after
// so much more. It has capacity for what a check reads.
func TestWhenAFilterIsStored(t *testing.T) {
	l := newList(t, Config{New: 20})
	l.suppress(l.pool, people(0, 8)...)
	l.must(New(l.pool).SetTopic(t.Context(), l.ws, l.topic, lemma.Email, person(4), false))
	if l.stored() != nil {
		t.Error("a filter of a short list is stored")
	}
	l.must(New(l.pool).SetTopic(t.Context(), l.ws, l.topic, lemma.Email, person(3), false))
	first := l.stored()
	if first == nil || first.bits.pairs != 10 {
		t.Fatalf("%+v is stored", first)
	}
	l.suppress(l.pool, people(8, 17)...)
	if again := l.stored(); again.since != first.since {
		t.Error("the filter is stored early again")
	}
	for from := 17; from < 200; from += 10 {
		before := l.stored()
		l.suppress(l.pool, people(from, from+10)...)
		now := l.stored()
		if now.since == before.since || now.bits.capacity-now.bits.pairs < l.checker.most(now.bits.pairs) {
			t.Errorf("the filter of %d pairs has a capacity of %d", now.bits.pairs, now.bits.capacity)
		}
		for i := range from + 10 {
			if !now.bits.has(pair{key: KeyOf(lemma.Email, person(i))}) {
				t.Fatalf("the filter has not %d of %d", i, from+10)
			}
		}
	}
	for _, i := range []int{3, 4} {
		if !l.stored().bits.has(pair{l.topic, KeyOf(lemma.Email, person(i))}) {
			t.Errorf("the filter has not %d, which has unsubscribed", i)
		}
	}
}

// A filter that has capacity is not made anew: what was removed stays in it, until it is.
func TestAFilterIsMadeAnewForMore(t *testing.T) {
	l := newList(t, Config{New: 10})
	l.suppress(l.pool, people(0, 1000)...)
	l.stored()
	gone := pair{key: KeyOf(lemma.Email, person(0))}
	pgtest.Exec(t, l.pool, `delete from suppressions where address = $1`, person(0))
	l.suppress(l.pool, people(1000, 1100)...)
	if f := l.stored(); !f.bits.has(gone) || f.bits.pairs < 1095 {
		t.Errorf("the filter of %d pairs is made anew", f.bits.pairs)
	}
	l.suppress(l.pool, people(1100, 1300)...)
	if f := l.stored(); f.bits.has(gone) || f.bits.capacity < 1299*5/4 {
		t.Errorf("the filter with a capacity of %d is not made anew", f.bits.capacity)
	}
}

// Rows that another stores are not read: of a dump, of another form, or not all.
func TestFiltersThatAreNotRead(t *testing.T) {
	for name, sql := range map[string]string{
		"restored":          "",
		"of another form":   `update suppression_filters set form = 2`,
		"without a part":    `update suppression_filters set parts = 2`,
		"without the first": `update suppression_filters set part = 1, parts = 2`,
		"too short":         `update suppression_filters set bits = ''`,
	} {
		t.Run(name, func(t *testing.T) {
			l := newList(t, Config{New: 10})
			l.suppress(l.pool, people(0, 20)...)
			if l.stored() == nil {
				t.Fatal("nothing is stored")
			}
			if sql == "" {
				l.restoreFilter()
			} else {
				pgtest.Exec(t, l.pool, sql)
			}
			f, err := readStored(t.Context(), l.pool, l.ws, func(int) bool { return true })
			if f != nil || err != nil {
				t.Errorf("%+v is read (%v)", f, err)
			}
			l.want(30, people(0, 20)...)
			if l.want(30, people(0, 20)...); l.loaded() != nil || l.checker.memory != 0 {
				t.Errorf("%d bytes are taken", l.checker.memory)
			}
		})
	}
}

// restoreFilter restores the stored filter from a dump, over a connection that has stored one.
func (l listed) restoreFilter() {
	l.Helper()
	conn, err := l.pool.Acquire(l.Context())
	l.must(err)
	defer conn.Release()
	const columns = "suppression_filters (workspace_id, part, parts, form, pairs, capacity, bits)"
	var dump bytes.Buffer
	_, err = conn.Conn().PgConn().CopyTo(l.Context(), &dump, "copy "+columns+" to stdout")
	l.must(err)
	_, err = conn.Exec(l.Context(), `begin; select set_config('lemma.filter_snapshot', '5:5:', true); commit;
		delete from suppression_filters; set session_replication_role = replica`)
	l.must(err)
	_, err = conn.Conn().PgConn().CopyFrom(l.Context(), &dump, "copy "+columns+" from stdin")
	l.must(err)
	_, err = conn.Exec(l.Context(), "reset session_replication_role")
	l.must(err)
}

// A filter that is restored is replaced, also if it was that of a longer list.
func TestARestoredFilterIsReplaced(t *testing.T) {
	l := newList(t, Config{New: 10})
	l.suppress(l.pool, people(0, 20)...)
	l.stored()
	pgtest.Exec(t, l.pool, `update suppression_filters set pairs = 1000000`)
	l.restoreFilter()
	l.suppress(l.pool, 20)
	if f := l.stored(); f == nil || !f.bits.has(pair{key: KeyOf(lemma.Email, person(20))}) {
		t.Errorf("%+v is stored", f)
	}
}

// The transaction that stores a filter is younger than all that its snapshot sees.
func TestTheTransactionOfAFilterIsYounger(t *testing.T) {
	l := newList(t, Config{New: 10})
	for n := range 3 {
		l.suppress(l.pool, people(n*20, n*20+20)...)
		l.stored()
		younger := pgtest.One[bool](t, l.pool, `
			select bool_and(pg_snapshot_xmax(seen::pg_snapshot)::text::bigint <= xmin::text::bigint
				and not pg_visible_in_snapshot(xmin::text::xid8, seen::pg_snapshot)) from suppression_filters`)
		if !younger {
			t.Error("its snapshot sees younger ones")
		}
	}
}

// What is added while a filter is being stored is not in it, and is read by each process.
func TestAnAdditionWhileAFilterIsStored(t *testing.T) {
	l := newList(t, Config{New: 10})
	l.suppress(l.pool, people(100, 120)...)
	tx, err := l.pool.Begin(t.Context())
	l.must(err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	l.must(l.checker.store(t.Context(), tx, grownList{l.ws, nothing}))
	l.suppress(l.pool, 1)
	other, err := l.pool.Begin(t.Context())
	l.must(err)
	defer func() { _ = other.Rollback(context.WithoutCancel(t.Context())) }()
	l.must(l.checker.store(t.Context(), other, grownList{l.ws, nothing})) // which finds the first, and does not wait
	l.must(tx.Commit(t.Context()))
	l.must(other.Commit(t.Context()))
	f, err := readStored(t.Context(), l.pool, l.ws, func(int) bool { return true })
	l.must(err)
	if f.bits.has(pair{key: KeyOf(lemma.Email, person(1))}) {
		t.Error("the filter has what was added after its snapshot")
	}
	l.load()
	l.want(10, 1)
	l.must(l.checker.StoreFilters(t.Context())) // not due
	third, err := l.pool.Begin(t.Context())
	l.must(err)
	defer func() { _ = third.Rollback(context.WithoutCancel(t.Context())) }()
	l.must(l.checker.store(t.Context(), third, grownList{l.ws, nothing})) // another process has stored it since
	l.must(third.Commit(t.Context()))
	if again, err := readStored(t.Context(), l.pool, l.ws, func(int) bool { return true }); err != nil || again.since != f.since {
		t.Errorf("the filter is stored twice (%v)", err)
	}
}

// A stored filter is of the database that it was read from, not of that of the first check.
func TestAnotherDatabaseAfterAFilterWasRead(t *testing.T) {
	l := newList(t, Config{New: 10})
	l.suppress(l.pool, people(0, 20)...)
	f := l.stored()
	pgtest.Exec(t, l.pool, "vacuum full suppressions")
	now, err := readSince(t.Context(), l.pool, l.ws, f.since, 10)
	l.must(err)
	if _, ok := f.pass(now, Message{Channel: lemma.Email}, nil); ok {
		t.Error("the filter is used")
	}
}

// A filter of several parts is read as it was stored.
func TestAFilterOfSeveralParts(t *testing.T) {
	l := newList(t, Config{New: 10})
	bits := newBloom(1_000_000, 0)
	for _, p := range pairsFrom(0, 1000) {
		bits.add(p)
	}
	tx, err := l.pool.Begin(t.Context())
	l.must(err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	l.must(write(t.Context(), tx, l.ws, bits, nothing))
	read := func() *filter {
		f, err := readStored(t.Context(), tx, l.ws, func(size int) bool { return size >= bits.size() && size < bits.size()+1<<20 })
		l.must(err)
		return f
	}
	if f := read(); f.since != nothing || !slices.Equal(f.bits.blocks, bits.blocks) ||
		f.bits.pairs != bits.pairs || f.bits.capacity != bits.capacity {
		t.Errorf("%d blocks are read, want %d", len(f.bits.blocks), len(bits.blocks))
	}
	for name, sql := range map[string]string{
		"the last part is gone": `delete from suppression_filters where part = parts - 1`,
		"a part is short":       `update suppression_filters set bits = substr(bits, 1, 640) where part = 1`,
		"a part is of another filter": `select set_config('lemma.filter_snapshot', '5:5:', true);
			with old as (delete from suppression_filters where part = 1 returning *), gone as (select count(*) from old)
			insert into suppression_filters (workspace_id, part, parts, form, pairs, capacity, bits)
			select workspace_id, part + gone.count - 1, parts, form, pairs, capacity, bits from old, gone`,
	} {
		_, err := tx.Exec(t.Context(), "savepoint s; "+sql)
		l.must(err)
		if f := read(); f != nil {
			t.Errorf("a filter is read of which %s", name)
		}
		_, err = tx.Exec(t.Context(), "rollback to s")
		l.must(err)
	}
}

// A filter that was stored before a crash of the server holds after it, and finds what is
// added then.
func TestAFilterAfterACrash(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Cluster(t)
	l := newListIn(t, pgtest.DBIn(t, cluster), Config{New: 10})
	l.suppress(l.pool, people(0, 20)...)
	before := l.stored()
	kill(t, l.pool)
	var f *filter
	pgtest.Eventually(t, time.Minute, "the server answers", func() bool {
		var err error
		f, err = readStored(t.Context(), l.pool, l.ws, func(int) bool { return true })
		return err == nil
	})
	if f == nil || f.since != before.since || f.database == before.database || strings.TrimSpace(f.database) == "" {
		t.Fatalf("%+v is read, before: %+v", f, before)
	}
	l.suppress(l.pool, 21)
	l.load()
	l.want(30, append(people(0, 20), 21)...)
}

// A workspace whose filter is not stored does not stop the others.
func TestAFilterThatIsNotStored(t *testing.T) {
	l := newList(t, Config{New: 10})
	var all []listed
	for range 3 {
		of := l
		of.ws = pgtest.Workspace(t, l.pool)
		of.suppress(l.pool, people(0, 20)...)
		all = append(all, of)
	}
	slices.SortFunc(all, func(a, b listed) int { return bytes.Compare(a.ws[:], b.ws[:]) })
	pgtest.Exec(t, l.pool, `alter table suppression_filters add check (workspace_id <> '`+all[1].ws.String()+`')`)
	if err := l.checker.StoreFilters(t.Context()); err == nil || !strings.Contains(err.Error(), all[1].ws.String()) {
		t.Errorf("the error is %v", err)
	}
	for i, of := range all {
		f, err := readStored(t.Context(), l.pool, of.ws, func(int) bool { return true })
		l.must(err)
		if (f == nil) != (i == 1) {
			t.Errorf("filter %d is %v", i, f)
		}
	}
}
