package sender

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma/notifications"
	"lemma/pgtest"
)

func TestSweepEnqueuesBatchesWithoutAJob(t *testing.T) {
	b := setup(t)
	b.insert(100, 25, 2)
	s := b.sender()
	if n, err := s.Sweep(context.Background()); err != nil || n != 0 {
		t.Fatalf("enqueued %d although every batch has a job, %v", n, err)
	}
	b.Exec(`truncate river_job`)
	if n, err := s.Sweep(context.Background()); err != nil || n != 4 {
		t.Fatalf("enqueued %d times, want 4, %v", n, err)
	}
	if n, err := s.Sweep(context.Background()); err != nil || n != 0 {
		t.Fatalf("enqueued %d times again, %v", n, err)
	}
	b.work(s)
	b.wantCounts(notifications.Counts{Sent: 100})
}

// A job that a process with a clock ahead has scheduled, or one with a clock behind does not
// make available, does not keep its batch waiting.
func TestSweepEnqueuesBatchesWhoseJobIsScheduledForAnotherTime(t *testing.T) {
	b := setup(t)
	b.insert(50, 25, 2)
	s := b.sender(func(c *Config) { c.SweepGrace = time.Hour })
	for _, c := range []struct {
		state, scheduled string
		want             int
	}{
		{"scheduled", "50 minutes", 0}, {"scheduled", "-50 minutes", 0}, {"scheduled", "4 months", 2}, {"scheduled", "-2 hours", 2},
		{"available", "50 minutes", 0}, {"available", "-2 hours", 0}, {"available", "4 months", 2},
	} {
		b.Exec(`truncate river_job`)
		b.Exec(`insert into river_job (args, kind, max_attempts) select jsonb_build_object('batch_id', id), 'batch_send', 3 from batches`)
		b.Exec(`update batches set due_at = now() - interval '2 hours', enqueued_at = now() - interval '2 hours'`)
		b.Exec(`update river_job set state = $2::river_job_state, scheduled_at = now() + $1::interval`, c.scheduled, c.state)
		if n, err := s.Sweep(context.Background()); err != nil || n != c.want {
			t.Errorf("%s, %s from now: enqueued %d times, want %d, %v", c.state, c.scheduled, n, c.want, err)
		}
	}
}

// A workspace with more batches whose deadlines passed than one sweep expires, all of them
// earlier, does not delay those of another.
func TestManyLateBatchesDelayNoOtherWorkspace(t *testing.T) {
	b := setup(t)
	late := func(ws uuid.UUID, n int, ago string) {
		b.Exec(`insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, max_attempts, expires_at)
			select $1, $1, id, id, $1, $1, 1, 2, now() - $3::interval
			from (select gen_random_uuid() as id from generate_series(1, $2::int)) b`, ws, n, ago)
	}
	late(b.Workspace, expireAmong+sweepMost, "2 hours")
	others := []uuid.UUID{pgtest.Workspace(t, b.Pool), pgtest.Workspace(t, b.Pool)}
	late(others[0], 3, "1 hour")
	late(others[1], 1, "1 second")
	late(pgtest.Workspace(t, b.Pool), 5, "-1 hour")
	found, err := b.sender().readLate(t.Context())
	b.Must(err)
	of := map[uuid.UUID]int{}
	for _, ref := range found {
		of[ref.WorkspaceID]++
	}
	if diff := cmp.Diff(map[uuid.UUID]int{b.Workspace: sweepMost - 4, others[0]: 3, others[1]: 1}, of); diff != "" {
		t.Error(diff)
	}
}

// A sweep visits a bounded number of workspaces, and the next one those after them.
func TestLateBatchesOfManyWorkspaces(t *testing.T) {
	b := setup(t)
	b.Exec(`insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, max_attempts, expires_at)
		select ws, ws, ws, ws, ws, ws, 1, 2, now() - interval '1 second' * (1 + i % 2 * $2)
		from (select i, gen_random_uuid() as ws from generate_series(1, $1::int) i) b`, expireWorkspaces+sweepMost, 3600)
	s := b.sender()
	for _, want := range []bool{true, false} {
		found, err := s.readLate(t.Context())
		b.Must(err)
		if len(found) != sweepMost || (s.late.after != uuid.Nil) != want {
			t.Errorf("%d batches, the next sweep begins after %s", len(found), s.late.after)
		}
	}
}

// Of more workspaces than one run has batches for, each has its turn, though those of the run
// before cannot be expired or decided.
func TestRunsChooseAmongWorkspaces(t *testing.T) {
	b := setup(t)
	b.Exec(`insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, max_attempts, expires_at, status,
			leased_by, lease_until)
		select ws, ws, id, id, ws, ws, 1, 2, now() - interval '1 hour', status,
			case status when 'leased' then 'w' end, case status when 'leased' then now() - interval '1 hour' end
		from (select ws, gen_random_uuid() as id, status
			from (select gen_random_uuid() as ws from generate_series(1, $1::int)) w, unnest(array['leased', 'ready']) as status) b`, 2*sweepMost)
	s := b.sender()
	expired := func(ctx context.Context) ([]notifications.Ref, error) { return s.expired(ctx, 0) }
	for name, read := range map[string]func(context.Context) ([]notifications.Ref, error){"late": s.readLate, "expired": expired} {
		chosen := map[uuid.UUID]bool{}
		most := 0
		for range 3 {
			s.late.after = uuid.Nil
			found, err := read(t.Context())
			b.Must(err)
			most = max(most, len(found))
			for _, ref := range found {
				chosen[ref.WorkspaceID] = true
			}
		}
		if len(chosen) < most*5/4 {
			t.Errorf("%s: three runs of %d batches chose those of %d workspaces", name, most, len(chosen))
		}
	}
}

func TestOfTwoSweepsOneEnqueues(t *testing.T) {
	b := setup(t)
	refs := b.insert(10, 10, 2)
	b.Exec(`update batches set enqueued_at = now() - interval '2 hours' where workspace_id = $1`, b.Workspace)
	s := b.sender(func(c *Config) { c.SweepGrace = time.Hour })
	for i, want := range []bool{true, false} {
		if enqueued, err := s.enqueueAgain(context.Background(), refs[0]); err != nil || enqueued != want {
			t.Errorf("sweep %d enqueued: %v, %v", i, enqueued, err)
		}
	}
}

// A batch that cannot be enqueued waits until the sweep after the next, so that many of them
// do not hide others.
func TestABatchThatCannotBeEnqueued(t *testing.T) {
	b := setup(t)
	b.insert(50, 25, 2)
	s := b.sender(func(c *Config) { c.SweepGrace = time.Hour })
	b.Exec(`update batches set due_at = now() - interval '2 hours', enqueued_at = now() - interval '2 hours'`)
	b.Exec(`truncate river_job`)
	b.Exec(`alter table river_job add constraint refused check (args->>'batch_id' <> '` +
		pgtest.One[string](t, b.Pool, `select id::text from batches order by due_at, id limit 1`) + `')`)
	if n, err := s.Sweep(t.Context()); err == nil || n != 1 {
		t.Errorf("%d were enqueued, %v", n, err)
	}
	if n, err := s.Sweep(t.Context()); err != nil || n != 0 {
		t.Errorf("%d were enqueued, %v", n, err)
	}
}
