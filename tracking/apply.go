package tracking

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/loop"
	"lemma/queue"
)

const (
	chunk    = 1000                   // events that one transaction applies
	period   = 250 * time.Millisecond // how often the queue is read
	appliers = 3                      // workspaces whose events a process applies at a time

	// settled is the age at which an event is applied. All events that the rules of
	// machines compare it with are stored by then.
	settled = 3 * time.Second
	fast    = 2 * time.Second // from the send to a click that no person makes
	beside  = time.Second     // between clicks on two links that no person makes
	before  = time.Minute     // from a HEAD request to the click that it announces

	// ahead is more than a time can be ahead of the clock: a flood is dated to the end of its minute.
	// Events beyond it were recorded by a wrong clock of the database, and are applied at once, with
	// their times, since the rules compare these.
	ahead = 2 * time.Minute
)

// Loop applies events until ctx ends. Several workspaces are applied at a time, so that a
// slow one does not stop the others.
func (t *Tracking) Loop(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() {
		loop.Every(ctx, period, t.queueDue, func(err error) { t.Log.Error("queue trigger events", "error", err) })
	})
	for range converters {
		all.Go(func() { loop.Every(ctx, period, t.convertDue, t.logNotConverted) })
	}
	for range appliers {
		all.Go(func() { loop.Every(ctx, period, t.applyDue, t.logFailed) })
	}
	all.Wait()
}

func (t *Tracking) logFailed(err error) { t.Log.Error("apply opens and clicks", "error", err) }

// applyDue applies until nothing is left that can be applied now.
func (t *Tracking) applyDue(ctx context.Context) error {
	for {
		n, err := t.Apply(ctx, settled)
		if err != nil && ctx.Err() == nil {
			t.logFailed(err)
		}
		if n == 0 {
			return ctx.Err()
		}
	}
}

// Apply applies at most one chunk of each workspace, of events that are at least of an
// age, and returns how many these were. It leaves out workspaces that another call
// applies. A workspace that fails does not stop the others.
func (t *Tracking) Apply(ctx context.Context, age time.Duration) (applied int, err error) {
	return t.opensAndClicks.Each(ctx, func(ctx context.Context, ws uuid.UUID, of queue.Part) (int, error) {
		return t.applyChunk(ctx, ws, age, of)
	})
}

func (t *Tracking) applyChunk(ctx context.Context, ws uuid.UUID, age time.Duration, of queue.Part) (n int, err error) {
	var a application
	err = pgx.BeginFunc(ctx, t.Pool, func(tx pgx.Tx) error {
		a = application{tx: tx, ws: ws}
		if n, err = a.take(ctx, age, of); n == 0 || err != nil {
			return err
		}
		return a.apply(ctx)
	})
	if err != nil {
		return 0, err
	}
	t.Metrics.unmatched.Add(float64(a.unmatched))
	for _, e := range a.events {
		t.Metrics.events.WithLabelValues(e.kind, e.machine).Add(float64(e.times))
	}
	return n, nil
}

// application applies a chunk of one workspace.
type application struct {
	tx pgx.Tx
	ws uuid.UUID

	events    []*applied
	unmatched int
}

// applied is an event with what the rules and the counts need.
type applied struct {
	event
	content   uuid.UUID
	isFast    bool // it came within fast after the message was sent
	isBeside  bool // it is a click beside one on another link
	isProbed  bool // a HEAD request precedes it
	isFlood   bool // it is a click among too many of its notification
	isMatched bool // its notification exists
}

func (a *application) apply(ctx context.Context) error {
	if err := a.compare(ctx); err != nil {
		return err
	}
	matched := a.events[:0]
	for _, e := range a.events {
		if !e.isMatched {
			a.unmatched++
			continue
		}
		e.decide()
		matched = append(matched, e)
	}
	a.events = matched
	if err := a.gatherFloods(ctx); err != nil {
		return err
	}
	if err := a.append(ctx); err != nil || len(a.events) == 0 {
		return err
	}
	if err := a.count(ctx); err != nil {
		return err
	}
	return a.recordEvents(ctx)
}

// decide sets the reason of a click that only other events show to be a machine's.
func (e *applied) decide() {
	if e.kind != clicked || e.machine != "" {
		return
	}
	switch {
	case e.isFlood:
		e.machine = flood
	case e.isFast:
		e.machine = tooFast
	case e.isBeside:
		e.machine = severalLinks
	case e.isProbed:
		e.machine = probedBefore
	}
}

// take deletes the oldest events of the queue. Events that another transaction takes are
// left out. Rows are deleted by ctid: a join may read the whole queue.
func (a *application) take(ctx context.Context, age time.Duration, of queue.Part) (int, error) {
	rows, _ := a.tx.Query(ctx, `
		delete from tracking_queue q where ctid = any(array(
			select ctid from tracking_queue where workspace_id = $1 and times > 0 and occurred_at <= now() - $2::interval
			order by occurred_at limit $3 offset $4 for update skip locked)
		|| array(
			select ctid from tracking_queue where workspace_id = $1 and times > 0 and occurred_at > now() + $5::interval
			order by occurred_at limit $3 offset $4 for update skip locked))
		returning q.id, q.origin_id, q.key, q.type, q.link, coalesce(q.machine, ''), q.times, q.occurred_at`,
		a.ws, age, of.Most, of.Skip, ahead)
	var e event
	_, err := pgx.ForEachRow(rows, []any{&e.id, &e.of.origin, &e.of.key, &e.kind, &e.of.link, &e.machine, &e.times, &e.at}, func() error {
		a.events = append(a.events, &applied{event: e})
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("take queued opens and clicks: %w", err)
	}
	return len(a.events), nil
}
