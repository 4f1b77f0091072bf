package exports

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"lemma"
	"lemma/pgtest"
)

const hereIs, thereIs = "file:///one", "file:///two"

// stores sets the store of two processes, each in a folder of its own.
func stores(t *testing.T) (here, there fixture) {
	t.Helper()
	here = setup(t)
	there = process(t, here.pool, t.TempDir(), here.ws)
	there.Links = here.Links
	here.Blobs.At, there.Blobs.At = hereIs, thereIs
	return here, there
}

// runs stores that a process with a store ran some time ago.
func (f fixture) runs(store string, ago time.Duration) {
	f.t.Helper()
	pgtest.Exec(f.t, f.pool, `insert into settings (name, value, started_at, seen_at) values ('LEMMA_BLOBS', $1, now(), now() - $2::interval)
		on conflict (name, value) do update set seen_at = excluded.seen_at`, store, ago)
}

// While processes have different stores no export is created or begun: its file could be where
// no reader finds it.
func TestNoExportsWithDifferentStores(t *testing.T) {
	here, there := stores(t)
	here.runs(hereIs, 0)
	x := here.create(NewExport{})
	here.runs(thereIs, 0)
	for _, f := range []fixture{here, there} {
		_, err := f.Create(t.Context(), f.ws, NewExport{ID: lemma.NewID(), Type: "suppressions", Format: "csv"})
		if fault, ok := errors.AsType[*lemma.Error](err); !ok || fault.Kind != lemma.Unavailable || fault.Code != "blob_stores_differ" {
			t.Errorf("created: %v", err)
		}
		if f.run() {
			t.Error("an export was begun")
		}
	}
	again, err := here.Create(t.Context(), here.ws, NewExport{ID: x.ID, Type: "suppressions", Format: "csv"})
	if err != nil || again.ID != x.ID {
		t.Errorf("a repeated request: %v", err)
	}
	here.runs(thereIs, time.Minute)
	here.create(NewExport{})
	if !here.run() || here.get(x.ID).Status != Completed {
		t.Errorf("the other process has ended: %+v", here.get(x.ID))
	}
}

// A process deletes no content of another store, which would leave its files there for ever.
func TestContentIsDeletedInItsStore(t *testing.T) {
	here, there := stores(t)
	x := here.create(NewExport{})
	here.run()
	own := there.create(NewExport{})
	there.run()
	here.must(here.Delete(t.Context(), here.ws, x.ID))
	here.must(here.Delete(t.Context(), here.ws, own.ID))
	there.must(there.Clean(t.Context()))
	pgtest.Exec(t, here.pool, `update blobs set clean_at = now(), ended_at = ended_at - interval '2 days'`)
	there.must(there.Clean(t.Context()))
	if n := len(here.files()); n != 1 {
		t.Fatalf("%d files before the process with the store cleans", n)
	}
	here.must(here.Clean(t.Context()))
	if n := len(here.files()); n != 0 {
		t.Errorf("%d files are left", n)
	}
}

// A committed file of another store is lost for this process, and a published one is not
// served by it.
func TestFilesOfAnotherStore(t *testing.T) {
	here, there := stores(t)
	here.suppress(2)
	x, _ := here.committed()
	if err := there.PublishAll(t.Context()); err == nil || there.get(x.ID).Status != Queued {
		t.Errorf("published: %v, %+v", err, there.get(x.ID))
	}
	pgtest.Exec(t, here.pool, `update exports set retry_at = now()`)
	there.run()
	if body, answer := there.download(x.ID); answer.StatusCode != http.StatusOK || body == "" {
		t.Errorf("the file of its own store: %d", answer.StatusCode)
	}
	if _, answer := here.download(x.ID); answer.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("the file of another store: %d", answer.StatusCode)
	}
}

// A process of the API begins an export that no worker has begun for long.
func TestTheAPIHelps(t *testing.T) {
	f := setup(t)
	x := f.create(NewExport{})
	if found, err := f.runOnce(t.Context(), f.cfg.Patience); found || err != nil {
		t.Errorf("begun at once: %v", err)
	}
	pgtest.Exec(t, f.pool, `update exports set retry_at = retry_at - interval '31 seconds'`)
	if found, err := f.runOnce(t.Context(), f.cfg.Patience); !found || err != nil || f.get(x.ID).Status != Completed {
		t.Errorf("not begun: %v, %+v", err, f.get(x.ID))
	}
}
