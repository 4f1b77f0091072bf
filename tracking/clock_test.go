package tracking

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/notifications"
	"lemma/pgtest"
)

// The times of events, those in their ids, and what is old enough are by the clock of the
// database, whatever that of the process.
func TestEventsHaveTheTimeOfTheDatabase(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"the database is ahead": 2 * time.Hour, "it is behind": -2 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			now := time.Now().Add(ahead)
			b.Exec(`update attempts set at = $1`, now.Add(-time.Minute))
			pgtest.SetClock(t, b.Tracking.Pool, now)
			b.request("GET", b.links(0).Open)
			b.request("HEAD", b.links(0).Click(1, "https://shop.example"))
			b.request("GET", b.links(0).Click(1, "https://shop.example"))
			b.request("GET", b.links(1).Click(1, "https://shop.example"))
			b.Must(pgx.BeginFunc(t.Context(), b.Tracking.Pool, func(tx pgx.Tx) error {
				return Unsubscribed(t.Context(), tx, b.Workspace, Notification{b.origin, keyOf(0)})
			}))
			b.WantCount(5, `select count(*) from tracking_queue where occurred_at between $1 and $2`, now, now.Add(10*time.Second))
			for _, id := range pgtest.Column[uuid.UUID](t, b.Pool, `select id from tracking_queue where type <> 'unsubscribed'`) {
				if s, ns := id.Time().UnixTime(); time.Unix(s, ns).Sub(now).Abs() > 10*time.Second {
					t.Errorf("an id was made at %s instead of %s", time.Unix(s, ns), now)
				}
			}
			for _, later := range []time.Duration{settled - time.Second, settled + 10*time.Second} {
				pgtest.SetClock(t, b.Tracking.Pool, now.Add(later))
				if n, err := b.Apply(t.Context(), settled); err != nil || (n == 5) != (later > settled) {
					t.Errorf("%d events are applied %s later, %v", n, later, err)
				}
			}
			b.wantCounts(notifications.Engagement{Opens: 1, UniqueOpens: 1, Clicks: 1, UniqueClicks: 1, MachineClicks: 1, Unsubscribes: 1})
		})
	}
}

// After the clock of the database was ahead and was put back, events and settlements are
// queued again.
func TestThePositionsReturnWithTheClock(t *testing.T) {
	b := setup(t)
	b.convertible("bought", time.Hour)
	now := time.Now()
	b.settle(now.Add(-time.Minute), now.Add(2*time.Second))
	b.Exec(`update conversion_positions set until = $1`, now.Add(-time.Hour))
	for _, step := range []struct {
		at              time.Duration
		received        int // events
		events, settled int
	}{{at: -10 * time.Minute}, {365 * 24 * time.Hour, 1, 1, 10}, {}, {2 * time.Minute, 1, 2, 10}, {at: 3 * time.Minute}} {
		pgtest.SetClock(t, b.Tracking.Pool, now.Add(step.at))
		for range step.received {
			b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
				values ($1, gen_random_uuid(), '0', 'bought', $2, $2)`, b.Workspace, now.Add(time.Second))
		}
		read, err := b.QueueEvents(t.Context(), time.Minute)
		b.Must(err)
		if settled := b.queueSettled(); read != step.events || settled != step.settled {
			t.Errorf("%s: %d events and %d settlements are read, want %d and %d", step.at, read, settled, step.events, step.settled)
		}
	}
	b.WantCount(2, `select count(*) from conversion_queue`)
	b.WantCount(10, `select count(*) from settlement_queue`)
}

// After the clock of the database was put back and no process has run for some time, events and
// settlements of that time are queued.
func TestRowsWhileNoProcessRan(t *testing.T) {
	b := setup(t)
	b.convertible("bought", time.Hour)
	now := time.Now()
	b.settle(now.Add(-2*time.Hour), now.Add(-time.Hour))
	b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
		values ($1, $1, '0', 'bought', $2, $2)`, b.Workspace, now.Add(-time.Hour))
	b.Exec(`update conversion_positions set until = $1`, now.Add(24*time.Hour))
	for _, want := range [][2]int{{1, 10}, {0, 0}} {
		events, err := b.QueueEvents(t.Context(), time.Minute)
		b.Must(err)
		if settled := b.queueSettled(); events != want[0] || settled != want[1] {
			t.Errorf("%d events and %d settlements are read, want %v", events, settled, want)
		}
	}
}

// Opens and clicks that were recorded while the clock of the database was ahead are counted when it
// is right again, and as they would have been. Floods, which are dated to the end of their minute, wait.
func TestEventsOfAWrongClockAreApplied(t *testing.T) {
	b := setup(t)
	b.put(b.event(0, clicked, 1, 20*time.Minute), b.event(0, clicked, 2, 30*time.Minute), b.event(1, opened, 0, 0))
	b.Exec(`update tracking_queue
		set occurred_at = case when key = $1 then occurred_at + interval '1 day' else now() + interval '1 minute' end`, keyOf(0))
	for range 2 {
		_, err := b.Apply(t.Context(), settled)
		b.Must(err)
	}
	b.wantCounts(notifications.Engagement{Clicks: 2, UniqueClicks: 1})
	b.WantCount(1, `select count(*) from tracking_queue where key = $1`, keyOf(1))
}
