package deliveries

import (
	"context"
	"testing"
	"time"

	"lemma/events"
	"lemma/pgtest"
)

// Events of a workspace are applied while those of another one take long.
func TestASlowWorkspaceDelaysNoOther(t *testing.T) {
	slow := setup(t)
	other := newBundle(pgtest.ShopIn(t, slow.Pool))
	slow.receive(report(slow.origin, 0, events.TypeDelivered, at(0)))
	slow.apply() // makes the row of the count
	locked, err := slow.Pool.Begin(t.Context())
	slow.Must(err)
	_, err = locked.Exec(t.Context(), `select from delivery_counts where workspace_id = $1 for update`, slow.Workspace)
	slow.Must(err)
	slow.receive(report(slow.origin, 1, events.TypeDelivered, at(0)))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { slow.Loop(ctx); close(ended) }()
	slow.WaitForLocks(1)
	other.receive(report(other.origin, 0, events.TypeDelivered, at(0)))
	// A part is given up after 10 s.
	pgtest.Eventually(t, 8*time.Second, "the event of the other workspace is applied", func() bool { return len(other.list(states)) == 1 })
	slow.Must(locked.Rollback(context.Background()))
	pgtest.Eventually(t, 20*time.Second, "that of the slow one too", func() bool { return len(slow.list(states)) == 2 })
	stop()
	<-ended
}
