package deliveries

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/events"
	"lemma/pgtest"
)

// Two transactions raise the state of one notification at the same time: the second one reads the
// state that the first one has written, so that each state is counted once.
func TestStatesThatAreRaisedAtTheSameTime(t *testing.T) {
	b := setup(t)
	ctx := t.Context()
	b.receive(report(b.origin, 1, events.TypeDelivered, at(0)))
	b.apply()
	complained := &change{notification{b.origin, pgtest.One[uuid.UUID](t, b.Pool, `select key from deliveries`)}, "complained",
		rankOf("complained"), at(2), ""}
	tx, err := b.Pool.Begin(ctx)
	b.Must(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	second := &transaction{tx: tx, ws: b.Workspace}
	if inserted, err := second.insert(ctx, []*change{complained}); err != nil || len(inserted) != 0 {
		t.Fatal(inserted, err)
	}
	b.receive(report(b.origin, 1, events.TypeBounced, at(1)))
	first, err := b.Pool.Begin(ctx)
	b.Must(err)
	queued, err := events.Take(ctx, first, b.Workspace, 0, 10)
	b.Must(err)
	b.Must((&transaction{tx: first, ws: b.Workspace}).apply(ctx, queued))
	read := make(chan error, 1)
	go func() { _, err := second.exceeding(ctx, []*change{complained}); read <- err }()
	pgtest.Eventually(t, time.Minute, "it waits or has read", func() bool { return len(read) > 0 || pgtest.LockWaits(t, b.Pool) > 0 })
	b.Must(first.Commit(ctx))
	b.Must(<-read)
	if complained.old != "bounced" {
		t.Errorf("the state before is %q", complained.old)
	}
}
