package server

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"lemma"
	"lemma/blobs"
	"lemma/exports"
	"lemma/pgtest"
)

// A process that only serves the API writes exports, since workers may have no store. It uses
// the store under the name that it has in the settings.
func TestAProcessOfTheAPIWritesExports(t *testing.T) {
	t.Parallel()
	folder, err := blobs.OpenFolder(t.TempDir())
	must(t, err)
	pool := pgtest.DB(t)
	const at = "file:///blobs"
	s, err := New(Deps{Pool: pool, Box: pgtest.Box(t), Log: slog.New(slog.DiscardHandler), Blobs: folder},
		Config{Listen: "127.0.0.1:0", Settings: map[string]string{"LEMMA_BLOBS": at},
			Exports: exports.Config{Poll: time.Millisecond, Patience: time.Millisecond}})
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.ServeAPI(ctx) }()
	ws := pgtest.Workspace(t, pool)
	x, err := s.Exports.Create(t.Context(), ws, exports.NewExport{ID: lemma.NewID(), Type: "suppressions", Format: "csv"})
	must(t, err)
	pgtest.Eventually(t, time.Minute, "the export is written", func() bool {
		x, err = s.Exports.Get(t.Context(), ws, x.ID)
		return err == nil && x.Status == exports.Completed
	})
	if got := pgtest.One[string](t, pool, `select store from blobs`); got != at {
		t.Errorf("it is in %q", got)
	}
	if n := pgtest.One[int](t, pool, `select count(*)::int from settings where name = 'LEMMA_BLOBS' and value = $1`, at); n != 1 {
		t.Errorf("%d settings are stored", n)
	}
	stop()
	must(t, <-ended)
}
