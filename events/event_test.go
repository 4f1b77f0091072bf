package events_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lemma"
	"lemma/events"
	"lemma/pgtest"
)

func event(id string, kind events.Kind, ordinal int16) events.Event {
	return events.Event{ProviderID: provider, Source: "hook", SourceID: id, OriginID: origin, BatchID: batch, Ordinal: ordinal, Attempt: 1,
		Kind:       kind,
		OccurredAt: time.Now()}
}

var provider, origin, batch = lemma.NewID(), lemma.NewID(), lemma.NewID()

// ProviderEvents!AppliedOnce: an event that arrives often, also concurrently, is
// kept once; one without an id is kept each time.
func TestAnEventIsKeptOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	ws, other := pgtest.Workspace(t, pool), pgtest.Workspace(t, pool)
	ctx := context.Background()
	var kept atomic.Int64
	var carriers sync.WaitGroup
	for range 8 {
		carriers.Go(func() {
			n, err := events.Record(ctx, pool, ws, []events.Event{event("e1", events.Accepted, 1), event("", events.Accepted, 2)})
			if err != nil {
				t.Error(err)
			}
			kept.Add(int64(n))
		})
	}
	carriers.Wait()
	if kept.Load() != 1+8 {
		t.Errorf("%d kept, want one of e1 and all eight without an id", kept.Load())
	}
	if n, err := events.Record(ctx, pool, other, []events.Event{event("e1", events.Accepted, 1)}); n != 1 || err != nil {
		t.Errorf("another workspace's event of the same id: %d, %v", n, err)
	}
}

// Only old events that match no notification are deleted.
func TestPurge(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	ws := pgtest.Workspace(t, pool)
	ctx := context.Background()
	for range 3 {
		if _, err := events.Receive(ctx, pool, ws, []events.Received{{ProviderID: lemma.NewID(), Report: events.Report{
			Type: events.TypeDelivered}}}); err == nil {
			t.Error("a watermark of no provider was written")
		}
	}
	shop := pgtest.ShopIn(t, pool)
	account := shop.NewProvider("http")
	for _, id := range []string{"old", "", "new"} {
		_, err := events.Receive(ctx, pool, shop.Workspace, []events.Received{{ProviderID: account,
			Report: events.Report{ID: id, Type: events.TypeDelivered}}})
		shop.Must(err)
	}
	shop.WantCount(3, `select count(*) from provider_events_unmatched`) // as many as carriers send: not in the default partition
	_, err := events.Record(ctx, pool, shop.Workspace, []events.Event{event("e1", events.Accepted, 1)})
	shop.Must(err)
	shop.Exec(`update provider_events set recorded_at = now() - interval '31 days' where source_event_id <> 'new'`)
	if n, err := events.Purge(ctx, pool); n != 2 || err != nil {
		t.Errorf("%d deleted, %v", n, err)
	}
	if n := shop.Count(`select count(*) from provider_events where source_event_id in ('new', 'e1')`); n != 2 {
		t.Errorf("%d are left", n)
	}
}

// One acceptance outweighs every rejection, and a deferral proves nothing.
func TestProofs(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	ws := pgtest.Workspace(t, pool)
	ctx := context.Background()
	_, err := events.Record(ctx, pool, ws, []events.Event{
		event("", events.Rejected, 1), event("", events.Accepted, 1), event("", events.Deferred, 2), event("", events.Rejected, 3),
		event("", events.Rejected, 5), second(event("", events.Rejected, 5)), event("", events.Rejected,
			6), second(event("", events.Accepted, 6)),
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := events.Proofs(ctx, pool, ws, origin, batch, []int16{1, 2, 3, 4, 5, 6})
	if err != nil || len(got) != 4 {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, c := range []struct {
		ordinal, attempt int16
		kind             events.Kind // "" for nothing
		of               int16       // the attempt of the proof
	}{
		{1, 1, events.Accepted, 1}, {1, 2, events.Accepted, 1},
		{2, 1, "", 0}, {4, 1, "", 0},
		{3, 1, events.Rejected, 1}, {3, 2, "", 0},
		{5, 1, events.Rejected, 1}, {5, 2, events.Rejected, 2},
		{6, 1, events.Accepted, 2}, {6, 2, events.Accepted, 2},
	} {
		p := got[c.ordinal].Of(c.attempt)
		if (p == nil) != (c.kind == "") || p != nil && (p.Kind != c.kind || p.Attempt != c.of) {
			t.Errorf("attempt %d of row %d: %+v, want %q of attempt %d", c.attempt, c.ordinal, p, c.kind, c.of)
		}
	}
	if got, err := events.Proofs(ctx, pool, lemma.NewID(), origin, batch, []int16{1}); err != nil || len(got) != 0 {
		t.Errorf("another workspace sees %+v, %v", got, err)
	}
}

func second(e events.Event) events.Event {
	e.Attempt = 2
	return e
}
