package campaigns

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
)

// A campaign that is due is postponed, or made a draft and scheduled again, while a
// tick starts due campaigns. It is not started: the start compares the time again.
func TestAPostponedCampaignIsNotStarted(t *testing.T) {
	ctx, later := context.Background(), time.Now().Add(24*time.Hour)
	postpone := func(b *bundle, id uuid.UUID) {
		_, err := b.Schedule(ctx, b.Workspace, id, later, uuid.New())
		b.Must(err)
	}
	for name, change := range map[string]func(b *bundle, id uuid.UUID){
		"postponed": postpone,
		"unscheduled and scheduled again": func(b *bundle, id uuid.UUID) {
			_, err := b.Unschedule(ctx, b.Workspace, id, uuid.New())
			b.Must(err)
			postpone(b, id)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 5)
			first, second := b.draft().ID, b.draft().ID // a tick starts them in this order
			for _, id := range []uuid.UUID{first, second} {
				postpone(b, id)
			}
			b.Exec(`update campaigns set scheduled_at = now() - interval '1 second' where workspace_id = $1`, b.Workspace)
			lock, err := b.Pool.Begin(ctx)
			b.Must(err)
			_, err = lock.Exec(ctx, `select from campaigns where workspace_id = $1 and id = $2 for update`, b.Workspace, first)
			b.Must(err)
			fired := make(chan error, 1)
			go func() { _, err := b.FireDue(ctx); fired <- err }()
			b.WaitForLocks(1) // the tick has read both
			change(b, second)
			b.Must(lock.Commit(ctx))
			b.Must(<-fired)
			if a, z := b.get(first), b.get(second); a.Status != Preparing || z.Status != Scheduled {
				t.Errorf("the first is %s, and the second, which was postponed to %v, is %s", a.Status, z.ScheduledAt, z.Status)
			}
		})
	}
}

// A user's request to postpone holds the row when the tick starts the campaign. The
// start waits for it and finds the new time.
func TestAStartWaitsForAPostponement(t *testing.T) {
	b := setup(t, 5)
	ctx := context.Background()
	c, err := b.Schedule(ctx, b.Workspace, b.draft().ID, time.Now().Add(time.Hour), uuid.Nil)
	b.Must(err)
	b.Exec(`update campaigns set scheduled_at = now() - interval '1 second' where workspace_id = $1`, b.Workspace)
	tx, err := b.Pool.Begin(ctx)
	b.Must(err)
	b.Must(move(ctx, tx, b.Workspace, c.ID, schedule, `status = 'scheduled', scheduled_at = $4`, time.Now().Add(time.Hour)))
	fired := make(chan error, 1)
	go func() { _, err := b.FireDue(ctx); fired <- err }()
	b.WaitForLocks(1)
	b.Must(tx.Commit(ctx))
	b.Must(<-fired)
	if got := b.get(c.ID); got.Status != Scheduled {
		t.Errorf("a campaign that was postponed to %v is %s", got.ScheduledAt, got.Status)
	}
}
