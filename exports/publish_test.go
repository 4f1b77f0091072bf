package exports

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lemma"
	"lemma/blobs"
	"lemma/pgtest"
)

// committed is an export whose process crashed after the commit.
func (f fixture) committed() (Export, job) {
	f.t.Helper()
	x := f.create(NewExport{})
	j, _, err := f.claim(f.t.Context(), 0)
	f.must(err)
	content, err := f.prepare(f.t.Context(), j)
	f.must(err)
	if held, err := f.commit(f.t.Context(), j, content); err != nil || !held {
		f.t.Fatal(held, err)
	}
	return x, j
}

func (f fixture) lose(j job) {
	f.t.Helper()
	f.must(os.Remove(filepath.Join(f.dir, j.attempt.Name)))
}

// An export whose committed file the store has lost is written again, and fails if that is
// of no use.
func TestALostFileIsWrittenAgain(t *testing.T) {
	f := setup(t)
	f.suppress(3)
	x, j := f.committed()
	f.lose(j)
	if err := f.PublishAll(t.Context()); err == nil {
		t.Error("a lost file is no error")
	}
	if got := f.get(x.ID); got.Status != Queued || *got.StatusReason != "store_unavailable" {
		t.Errorf("%+v", got)
	}
	pgtest.Exec(t, f.pool, `update exports set retry_at = now()`)
	f.run()
	if got := f.get(x.ID); got.Status != Completed || got.RowCount != 3 || len(f.files()) != 1 {
		t.Errorf("%+v with %v", got, f.files())
	}
	x, j = f.committed()
	f.lose(j)
	pgtest.Exec(t, f.pool, `update exports set failures = $1 where id = $2`, mostFailures-1, x.ID)
	_ = f.PublishAll(t.Context())
	if got := f.get(x.ID); got.Status != Failed {
		t.Errorf("%+v", got)
	}
}

// A file that is found lost late, after the export was written again, is not dropped.
func TestALostFileIsThatOfItsAttempt(t *testing.T) {
	f := setup(t)
	x, _ := f.committed()
	f.must(f.writeAgain(t.Context(), blobs.Owner{Workspace: f.ws, ID: x.ID}, lemma.NewID()))
	if got := f.get(x.ID); got.Status != Publishing {
		t.Errorf("%+v", got)
	}
}

// down is a Store that does not answer about the files of a folder.
type down struct {
	blobs.Store
	folder string
}

var errDown = errors.New("the store is down")

func (s down) Size(ctx context.Context, name string) (int64, error) {
	if strings.HasPrefix(name, s.folder) {
		return 0, errDown
	}
	return s.Store.Size(ctx, name)
}

// Exports that cannot be published now do not hide others, and are tried again later.
func TestExportsThatCannotBePublishedHideNoOther(t *testing.T) {
	f := setup(t)
	_, first := f.committed()
	pgtest.Exec(t, f.pool, `
		with x as (
			insert into exports (workspace_id, id, type, format, status, retry_at)
			select $1, gen_random_uuid(), 'suppressions', 'csv', 'publishing', now() - interval '1 hour' from generate_series(1, 100) returning id
		)
		insert into blobs (workspace_id, id, owner_id, store, name, status, bytes, sha256)
		select $1, gen_random_uuid(), x.id, '', 'x/' || x.id, 'committed', 1, '' from x`, f.ws)
	f.Blobs.Store = down{f.Blobs.Store, "x/"}
	for range 2 {
		_ = f.PublishAll(t.Context())
	}
	if got := f.get(first.ID); got.Status != Completed {
		t.Errorf("%+v", got)
	}
	if n := pgtest.One[int](t, f.pool, `select count(*)::int from exports where status = 'publishing' and retry_at > now()`); n != 100 {
		t.Errorf("%d wait to be published", n)
	}
}

// An export that is being published can be cancelled: the publisher then publishes nothing.
// It locks the export before the attempt, as the cancellation does.
func TestCancelWhilePublishing(t *testing.T) {
	f := setup(t)
	x, j := f.committed()
	tx, err := f.pool.Begin(t.Context())
	f.must(err)
	defer tx.Rollback(context.Background())
	f.must(lock(t.Context(), tx, j.owner()))
	published := make(chan error, 1)
	go func() { published <- f.publish(context.Background(), j.owner()) }()
	pgtest.WaitForLocks(t, f.pool, 1)
	f.must(f.Blobs.Drop(t.Context(), tx, j.owner()))
	_, err = tx.Exec(t.Context(), `update exports set status = 'cancelled', finished_at = now(), expires_at = now() where id = $1`, x.ID)
	f.must(err)
	f.must(tx.Commit(t.Context()))
	f.must(<-published)
	if got := f.get(x.ID); got.Status != Cancelled {
		t.Errorf("%+v", got)
	}
	x, j = f.committed()
	if got, err := f.Cancel(t.Context(), f.ws, x.ID); err != nil || got.Status != Cancelled {
		t.Errorf("%+v, %v", got, err)
	}
	f.must(f.publish(t.Context(), j.owner()))
	if _, err := f.Blobs.Published(t.Context(), j.owner()); lemma.KindOf(err) != lemma.NotFound {
		t.Error("the file of a cancelled export is published", err)
	}
	f.clean()
	if files := f.files(); len(files) != 0 {
		t.Errorf("files: %v", files)
	}
}

// What a worker writes while its export is cancelled waits for the cancellation, and neither
// is the victim of a deadlock.
func TestCancelWhileAWorkerWrites(t *testing.T) {
	for name, write := range map[string]func(fixture, job) error{
		"progress": func(f fixture, j job) error {
			_, err := f.saveProgress(context.Background(), j)
			return err
		},
		"commit": func(f fixture, j job) error {
			_, err := f.commit(context.Background(), j, blobs.Content{SHA256: []byte{}})
			return err
		},
		"failure": func(f fixture, j job) error { return f.fail(context.Background(), j, errDown) },
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			f.create(NewExport{})
			j, _, err := f.claim(t.Context(), 0)
			f.must(err)
			tx, err := f.pool.Begin(t.Context())
			f.must(err)
			defer tx.Rollback(context.Background())
			f.must(lock(t.Context(), tx, j.owner()))
			wrote := make(chan error, 1)
			go func() { wrote <- write(f, j) }()
			pgtest.WaitForLocks(t, f.pool, 1)
			f.must(f.Blobs.Drop(t.Context(), tx, j.owner()))
			f.must(tx.Commit(t.Context()))
			f.must(<-wrote)
			if got := f.get(j.ID); got.Status != Running || got.StatusReason != nil {
				t.Errorf("%+v", got)
			}
		})
	}
}
