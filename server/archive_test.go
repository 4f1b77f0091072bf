package server

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"lemma/archive"
	"lemma/blobs"
	"lemma/migrations"
	"lemma/pgtest"
	"lemma/retention"
)

// A process that archives copies a partition to the store before it is dropped.
func TestAProcessArchivesWhatItDrops(t *testing.T) {
	t.Parallel()
	folder, err := blobs.OpenFolder(t.TempDir())
	must(t, err)
	pool := pgtest.DB(t)
	s, err := New(Deps{Pool: pool, Box: pgtest.Box(t), Log: slog.New(slog.DiscardHandler), Blobs: folder},
		Config{Archive: true, Retention: retention.Config{BatchLog: retention.Least}})
	must(t, err)
	month := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	must(t, migrations.Partitions(t.Context(), pool, month))
	pgtest.Exec(t, pool, `insert into batch_log (workspace_id, batch_id, event)
		values (gen_random_uuid(), '019b8000-0000-7000-8000-000000000000', 'claimed')`)
	pgtest.SetClock(t, pool, month.AddDate(0, 6, 0))
	done, err := s.Retention.Run(t.Context())
	must(t, err)
	kept, err := archive.New(pool, s.Exports.Blobs).List(t.Context())
	must(t, err)
	if !slices.Contains(done.Dropped, "batch_log_2026_01") || len(kept) == 0 {
		t.Errorf("dropped %v, archived %v", done.Dropped, kept)
	}
}
