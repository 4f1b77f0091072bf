package notifications_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/notifications"
)

// paused inserts n batches and pauses their origin.
func paused(t *testing.T, n int) *fixture {
	t.Helper()
	f := setup(t)
	f.SetPages(2, 2)
	f.insert(recipients(10 * n))
	f.inTx(f.hold)
	f.Exec(`truncate river_job`)
	return f
}

func (f *fixture) hold(tx pgx.Tx) error   { return f.Hold(f.T.Context(), tx, f.Workspace, f.origin) }
func (f *fixture) unhold(tx pgx.Tx) error { return f.Unhold(f.T.Context(), tx, f.Workspace, f.origin) }

func (f *fixture) release() notifications.Release {
	return notifications.Release{WorkspaceID: f.Workspace, OriginID: f.origin}
}

// wantRelease compares the batches that are open, which have a job each, those that are
// held, and the rows of releases.
func (f *fixture) wantRelease(open, held, rows int) {
	f.T.Helper()
	f.WantCount(open, `select count(*) from batches where gate = 'open' and resumed_at is not null`)
	f.WantCount(open, `select count(distinct args->>'batch_id') from river_job`)
	f.WantCount(held, `select count(*) from batches where gate = 'held'`)
	f.WantCount(rows, `select count(*) from releases`)
}

// A resume opens the first batches, and pages open the others. No page opens one twice.
func TestAResumeIsReleasedInPages(t *testing.T) {
	f := paused(t, 5)
	f.inTx(f.unhold)
	f.wantRelease(2, 3, 1)
	all, err := f.ReadReleases(t.Context())
	f.Must(err)
	if len(all) != 1 || all[0] != f.release() {
		t.Errorf("releases %v", all)
	}
	f.Must(f.Release(t.Context(), f.release()))
	f.wantRelease(4, 1, 1)
	f.Must(f.Release(t.Context(), f.release()))
	f.wantRelease(5, 0, 0)
	f.WantCount(5, `select count(*) from river_job`)
	f.Must(f.Release(t.Context(), f.release()))
	f.WantCount(5, `select count(*) from river_job`)
}

// A resume of no more batches than it opens itself leaves nothing to release.
func TestASmallResumeHasNoRelease(t *testing.T) {
	f := paused(t, 2)
	f.inTx(f.unhold)
	f.wantRelease(2, 0, 0)
}

// A batch that is due later still has its job, so that repeated pauses and resumes leave no others.
func TestResumesOfBatchesThatAreDueLater(t *testing.T) {
	f := paused(t, 5)
	f.SetPages(10, 10)
	f.Exec(`update batches set due_at = now() + interval '1 hour' where id > (select id from batches order by id limit 1)`)
	for range 3 {
		f.inTx(f.unhold)
		f.inTx(f.hold)
	}
	f.inTx(f.unhold)
	f.WantCount(5, `select count(*) from batches where gate = 'open' and resumed_at is not null`)
	f.WantCount(4, `select count(*) from river_job`) // of the one that is due, whose jobs run at once
}

// A pause between two pages: no later page opens anything.
func TestAPauseEndsTheRelease(t *testing.T) {
	f := paused(t, 5)
	f.inTx(f.unhold)
	f.inTx(f.hold)
	f.WantCount(5, `select count(*) from batches where gate = 'held'`)
	f.Must(f.Release(t.Context(), f.release()))
	f.WantCount(5, `select count(*) from batches where gate = 'held'`)
	f.WantCount(0, `select count(*) from releases`)
}

// A pause during a page waits for it, and closes what it has opened.
func TestAPauseWaitsForThePage(t *testing.T) {
	f := paused(t, 5)
	f.inTx(f.unhold)
	blocker, err := f.Pool.Begin(t.Context())
	f.Must(err)
	_, err = blocker.Exec(t.Context(), `select from batches where gate = 'held' for update`)
	f.Must(err)
	page, pause := make(chan error, 1), make(chan error, 1)
	go func() { page <- f.Release(t.Context(), f.release()) }()
	f.WaitForLocks(1)
	go func() { pause <- pgx.BeginFunc(t.Context(), f.Pool, f.hold) }()
	f.WaitForLocks(2)
	f.Must(blocker.Rollback(t.Context()))
	f.Must(errors.Join(<-page, <-pause))
	f.WantCount(5, `select count(*) from batches where gate = 'held'`)
	f.WantCount(0, `select count(*) from releases`)
}

// While a process opens a page, another one does not wait for it.
func TestOneProcessOpensAPage(t *testing.T) {
	f := paused(t, 5)
	f.inTx(f.unhold)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	f.inTx(func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `select from releases for update`); err != nil {
			return err
		}
		return f.Release(ctx, f.release())
	})
	f.wantRelease(2, 3, 1)
}

// Releases of one workspace do not delay those of another.
func TestReleasesAreReadByWorkspace(t *testing.T) {
	f := setup(t)
	other := uuid.New()
	f.Exec(`insert into releases (workspace_id, origin_id) select $1, gen_random_uuid() from generate_series(1, 300)`, f.Workspace)
	f.Exec(`insert into releases (workspace_id, origin_id) values ($1, gen_random_uuid())`, other)
	for range 5 {
		all, err := f.ReadReleases(t.Context())
		f.Must(err)
		if len(all) != 100 || all[0].WorkspaceID != other && all[1].WorkspaceID != other {
			t.Fatalf("%d releases, and that of the other workspace is not among the first two", len(all))
		}
	}
}

// A pause may take longer than its caller's limit of statements, which holds again after it.
func TestAPauseHasNoStatementTimeout(t *testing.T) {
	f := setup(t)
	f.insert(recipients(10))
	blocker, err := f.Pool.Begin(t.Context())
	f.Must(err)
	_, err = blocker.Exec(t.Context(), `select from batches for update`)
	f.Must(err)
	pool := f.Connect(func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["statement_timeout"] = "30s" })
	done := make(chan error, 1)
	var limit string
	go func() {
		done <- pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `set local statement_timeout = '2s'`)
			if err != nil {
				return err
			}
			if err := f.hold(tx); err != nil {
				return err
			}
			return tx.QueryRow(t.Context(), `show statement_timeout`).Scan(&limit)
		})
	}()
	f.Eventually("a hold waits for longer than the limit", func() bool {
		return f.Count(`select count(*) from pg_stat_activity where datname = current_database()
		  and wait_event_type = 'Lock' and clock_timestamp() - query_start > '2100ms'`) == 1 || len(done) > 0
	})
	f.Must(blocker.Rollback(t.Context()))
	f.Must(<-done)
	if limit != "2s" {
		t.Errorf("the limit of statements is %s afterwards", limit)
	}
	f.WantCount(1, `select count(*) from batches where gate = 'held'`)
}
