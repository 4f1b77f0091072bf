package exports

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/blobs"
	"lemma/pgtest"
)

func TestCancelAndExpiry(t *testing.T) {
	f := setup(t)
	f.suppress(3)
	x := f.create(NewExport{})
	j, _, err := f.claim(t.Context(), 0)
	f.must(err)
	for range 2 {
		done, err := f.Cancel(t.Context(), f.ws, x.ID)
		if err != nil || done.Status != Cancelled {
			t.Fatalf("%+v, %v", done, err)
		}
	}
	content, err := f.prepare(t.Context(), j)
	if held, commit := f.commit(t.Context(), j, content); err != nil || commit != nil || held {
		t.Errorf("committed after the cancel: %v, %v, %v", err, commit, held)
	}
	f.clean()
	if len(f.files()) > 1 {
		t.Errorf("%v", f.files())
	}
	done := f.create(NewExport{})
	f.run()
	if _, err := f.Cancel(t.Context(), f.ws, done.ID); lemma.KindOf(err) != lemma.WrongStatus {
		t.Errorf("cancel after the end: %v", err)
	}
	link, err := f.Link(t.Context(), f.ws, done.ID, time.Minute)
	f.must(err)
	pgtest.Exec(t, f.pool, `update exports set expires_at = now() - interval '1 second' where id = $1`, done.ID)
	f.clean()
	if _, err := f.Get(t.Context(), f.ws, done.ID); lemma.KindOf(err) != lemma.NotFound {
		t.Errorf("it expired: %v", err)
	}
	if _, answer := f.fetch(link.URL); answer.StatusCode != http.StatusNotFound {
		t.Errorf("its link answers %d", answer.StatusCode)
	}
}

func TestLinks(t *testing.T) {
	f := setup(t)
	x := f.create(NewExport{})
	f.run()
	old, err := f.Link(t.Context(), f.ws, x.ID, -time.Second)
	f.must(err)
	good, err := f.Link(t.Context(), f.ws, x.ID, time.Minute)
	f.must(err)
	for name, path := range map[string]string{"expired": old.URL, "changed": good.URL + "A", "none": DownloadPath,
		"cut": good.URL[:len(good.URL)-2]} {
		if body, answer := f.fetch(path); answer.StatusCode != http.StatusNotFound || strings.Contains(body, "address") {
			t.Errorf("%s: %d %q", name, answer.StatusCode, body)
		}
	}
}

// A link expires by the clock of the database, whatever that of the process.
func TestALinkExpiresByTheClockOfTheDatabase(t *testing.T) {
	f := setup(t)
	x := f.create(NewExport{})
	f.run()
	now := time.Now().AddDate(0, -4, 0)
	pgtest.SetClock(t, f.pool, now)
	link, err := f.Link(t.Context(), f.ws, x.ID, time.Hour)
	f.must(err)
	if late := link.ExpiresAt.Sub(now.Add(time.Hour)).Abs(); late > time.Second {
		t.Errorf("the link expires at %s", link.ExpiresAt)
	}
	for after, want := range map[time.Duration]int{59 * time.Minute: http.StatusOK, time.Hour: http.StatusNotFound} {
		pgtest.SetClock(t, f.pool, now.Add(after))
		if _, answer := f.fetch(link.URL); answer.StatusCode != want {
			t.Errorf("after %s: %d", after, answer.StatusCode)
		}
	}
}

// Two requests of a workspace wait for the database: a third one is refused, and works on
// nothing.
func TestDownloadsWaitForAPlace(t *testing.T) {
	f := setup(t)
	x := f.create(NewExport{})
	f.run()
	link, err := f.Link(t.Context(), f.ws, x.ID, time.Minute)
	f.must(err)
	tx, err := f.pool.Begin(t.Context())
	f.must(err)
	_, err = tx.Exec(t.Context(), `lock table exports in access exclusive mode`)
	f.must(err)
	statuses := make(chan int, 3)
	for range 3 {
		go func() {
			_, answer := f.fetch(link.URL)
			if answer.StatusCode == http.StatusServiceUnavailable && answer.Header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
			statuses <- answer.StatusCode
		}()
	}
	select {
	case got := <-statuses:
		if got != http.StatusServiceUnavailable {
			t.Errorf("the third request: %d", got)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the third request waits for the database")
	}
	f.must(tx.Rollback(t.Context()))
	for range 2 {
		if got := <-statuses; got != http.StatusOK {
			t.Errorf("a request with a place: %d", got)
		}
	}
}

// broken is a Store that takes nothing.
type broken struct{ blobs.Store }

func (broken) Put(context.Context, string, io.Reader) error { return errors.New("no space") }

func TestAStoreThatFails(t *testing.T) {
	f := setup(t)
	f.suppress(100)
	x := f.create(NewExport{})
	f.Blobs.Store = broken{f.Blobs.Store}
	for i := range mostFailures {
		if got := f.get(x.ID); got.Status == Failed || !f.run() {
			t.Fatalf("after %d failures: %+v", i, got)
		}
		pgtest.Exec(t, f.pool, `update exports set retry_at = now()`)
	}
	if got := f.get(x.ID); got.Status != Failed || *got.StatusReason != "store_unavailable" || f.run() {
		t.Errorf("%+v", got)
	}
}

// stopStore stops the worker that stores the first file.
type stopStore struct {
	blobs.Store
	files  *atomic.Int32
	at, on chan struct{}
}

func (s stopStore) Put(ctx context.Context, name string, r io.Reader) error {
	if s.files.Add(1) == 1 {
		close(s.at)
		<-s.on
	}
	return s.Store.Put(ctx, name, r)
}

// The exports of one workspace leave a worker of the process to the others.
func TestOneWorkspaceDoesNotHoldAllWorkers(t *testing.T) {
	f := setup(t)
	store := stopStore{f.Blobs.Store, &atomic.Int32{}, make(chan struct{}), make(chan struct{})}
	f.Blobs.Store = store
	f.create(NewExport{})
	f.create(NewExport{})
	done := make(chan error)
	go func() {
		_, err := f.RunOnce(t.Context())
		done <- err
	}()
	<-store.at
	if f.run() {
		t.Error("the workspace has both workers")
	}
	other := f
	other.ws = pgtest.Workspace(t, f.pool)
	x := other.create(NewExport{})
	if !f.run() || other.get(x.ID).Status != Completed {
		t.Error("the export of another workspace waits")
	}
	close(store.on)
	f.must(<-done)
	if !f.run() {
		t.Error("the second export waits when the first has ended")
	}
}

// Expired exports that cannot be deleted stop none that expired after them, nor the deletion
// of content.
func TestExpiredExportsThatCannotBeDeleted(t *testing.T) {
	f := setup(t)
	f.expirePage = 2
	var all []Export
	for range 5 {
		all = append(all, f.create(NewExport{}))
		f.run()
	}
	pgtest.Exec(t, f.pool, `update exports set expires_at = now() - interval '1 hour' + (created_at - (select min(created_at) from exports))`)
	pgtest.Exec(t, f.pool, `create table uses (workspace_id uuid, id uuid,
		foreign key (workspace_id, id) references exports (workspace_id, id))`)
	pgtest.Exec(t, f.pool, `insert into uses select workspace_id, id from exports order by expires_at limit 3`)
	if err := f.Clean(t.Context()); err == nil {
		t.Error("no error")
	}
	left := pgtest.Column[uuid.UUID](t, f.pool, `select id from exports order by created_at`)
	if !slices.Equal(left, []uuid.UUID{all[0].ID, all[1].ID, all[2].ID}) {
		t.Errorf("%d are left", len(left))
	}
	if files := f.files(); len(files) != 3 {
		t.Errorf("%d files are left", len(files))
	}
}

// Two processes that expire exports do not wait for each other, and an export that was kept
// longer meanwhile stays.
func TestAnExportThatAnotherProcessExpires(t *testing.T) {
	f := setup(t)
	first, second := f.create(NewExport{}), f.create(NewExport{})
	for f.run() {
	}
	f.must(f.expire(t.Context(), blobs.Owner{Workspace: f.ws, ID: first.ID}))
	if got := f.get(first.ID); got.Status != Completed {
		t.Errorf("it has not expired: %+v", got)
	}
	pgtest.Exec(t, f.pool, `update exports set expires_at = now() - interval '1 second'`)
	tx, err := f.pool.Begin(t.Context())
	f.must(err)
	_, err = tx.Exec(t.Context(), `select from exports where id = $1 for update`, first.ID)
	f.must(err)
	cleaned := make(chan error, 1)
	go func() { cleaned <- f.Clean(context.Background()) }()
	pgtest.Eventually(t, time.Minute, "the other export is deleted", func() bool {
		return pgtest.One[int](t, f.pool, `select count(*)::int from exports where id = $1`, second.ID) == 0 || pgtest.LockWaits(t, f.pool) > 0
	})
	if pgtest.LockWaits(t, f.pool) > 0 {
		t.Error("it waits for another process")
	}
	f.must(tx.Rollback(t.Context()))
	f.must(<-cleaned)
	f.clean()
	if left := pgtest.One[int](t, f.pool, `select count(*)::int from exports`); left != 0 {
		t.Errorf("%d are left", left)
	}
}

// An export that was committed or has ended since its claim failed is neither postponed nor failed.
func TestAnExportThatGoesOnIsNotPostponed(t *testing.T) {
	f := setup(t)
	x, j := f.committed()
	pgtest.Exec(t, f.pool, `update exports set failures = $1 where id = $2`, mostFailures-1, x.ID)
	f.must(f.postpone(t.Context(), j.owner(), errClaim))
	f.must(f.publish(t.Context(), j.owner()))
	if got := f.get(x.ID); got.Status != Completed {
		t.Errorf("%+v", got)
	}
	f.must(f.postpone(t.Context(), j.owner(), errClaim))
	if text, _ := f.download(x.ID); text == "" {
		t.Error("its file is gone")
	}
}

// An export that cannot be claimed does not keep others from being written, and fails in the
// end.
func TestAnExportThatCannotBeClaimed(t *testing.T) {
	f := setup(t)
	bad, good := f.create(NewExport{}), f.create(NewExport{})
	pgtest.Exec(t, f.pool, `update exports set filters = '[]', retry_at = now() - interval '1 hour' where id = $1`, bad.ID)
	if _, err := f.RunOnce(t.Context()); err == nil {
		t.Fatal("it was claimed")
	}
	if !f.run() || f.get(good.ID).Status != Completed {
		t.Error("the other one was not written")
	}
	for range mostFailures - 1 {
		pgtest.Exec(t, f.pool, `update exports set retry_at = now() where id = $1`, bad.ID)
		if _, err := f.RunOnce(t.Context()); err == nil {
			t.Error("it was claimed")
		}
	}
	got := pgtest.One[string](t, f.pool, `select status || ' ' || status_reason from exports where id = $1`, bad.ID)
	if got != "failed internal" {
		t.Error(got)
	}
}
