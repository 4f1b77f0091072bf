package tracking

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/notifications"
	"lemma/pgtest"
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

// The next chunk of a workspace that failed is smaller, and later.
func TestTurns(t *testing.T) {
	t.Parallel()
	all, ws := paces{chunk: chunk, of: map[uuid.UUID]pace{}}, lemma.NewID()
	for _, want := range []int{chunk, chunk / 2, chunk / 4} {
		most, ok := all.begin(ws)
		if !ok || most != want {
			t.Errorf("%d, %v; want %d", most, ok, want)
		}
		if _, ok := all.begin(ws); ok {
			t.Error("two at a time")
		}
		all.end(ws, most, context.DeadlineExceeded)
		if _, ok := all.begin(ws); ok {
			t.Error("it is tried again at once")
		}
		failed := all.of[ws]
		failed.after = time.Time{}
		all.of[ws] = failed
	}
	for range 3 {
		most, _ := all.begin(ws)
		all.end(ws, most, nil)
	}
	most, ok := all.begin(ws)
	if all.end(ws, most, nil); !ok || most != chunk || len(all.of) != 0 {
		t.Errorf("%d, %v, %v", most, ok, all.of)
	}
}

// A workspace whose work panics is tried again, and does not stop the others.
func TestAWorkspaceWhoseWorkPanics(t *testing.T) {
	b := setup(t)
	others := []uuid.UUID{b.Workspace, pgtest.Workspace(t, b.Pool), pgtest.Workspace(t, b.Pool)}
	for _, ws := range others {
		b.Exec(`insert into conversion_queue (workspace_id, received_at, key) values ($1, now(), $1)`, ws)
	}
	all := paces{chunk: chunk, of: map[uuid.UUID]pace{}}
	n, err := b.eachWaiting(t.Context(), "conversion_queue", &all, func(ws uuid.UUID, most int) (int, error) {
		if ws == b.Workspace {
			panic("a row")
		}
		return 1, nil
	})
	if n != 2 || err == nil || all.of[b.Workspace].busy {
		t.Errorf("%d, %v, %v", n, err, all.of)
	}
}
