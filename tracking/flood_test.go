package tracking

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/notifications"
	"lemma/pgtest"
	"lemma/queue"
)

// A flood of requests of one link adds two rows per minute beyond the first requests, and
// is counted as a machine's.
func TestAFloodIsAMachines(t *testing.T) {
	b := setup(t)
	const all = 3 * mostPerMinute
	link, other := b.links(0).Click(1, "https://shop.example/"), b.links(1).Click(1, "https://shop.example/")
	for range all {
		b.request("GET", link)
	}
	b.request("HEAD", link)
	b.request("GET", other)
	floods := int64(b.metric("lemma_tracking_floods_total")) - 1 // without the HEAD request
	if floods < all-2*mostPerMinute || floods > all-mostPerMinute {
		t.Errorf("%d of %d clicks are floods", floods, all)
	}
	if rows := int64(b.Count(`select count(*) from tracking_queue`)); rows > all-floods+2+1 {
		t.Errorf("%d rows, of which %d clicks are in floods", rows, floods)
	}
	b.applyAll()
	b.wantCounts(notifications.Engagement{Clicks: all - floods + 1, UniqueClicks: 2, MachineClicks: floods})
	b.WantCount(int(floods), `select machine_clicks from link_counts where link = 1`)
	b.WantCount(int(floods), `select sum(times)::int from tracking_events where machine = 'flood' and type = 'clicked'`)
}

// Floods of several processes in the same minute are one row, also when a part of them is
// applied before.
func TestAFloodIsOneRow(t *testing.T) {
	b := setup(t)
	for range 3 {
		one := flooded(b.event(0, clicked, 1, time.Minute))
		_, err := b.store(t.Context(), b.Workspace, []event{one, one, flooded(b.event(0, opened, 0, time.Minute))})
		b.Must(err)
		_, err = b.process().store(t.Context(), b.Workspace, []event{one})
		b.Must(err)
		b.WantCount(2, `select count(*) from tracking_queue`)
		b.applyAll()
	}
	b.WantCount(2, `select count(*) from tracking_events`)
	b.wantCounts(notifications.Engagement{MachineOpens: 3, MachineClicks: 9})
}

// Of a notification with very many opens or clicks, one event has those of an hour, whatever process
// receives them and however slowly they come. Other notifications are counted as ever.
func TestEventsOfANotificationAreBounded(t *testing.T) {
	b := setup(t)
	at := func(i int) time.Duration { return time.Hour + time.Duration(i)*time.Second }
	for i := range mostStored {
		machine := b.event(0, clicked, 1, at(i))
		machine.machine = scanner
		b.put(b.event(0, opened, 0, at(i)), machine, b.event(0, probed, 1, at(i)))
	}
	b.applyAll()
	b.wantCounts(notifications.Engagement{Opens: mostStored, UniqueOpens: 1, MachineClicks: mostStored})
	stored := b.Count(`select count(*) from tracking_events`)
	b.put(b.event(0, clicked, 1, 2*time.Hour)) // the first of a person
	b.applyAll()
	b.wantCounts(notifications.Engagement{Opens: mostStored, UniqueOpens: 1, Clicks: 1, UniqueClicks: 1, MachineClicks: mostStored})
	for i := range 200 {
		b.put(b.event(0, opened, 0, at(i)), b.event(0, clicked, 1, at(i)), b.event(0, probed, 1, at(i)), b.event(1, opened, 0, at(i)))
		if i%70 == 0 {
			b.applyAll()
		}
	}
	b.applyAll()
	b.Must(pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
		return Unsubscribed(t.Context(), tx, b.Workspace, Notification{b.origin, keyOf(0)})
	}))
	b.applyAll()
	if n := b.Count(`select count(*) from tracking_events`) - stored - 201; n < 3 || n > 5 { // an hour or two of two types
		t.Errorf("%d rows more", n)
	}
	b.wantCounts(notifications.Engagement{Opens: mostStored + 200, UniqueOpens: 2, MachineOpens: 200,
		Clicks: 1, UniqueClicks: 1, MachineClicks: mostStored + 200, Unsubscribes: 1})
	b.WantCount(mostStored+200, `select machine_clicks from link_counts where link = 1`)
	b.WantCount(1, `select count(*) from engagements where machine_opened_at = $1`, b.sent.Add(at(0)))
}

// Processes that apply floods of the same notifications do not wait for each other in a circle.
func TestFloodsOfSeveralProcesses(t *testing.T) {
	b := setup(t)
	var all []event
	for i := range mostStored {
		at := time.Minute + time.Duration(i)*time.Second
		all = append(all, b.event(0, clicked, 1, at), b.event(1, clicked, 1, at))
	}
	b.put(all...)
	b.applyAll()
	all = nil
	for i := range 8000 {
		all = append(all, b.event(0, clicked, 1+i*7919%600, time.Hour+time.Duration(i)*time.Millisecond))
	}
	b.put(all...)
	var appliers sync.WaitGroup
	for range 3 {
		p := b.process()
		appliers.Go(func() {
			for {
				n, err := p.Apply(t.Context(), -24*time.Hour)
				if err != nil {
					t.Error(err)
				}
				if n == 0 {
					return
				}
			}
		})
	}
	appliers.Wait()
	b.wantCounts(notifications.Engagement{Clicks: 2 * mostStored, UniqueClicks: 2, MachineClicks: 8000})
}

// Clicks among too many events of their notification are not compared: a chunk reads a
// bounded number of others.
func TestClicksAmongTooManyOthers(t *testing.T) {
	b := setup(t)
	for range 3 {
		all := []event{b.event(1, clicked, 1, 10*time.Minute)}
		for i := range mostCompared / 2 {
			all = append(all, b.event(0, clicked, 1, 10*time.Minute+time.Duration(i)*time.Millisecond))
		}
		b.put(all...)
		b.applyAll()
	}
	b.wantCounts(notifications.Engagement{Clicks: mostCompared + 3, UniqueClicks: 2, MachineClicks: mostCompared / 2})
	b.put(b.event(0, clicked, 1, 20*time.Minute))
	b.applyAll()
	b.wantCounts(notifications.Engagement{Clicks: mostCompared + 4, UniqueClicks: 2, MachineClicks: mostCompared / 2})
}

// A workspace whose events cannot be applied, since a lock is held, does not stop others.
func TestASlowWorkspaceStopsNoOther(t *testing.T) {
	b := setup(t)
	held, err := b.Pool.Begin(t.Context())
	b.Must(err)
	_, err = held.Exec(t.Context(), `
		insert into engagements (workspace_id, origin_id, key, content_id, opens, clicks) values ($1, $2, $3, $2, 0, 0)`,
		b.Workspace, b.origin, keyOf(0))
	b.Must(err)
	b.put(b.event(0, opened, 0, 0))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { b.Loop(ctx); close(ended) }()
	b.WaitForLocks(1)
	_, err = b.store(t.Context(), pgtest.Workspace(t, b.Pool), []event{{id: lemma.NewID(), kind: opened, at: b.sent}})
	b.Must(err)
	b.Eventually("the other workspace is applied", func() bool {
		return b.Count(`select count(*) from tracking_queue where workspace_id <> $1`, b.Workspace) == 0
	})
	b.WantCount(1, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`)
	b.Must(held.Commit(t.Context()))
	b.Eventually("the workspace is applied", func() bool { return b.Count(`select count(*) from tracking_queue`) == 0 })
	stop()
	<-ended
	b.wantCounts(notifications.Engagement{Opens: 1, UniqueOpens: 1})
}

// That a recipient unsubscribed by means of a notification is one row.
func TestUnsubscribesOfANotificationAreOneRow(t *testing.T) {
	b := setup(t)
	for range 3 {
		b.Must(pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
			return Unsubscribed(t.Context(), tx, b.Workspace, Notification{b.origin, keyOf(0)}, Notification{b.origin, keyOf(0)})
		}))
		b.applyAll()
	}
	b.WantCount(1, `select count(*) from tracking_events`)
	b.wantCounts(notifications.Engagement{Unsubscribes: 1})
}

// Rows that always fail stop none behind them, and stay in their queues.
func TestRowsThatFailStopNoOthers(t *testing.T) {
	b := setup(t)
	b.convertible("bought", time.Hour)
	accepted := time.Now().Add(-20 * time.Minute)
	b.settle(accepted, time.Now().Add(-10*time.Minute))
	b.triggerEvent(0, "bought", accepted, accepted.Add(time.Minute))
	b.triggerEvent(1, "bought", accepted, time.Now())
	b.queueSettled()
	_, err := b.QueueEvents(t.Context(), 0)
	b.Must(err)
	b.put(b.event(2, opened, 0, 0))
	for range 3 { // times that are none of Go
		b.Exec(`insert into settlement_queue (workspace_id, settled_at, batch_id, ordinal) values ($1, '-infinity', $2, 0)`,
			b.Workspace, lemma.NewID())
		b.Exec(`with e as (
				insert into trigger_events (workspace_id, key, profile_key, name, occurred_at) values ($1, $2, 'p', 'n', '-infinity')
				returning workspace_id, key)
			insert into conversion_queue (workspace_id, received_at, key) select workspace_id, '-infinity', key from e`,
			b.Workspace, lemma.NewID())
		b.Exec(`insert into tracking_queue (workspace_id, id, origin_id, key, type, link, times, occurred_at)
			values ($1, $2, $2, $2, 'opened', 0, 1, '-infinity')`, b.Workspace, lemma.NewID())
	}
	failed := 0
	for _, of := range []*queue.Queue{b.opensAndClicks, b.Tracking.conversions, b.settlements} {
		of.Pause = 0
	}
	for range 60 {
		for _, work := range []func() (int, error){
			func() (int, error) { return b.Convert(t.Context()) },
			func() (int, error) { return b.Apply(t.Context(), 0) },
		} {
			if _, err := work(); err != nil {
				failed++
			}
		}
	}
	if failed == 0 {
		t.Error("no row fails")
	}
	for _, queue := range []string{"settlement_queue", "conversion_queue", "tracking_queue"} {
		b.WantCount(3, `select count(*) from `+queue)
	}
	b.wantCounts(notifications.Engagement{Opens: 1, UniqueOpens: 1, Conversions: 2})
}
