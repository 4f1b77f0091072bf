package archive_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/archive"
	"lemma/blobs"
	"lemma/migrations"
	"lemma/pgtest"
	"lemma/retention"
)

var month = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const partition = "batch_log_2026_01"

type fixture struct {
	*archive.Archive
	t     *testing.T
	pool  *pgxpool.Pool
	blobs *blobs.Blobs
	dir   string
}

// setup is a database with a detached partition of 1,000 rows.
func setup(t *testing.T) fixture {
	t.Helper()
	t.Parallel()
	pool, dir := pgtest.DB(t), t.TempDir()
	store, err := blobs.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, pool, `create table `+partition+` (like batch_log including all)`)
	pgtest.Exec(t, pool, `
		insert into `+partition+` (workspace_id, batch_id, event, detail)
		select gen_random_uuid(), gen_random_uuid(), 'claimed', case n when 7 then E'a "quoted",\nline' else 'row ' || n end
		from generate_series(1, 1000) n`)
	b := blobs.New(blobs.Deps{Pool: pool, Store: store})
	return fixture{archive.New(pool, b), t, pool, b, dir}
}

func (f fixture) store() error { return f.Store(f.t.Context(), f.found()) }

// found is the partition as it is now.
func (f fixture) found() migrations.Partition {
	f.t.Helper()
	all, err := migrations.Months(f.t.Context(), f.pool)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, p := range all {
		if p.Name() == partition {
			return p
		}
	}
	f.t.Fatal("no partition")
	return migrations.Partition{}
}

func (f fixture) files() (all []string) {
	all, _ = filepath.Glob(filepath.Join(f.dir, "archive", "batch_log", "*"))
	return all
}

// A table that is dropped can be read again, into a table.
func TestADroppedTableIsReadAgain(t *testing.T) {
	f := setup(t)
	for range 2 {
		if err := f.store(); err != nil {
			t.Fatal(err)
		}
	}
	before := pgtest.One[string](t, f.pool, `select md5(string_agg(b::text, '|' order by batch_id)) from `+partition+` b`)
	pgtest.Exec(t, f.pool, `drop table `+partition)
	list, err := f.List(t.Context())
	if err != nil || len(list) != 1 || list[0].RowCount != 1000 || list[0].Partition != partition || list[0].Month != month {
		t.Fatalf("%+v, %v", list, err)
	}
	var text bytes.Buffer
	if err := f.Read(t.Context(), partition, 0, &text); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, f.pool, `create table again (like batch_log)`)
	conn, err := f.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Conn().PgConn().CopyFrom(t.Context(), &text, "copy again from stdin (format csv, header)"); err != nil {
		t.Fatal(err)
	}
	if after := pgtest.One[string](t, f.pool, `select md5(string_agg(b::text, '|' order by batch_id)) from again b`); after != before {
		t.Error("the rows differ")
	}
	if err := f.Read(t.Context(), "batch_log_2026_02", 0, io.Discard); lemma.KindOf(err) != lemma.NotFound {
		t.Errorf("what was not archived: %v", err)
	}
	if n := len(f.files()); n != 1 {
		t.Errorf("%d files", n)
	}
}

// run is one of retention, with the archive.
func (f fixture) run() retention.Done {
	c := retention.Config{BatchLog: retention.Least, Archive: f.Store}
	done, _ := retention.New(f.pool, slog.New(slog.DiscardHandler), retention.NewMetrics(nil), c).Run(f.t.Context())
	return done
}

// Retention archives a month before it drops it, and keeps it while it cannot.
func TestRetentionArchives(t *testing.T) {
	f := setup(t)
	pgtest.Exec(t, f.pool, `drop table `+partition)
	if err := migrations.Partitions(t.Context(), f.pool, month); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, f.pool, `insert into batch_log (workspace_id, batch_id, event)
		values (gen_random_uuid(), '019b8000-0000-7000-8000-000000000000', 'claimed')`)
	if n := pgtest.One[int](t, f.pool, `select count(*)::int from `+partition); n != 1 {
		t.Fatalf("%d rows in the partition", n)
	}
	pgtest.SetClock(t, f.pool, month.AddDate(0, 6, 0))
	whole := f.blobs.Store
	f.blobs.Store = cutting{whole}
	if done := f.run(); slices.Contains(done.Dropped, partition) {
		t.Error("dropped without an archive")
	}
	f.blobs.Store = whole
	if done := f.run(); !slices.Contains(done.Dropped, partition) {
		t.Errorf("not dropped: %+v", done)
	}
	var text bytes.Buffer
	if err := f.Read(t.Context(), partition, 0, &text); err != nil || strings.Count(text.String(), "\n") != 2 {
		t.Errorf("%v: %s", err, text.String())
	}
}

// A month whose partition was archived and dropped while the clock of the database was ahead is
// archived again, with the rows that were written afterwards. A slow process that still has the first
// one to archive and to drop leaves the second.
func TestAPartitionThatIsCreatedAgain(t *testing.T) {
	f := setup(t)
	slow := f.found()
	pgtest.Exec(t, f.pool, `drop table `+partition)
	if err := f.Store(t.Context(), slow); err != nil {
		t.Errorf("one that was dropped: %v", err)
	}
	for i, at := range []time.Time{month.AddDate(0, 0, 14), month.AddDate(0, 0, 15)} {
		pgtest.SetClock(t, f.pool, at)
		f.run()
		pgtest.Exec(t, f.pool, `insert into batch_log (workspace_id, batch_id, event, detail)
			values (gen_random_uuid(), '019b8000-0000-7000-8000-000000000000', 'claimed', $1)`, []string{"before", "after"}[i])
		if err := f.Store(t.Context(), slow); err != nil {
			t.Errorf("one that was dropped: %v", err)
		}
		if err := f.Store(t.Context(), f.found()); err == nil {
			t.Error("an attached partition is archived")
		}
		stays := func(context.Context, pgx.Tx) (bool, error) { return false, nil }
		if done, err := migrations.Drop(t.Context(), f.pool, slow, stays); !done || err != nil {
			t.Errorf("dropped %v, %v", done, err)
		}
		pgtest.SetClock(t, f.pool, month.AddDate(0, 3+3*i, 0))
		if done := f.run(); !slices.Contains(done.Dropped, partition) {
			t.Fatalf("not dropped: %+v", done)
		}
	}
	for number, want := range []string{1: "before", 2: "after"} {
		var text bytes.Buffer
		err := f.Read(t.Context(), partition, number, &text)
		if (number == 0) != (err != nil) || strings.Count(text.String(), "\n") != min(2*number, 2) ||
			!strings.Contains(text.String(), want) {
			t.Errorf("%d: %v: %s", number, err, text.String())
		}
	}
	if all, err := f.List(t.Context()); err != nil || len(all) < 2 || all[0].Number != 1 || all[1].Number != 2 {
		t.Errorf("%+v, %v", all, err)
	}
}

// silent is a Store that does not say what it has.
type silent struct{ blobs.Store }

func (silent) Size(context.Context, string) (int64, error) { return 0, errors.New("503 slow down") }

// An archive that was committed, and that the store of today does not have, is stored again while the
// partition is there.
func TestACommittedArchiveInAnotherStore(t *testing.T) {
	f := setup(t)
	f.blobs.Store = silent{f.blobs.Store}
	if err := f.store(); err == nil {
		t.Fatal("it is published unchecked")
	}
	other, err := blobs.OpenFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f.blobs = blobs.New(blobs.Deps{Pool: f.pool, Store: other, At: "another"})
	f.Archive = archive.New(f.pool, f.blobs)
	for range 2 {
		if err := f.store(); err != nil {
			t.Fatal(err)
		}
	}
	var text bytes.Buffer
	if err := f.Read(t.Context(), partition, 0, &text); err != nil || strings.Count(text.String(), "\n") != 1002 {
		t.Errorf("%v: %d lines", err, strings.Count(text.String(), "\n"))
	}
	all := pgtest.One[string](t, f.pool, `select string_agg(status || ' ' || store, ', ' order by id) from blobs`)
	if all != "ended , published another" {
		t.Error(all)
	}
}

// cutting is a Store that loses the end of what it takes.
type cutting struct{ blobs.Store }

func (c cutting) Put(ctx context.Context, name string, r io.Reader) error {
	all, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return c.Store.Put(ctx, name, bytes.NewReader(all[:len(all)-20]))
}

func TestAStoreThatLosesDataIsReported(t *testing.T) {
	f := setup(t)
	whole := f.blobs.Store
	f.blobs.Store = cutting{whole}
	if err := f.store(); err == nil {
		t.Fatal("archived")
	}
	if list, err := f.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	f.blobs.Store = whole
	if err := f.store(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.blobs.Clean(t.Context()); err != nil || len(f.files()) != 1 {
		t.Errorf("%v, %v", f.files(), err)
	}
}

// dying is a Store whose process crashes in the middle of a write.
type dying struct{ blobs.Store }

var errCrashed = errors.New("crashed")

func (d dying) Put(ctx context.Context, name string, _ io.Reader) error {
	_ = d.Store.Put(ctx, name, strings.NewReader("half"))
	return errCrashed
}

func TestAnotherProcessGoesOn(t *testing.T) {
	f := setup(t)
	whole := f.blobs.Store
	f.blobs.Store = dying{whole}
	if err := f.store(); !errors.Is(err, errCrashed) {
		t.Fatal(err)
	}
	f.blobs.Store = whole
	// A process that crashes ends no attempt: its lease expires.
	pgtest.Exec(t, f.pool, `update blobs set status = 'registered', ended_at = null, clean_at = null, leased_by = 'crashed',
		lease_until = now() + interval '1 minute'`)
	if err := f.store(); err == nil {
		t.Error("two processes archive the same partition")
	}
	pgtest.Exec(t, f.pool, `update blobs set lease_until = now() - interval '1 second'`)
	if err := f.store(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.blobs.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	files := f.files()
	if len(files) != 1 {
		t.Fatalf("%v", files)
	}
	if info, err := os.Stat(files[0]); err != nil || info.Size() == 4 {
		t.Errorf("the half file stays: %v", err)
	}
}
