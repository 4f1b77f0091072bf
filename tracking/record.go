package tracking

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lemma"
)

// Types of events. A HEAD request counts nothing: probed.
const (
	opened       = "opened"
	clicked      = "clicked"
	probed       = "probed"
	converted    = "converted"
	unsubscribed = "unsubscribed"
)

// together is how many events one transaction stores, at most.
const together = 500

// event is a request for a pixel or a link, or a conversion, or that a recipient unsubscribed.
type event struct {
	id      uuid.UUID
	of      target
	kind    string
	machine string
	at      time.Time
}

// record stores an event. It waits for at most maxStore; an event that is not stored by
// then may be lost.
func (t *Tracking) record(r *http.Request, ws uuid.UUID, to target, click bool) {
	e := event{id: lemma.NewID(), of: to, kind: opened, machine: machineOf(r.Header, click), at: time.Now()}
	switch {
	case r.Method == http.MethodHead:
		e.kind = probed
	case click:
		e.kind = clicked
	}
	if e.kind == probed && !click {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), maxStore)
	defer cancel()
	if _, err := t.gather.Do(ctx, ws, e); err != nil {
		t.Metrics.lost.Inc()
		t.Log.WarnContext(ctx, "an open or click was not stored in time", "type", e.kind, "error", err)
	}
}

// store is one transaction for the events of a workspace that arrived together.
func (t *Tracking) store(ctx context.Context, ws uuid.UUID, all []event) ([]bool, error) {
	if err := enqueue(ctx, t.Pool, ws, all); err != nil {
		return nil, err
	}
	return make([]bool, len(all)), nil
}

// Notification names a notification of a workspace.
type Notification struct{ Origin, Key uuid.UUID }

// Unsubscribed records, in the caller's transaction, that recipients unsubscribed by means
// of notifications. Each notification is counted once.
func Unsubscribed(ctx context.Context, tx pgx.Tx, ws uuid.UUID, of ...Notification) error {
	if len(of) == 0 {
		return nil
	}
	all, now := make([]event, len(of)), time.Now()
	for i, n := range of {
		all[i] = event{id: lemma.NewID(), of: target{origin: n.Origin, key: n.Key}, kind: unsubscribed, at: now}
	}
	if err := enqueue(ctx, tx, ws, all); err != nil {
		return err
	}
	return recordUnsubscribed(ctx, tx, ws, of)
}

type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// enqueue appends events, and leaves out those that are queued.
func enqueue(ctx context.Context, db execer, ws uuid.UUID, all []event) error {
	var ids, origins, keys []uuid.UUID
	var kinds, machines []string
	var numbers []int32
	var times []time.Time
	for _, e := range all {
		ids, origins, keys = append(ids, e.id), append(origins, e.of.origin), append(keys, e.of.key)
		kinds, machines = append(kinds, e.kind), append(machines, e.machine)
		numbers, times = append(numbers, int32(e.of.link)), append(times, e.at)
	}
	_, err := db.Exec(ctx, `
		insert into tracking_queue (workspace_id, id, origin_id, key, type, link, machine, occurred_at)
		select $1, e.id, e.origin_id, e.key, e.type, e.link, nullif(e.machine, ''), e.at
		from unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::int[], $7::text[], $8::timestamptz[])
			as e (id, origin_id, key, type, link, machine, at)
		on conflict (workspace_id, id) do nothing`, ws, ids, origins, keys, kinds, numbers, machines, times)
	if err != nil {
		return fmt.Errorf("store %d opens and clicks: %w", len(all), err)
	}
	return nil
}
