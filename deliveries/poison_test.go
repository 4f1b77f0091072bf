package deliveries

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma/events"
	"lemma/pgtest"
)

// An event that cannot be applied stops no other of its workspace, and is applied when
// its cause is removed.
func TestAnEventThatAlwaysFails(t *testing.T) {
	b := setup(t)
	b.Exec(`alter table suppressions add constraint refused check (address <> 'p3@shop.example')`)
	for i := range 10 {
		b.receive(report(b.origin, i, events.TypeBounced, at(i)))
	}
	b.queue.Pause = 0
	for range 20 {
		_, _ = b.Apply(t.Context())
	}
	if diff := cmp.Diff([]string{" bounced 9"}, b.list(counts)); diff != "" {
		t.Error(diff)
	}
	b.WantCount(1, `select count(*) from event_queue`)
	b.Exec(`alter table suppressions drop constraint refused`)
	for range 2 { // it is tried again at the end of the queue
		b.apply()
	}
	if diff := cmp.Diff([]string{" bounced 10"}, b.list(counts)); diff != "" {
		t.Error(diff)
	}
	if got := b.list(causes); len(got) != 10 {
		t.Errorf("suppressed: %v", got)
	}
}

// The batches of a month may be dropped before its last events are applied.
func TestAnEventOfADroppedMonth(t *testing.T) {
	b := setup(t)
	b.receive(report(b.origin, 1, events.TypeDelivered, at(0)))
	b.apply()
	b.receive(report(b.origin, 1, events.TypeBounced, at(1)), report(b.origin, 2, events.TypeBounced, at(1)))
	b.Exec(`delete from batches where workspace_id = $1`, b.Workspace)
	b.apply()
	if diff := cmp.Diff([]string{" delivered 1"}, b.list(counts)); diff != "" {
		t.Error(diff)
	}
}

// A workspace whose events fail does not delay those of others to the next run.
func TestAWorkspaceWhoseEventsFail(t *testing.T) {
	b := setup(t)
	b.Exec(`alter table suppressions add constraint refused check (address <> 'p3@shop.example')`)
	b.receive(report(b.origin, 3, events.TypeBounced, at(0)))
	b.Exec(`insert into event_queue (workspace_id, id, provider_id, type, occurred_at, recorded_at)
		select $1, gen_random_uuid(), $2, 'delivered', now(), now() from generate_series(1, $3::int)`,
		pgtest.Workspace(t, b.Pool), b.provider, 2*chunk+1)
	b.Must(b.applyAll(t.Context()))
	b.WantCount(1, `select count(*) from event_queue`)
}
