package exports

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"lemma"
	"lemma/exports/format"
	"lemma/pgtest"
)

// The files of a workspace have a bound, since all share the store: no export is created beyond it,
// and one that waits fails. Deleted exports make room. A repeated request is answered.
func TestTheSpaceOfAWorkspace(t *testing.T) {
	f := setup(t)
	f.suppress(20)
	first, second := f.create(NewExport{}), f.create(NewExport{})
	waits := NewExport{ID: lemma.NewID(), Type: "suppressions", Format: format.CSV}
	if !f.run() || f.get(first.ID).Status != Completed {
		t.Fatalf("%+v", f.get(first.ID))
	}
	f.cfg.Space = f.get(first.ID).ByteCount
	if f.run(); f.get(second.ID).Status != Failed || f.get(second.ID).Attempts != 0 || *f.get(second.ID).StatusReason != "export_space_used" {
		t.Errorf("one that waited, with the space used: %+v", f.get(second.ID))
	}
	n := NewExport{ID: lemma.NewID(), Type: "suppressions", Format: format.CSV}
	_, err := f.Create(t.Context(), f.ws, n)
	if refused, ok := errors.AsType[*lemma.Error](err); !ok || refused.Code != "export_space_used" || refused.Kind != lemma.Conflict {
		t.Errorf("another: %v", err)
	}
	n.ID = first.ID
	if _, err := f.Create(t.Context(), f.ws, n); err != nil {
		t.Errorf("the first again: %v", err)
	}
	f.must(f.Delete(t.Context(), f.ws, first.ID))
	if _, err := f.Create(t.Context(), f.ws, waits); err == nil || !strings.Contains(err.Error(), "removed within") {
		t.Errorf("while the file of the first is in the store: %v", err)
	}
	f.must(f.Clean(t.Context()))
	if third := f.create(NewExport{}); !f.run() || f.get(third.ID).Status != Completed {
		t.Errorf("after the first was deleted: %+v", f.get(third.ID))
	}
}

// Files of deleted and cancelled exports count until they are removed from the store, whether they were
// complete or not. An export that was created before waits for that.
func TestFilesThatAreStillInTheStore(t *testing.T) {
	f := setup(t)
	f.suppress(3000)
	first := f.create(NewExport{})
	f.run()
	f.cfg.Space = f.get(first.ID).ByteCount + 1000
	second := f.create(NewExport{})
	j, _, err := f.claim(t.Context(), 0)
	f.must(err)
	waits := f.create(NewExport{})
	j.progress.bytes.Store(1000)
	_, err = f.saveProgress(t.Context(), j)
	f.must(err)
	f.must(f.Delete(t.Context(), f.ws, first.ID))
	_, err = f.Cancel(t.Context(), f.ws, second.ID)
	f.must(err)
	f.run()
	if got := f.get(waits.ID); got.Status != Queued {
		t.Errorf("%+v", got)
	}
	f.must(f.Clean(t.Context()))
	pgtest.Exec(t, f.Pool, `update exports set retry_at = now()`)
	if f.run(); f.get(waits.ID).Status != Completed {
		t.Errorf("%+v", f.get(waits.ID))
	}
	f.cfg.Space = f.get(waits.ID).ByteCount
	pgtest.Exec(t, f.Pool, `update blobs set store = 'before'`) // LEMMA_BLOBS was changed: nobody cleans it
	f.must(f.Delete(t.Context(), f.ws, waits.ID))
	f.create(NewExport{})
}

// An export ends when it has the bytes that its workspace may have: while it is written, and also if it
// was written before its bytes were measured.
func TestAnExportThatIsTooLarge(t *testing.T) {
	for rows, every := range map[int]time.Duration{3000: time.Millisecond, 30: time.Hour} {
		t.Run(fmt.Sprint(rows), func(t *testing.T) {
			f := setup(t)
			f.suppress(rows)
			f.cfg.Space, f.progressEvery = 1000, every
			x := f.create(NewExport{})
			if f.run(); f.get(x.ID).Status != Failed || *f.get(x.ID).StatusReason != "export_space_used" {
				t.Fatalf("%+v", f.get(x.ID))
			}
			f.must(f.Clean(t.Context()))
			if left := f.files(); len(left) > 0 {
				t.Errorf("%d files are left", len(left))
			}
		})
	}
}

// A workspace keeps some exports, whatever their size.
func TestTooManyExportsAreKept(t *testing.T) {
	t.Parallel()
	e := New(Deps{}, Config{})
	for s, want := range map[space]string{
		{}: "", {Open: 99, Kept: 9999, Bytes: 50<<30 - 1}: "", {Open: 100}: "too_many_exports", {Kept: 10_000}: "too_many_exports",
		{Bytes: 50 << 30}: "export_space_used",
	} {
		err := e.refusal(s)
		if refused, ok := errors.AsType[*lemma.Error](err); ok && refused.Code != want || !ok && (want != "" || err != nil) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
}
