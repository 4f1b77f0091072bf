package tracking

import (
	"bytes"
	"context"
	"net/http"
	"slices"
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
	times   int       // requests for which it stands; more than 1 for a flood
	at      time.Time // by the clock of the database; of Unsubscribed: zero, that of the statement
}

// record stores an event. It waits for at most maxStore; an event that is not stored by
// then may be lost.
func (t *Tracking) record(r *http.Request, ws uuid.UUID, to target, click bool) {
	e := event{of: to, kind: opened, machine: machineOf(r.Header, click)}
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
	if err := t.date(ctx, &e); err != nil {
		t.logLost(ctx, e, err)
		return
	}
	if t.watch.isFlood(e.notification(), e.at) {
		t.Metrics.floods.Inc()
		if e.kind == probed {
			return
		}
		e = flooded(e)
	}
	if _, err := t.gather.Do(ctx, ws, e); err != nil {
		t.logLost(ctx, e, err)
	}
}

// date sets the time and the id of an event.
func (t *Tracking) date(ctx context.Context, e *event) (err error) {
	e.at, err = t.clock.Now(ctx)
	e.id = madeAt(e.at, lemma.NewID())
	return err
}

func (t *Tracking) logLost(ctx context.Context, e event, err error) {
	t.Metrics.lost.Inc()
	t.Log.WarnContext(ctx, "an open or click was not stored in time", "type", e.kind, "error", err)
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
	all := make([]event, len(of))
	for i, n := range of {
		all[i] = event{of: target{origin: n.Origin, key: n.Key}, kind: unsubscribed}
		all[i].id = onceOf(all[i])
	}
	if err := enqueue(ctx, tx, ws, all); err != nil {
		return err
	}
	return recordUnsubscribed(ctx, tx, ws, of)
}

// time is nil for the time of the statement that stores the event.
func (e event) time() *time.Time {
	if e.at.IsZero() {
		return nil
	}
	return &e.at
}

type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// byID sorts events by their ids, so that two transactions do not wait for each other,
// and makes one event of those with the same id.
func byID(all []event) []event {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b event) int { return bytes.Compare(a.id[:], b.id[:]) })
	one := all[:0]
	for _, e := range all {
		e.times = max(e.times, 1)
		last := len(one) - 1
		switch {
		case last < 0 || one[last].id != e.id:
			one = append(one, e)
		case e.machine == flood:
			one[last].times += e.times
		}
	}
	return one
}

// enqueue appends events, and leaves out those that are queued. It adds floods to those
// that are queued.
func enqueue(ctx context.Context, db execer, ws uuid.UUID, all []event) error {
	var ids, origins, keys []uuid.UUID
	var kinds, machines []string
	var numbers, counts []int32
	var times []*time.Time
	for _, e := range byID(all) {
		ids, origins, keys = append(ids, e.id), append(origins, e.of.origin), append(keys, e.of.key)
		kinds, machines = append(kinds, e.kind), append(machines, e.machine)
		numbers, counts, times = append(numbers, int32(e.of.link)), append(counts, int32(e.times)), append(times, e.time())
	}
	_, err := db.Exec(ctx, `
		insert into tracking_queue as q (workspace_id, id, origin_id, key, type, link, times, machine, occurred_at)
		select $1, e.id, e.origin_id, e.key, e.type, e.link, e.times, nullif(e.machine, ''), coalesce(e.at, now())
		from unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::int[], $7::int[], $8::text[], $9::timestamptz[])
			as e (id, origin_id, key, type, link, times, machine, at)
		on conflict (workspace_id, origin_id, key, id) do update set times = q.times + excluded.times where q.machine = '`+flood+`'`,
		ws, ids, origins, keys, kinds, numbers, counts, machines, times)
	return lemma.Wrap(err, "store %d opens and clicks", len(all))
}
