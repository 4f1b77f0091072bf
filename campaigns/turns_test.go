package campaigns

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/pgtest"
)

// Jobs of a workspace that has sent many campaigns do not delay the campaign of another, whose job is
// behind them all.
func TestManyJobsOfAWorkspaceDoNotDelayOthers(t *testing.T) {
	b := setup(t, 1)
	many := make([]uuid.UUID, 30)
	for i := range many {
		many[i] = b.sent().ID
	}
	other := b.another(pgtest.Workspace(t, b.Pool), 1)
	id := other.sent().ID
	var mu sync.Mutex
	var order []uuid.UUID
	b.Hook = func(_ context.Context, at string, campaign uuid.UUID) {
		if at == "claimed" {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, campaign)
		}
	}
	b.work(1)
	b.Eventually("all audiences are read", func() bool {
		return b.Count(`select count(*) from fanouts where finished_at is null`) == 0
	})
	mu.Lock()
	defer mu.Unlock()
	if at := slices.Index(order, id); at < 0 || at > 20 { // one of two workspaces at random
		t.Errorf("it is number %d of %d", at, len(order))
	}
	if len(order) != len(many)+1 {
		t.Errorf("%d runs of %d fan-outs", len(order), len(many)+1)
	}
}

// A campaign has one job that has not begun, however often it is paused and resumed.
func TestResumesLeaveOneJob(t *testing.T) {
	b := setup(t, 1)
	c := b.sent()
	for range 5 {
		_, err := b.Pause(t.Context(), b.Workspace, c.ID, uuid.Nil)
		b.Must(err)
		_, err = b.Resume(t.Context(), b.Workspace, c.ID, uuid.Nil)
		b.Must(err)
	}
	b.sent()
	b.WantCount(2, `select count(*) from river_job where kind = 'campaign_fanout'`)
}

// A fan-out that the job of another runs, and whose source fails, gets a job for the next try. A process
// that ends begins none.
func TestAFanoutThatTheJobOfAnotherRuns(t *testing.T) {
	b := setup(t, 1, func(cfg *Config) { cfg.RetryFor = time.Hour })
	c := b.sent()
	b.Exec(`truncate river_job`)
	ending := New(b.deps, b.cfg)
	ending.Drain()
	b.Must(ending.serve(t.Context()))
	b.WantCount(0, `select count(*) from river_job`)
	b.ExecDB(`alter role ` + b.Role + ` connection limit 0`)
	b.Must(b.serve(t.Context()))
	b.WantCount(1, `select count(*) from river_job where kind = 'campaign_fanout' and state = 'scheduled'
		and scheduled_at between now() + interval '50 minutes' and now() + interval '1 hour'`)
	b.ExecDB(`alter role ` + b.Role + ` connection limit -1`)
	b.Exec(`update fanouts set retry_at = now()`)
	b.Must(b.serve(t.Context()))
	if got := b.get(c.ID); got.FannedOutAt == nil {
		t.Errorf("%s", got.Status)
	}
}

// The job of a fan-out that runs again later is due by the clock of the database.
func TestFanoutsAreDueByTheClockOfTheDatabase(t *testing.T) {
	b := setup(t, 0)
	now := time.Now().Add(-time.Hour)
	pgtest.SetClock(t, b.Pool, now)
	b.Must(pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
		return b.enqueueIn(t.Context(), tx, ref{b.Workspace, lemma.NewID()}, time.Minute)
	}))
	b.WantCount(1, `select count(*) from river_job where state = 'scheduled' and scheduled_at between $1 and $2`,
		now.Add(59*time.Second), now.Add(61*time.Second))
}
