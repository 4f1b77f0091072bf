package sender

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// wantEvents checks that each notification that has ended is in one event, which has
// the type of its status.
func (b *bundle) wantEvents(statuses map[string]int64) {
	b.T.Helper()
	rows, err := b.Pool.Query(context.Background(), `
		select e.type, n.key, count(*) from events_out e
		join notifications n on n.workspace_id = e.workspace_id and n.origin_id = e.origin_id
			and (position(uuid_send(n.key) in e.keys) > 0 or n.batch_id = e.batch_id and (e.ordinals is null or n.ordinal = any(e.ordinals)))
		where e.workspace_id = $1 group by e.type, n.key`, b.Workspace)
	b.Must(err)
	counts := map[string]int64{}
	var name string
	var key uuid.UUID
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&name, &key, &n}, func() error {
		if counts[name]++; n != 1 {
			b.T.Errorf("notification %s is in %d events %s", key, n, name)
		}
		return nil
	})
	b.Must(err)
	for _, status := range []string{"sent", "failed", "skipped", "orphaned"} {
		if got := counts["notification."+status]; got != statuses[status] {
			b.T.Errorf("events have %d notifications as %s, the view %d", got, status, statuses[status])
		}
	}
	b.WantCount(0, `select count(*) from events_out where count > 1000 or count <> coalesce(cardinality(ordinals), length(keys) / 16, count)`)
}

// Without a subscription to its type, an event is not written.
func TestNoEventWithoutASubscription(t *testing.T) {
	b := setup(t)
	b.Exec(`delete from webhook_subscriptions where type = 'notification.sent'`)
	b.carrier.then[addressOf(1)] = []Outcome{Rejected}
	b.insert(3, 10, 1)
	s := b.sender()
	b.work(s)
	b.WantCount(0, `select count(*) from events_out where type = 'notification.sent'`)
	b.WantCount(1, `select count(*) from events_out where type = 'notification.failed' and details = '{scripted}'`)
}

// A worker that has lost its lease writes neither outcomes nor events.
func TestALateWorkerWritesNoEvent(t *testing.T) {
	b := setup(t)
	b.insert(5, 10, 1)
	s := b.sender()
	finish := b.pausedWork(s, b.batches("status = 'ready'")[0], "committing", 2)
	b.reap(b.sender())
	finish()
	b.wantEvents(b.statuses())
	b.WantCount(0, `select count(*) from events_out where type = 'notification.sent'`)
}
