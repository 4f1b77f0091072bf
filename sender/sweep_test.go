package sender

import (
	"context"
	"testing"
	"time"

	"lemma/notifications"
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
		scheduled string
		want      int
	}{{"50 minutes", 0}, {"-50 minutes", 0}, {"4 months", 2}, {"-2 hours", 2}} {
		b.Exec(`update batches set due_at = now() - interval '2 hours', enqueued_at = now() - interval '2 hours'`)
		b.Exec(`update river_job set state = 'scheduled', scheduled_at = now() + $1::interval`, c.scheduled)
		if n, err := s.Sweep(context.Background()); err != nil || n != c.want {
			t.Errorf("%s from now: enqueued %d times, want %d, %v", c.scheduled, n, c.want, err)
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
