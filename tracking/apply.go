package tracking

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/loop"
)

const (
	chunk  = 1000                   // events that one transaction applies
	period = 250 * time.Millisecond // how often the queue is read

	// settled is the age at which an event is applied. All events that the rules of
	// machines compare it with are stored by then.
	settled = 3 * time.Second
	fast    = 2 * time.Second // from the send to a click that no person makes
	beside  = time.Second     // between clicks on two links that no person makes
	before  = time.Minute     // from a HEAD request to the click that it announces
)

// Loop applies events until ctx ends.
func (t *Tracking) Loop(ctx context.Context) {
	loop.Every(ctx, period, func(ctx context.Context) error {
		if err := t.convertDue(ctx); err != nil {
			return err
		}
		for {
			n, err := t.Apply(ctx, time.Now().Add(-settled))
			if n == 0 || err != nil {
				return err
			}
		}
	}, func(err error) { t.Log.Error("apply opens and clicks", "error", err) })
}

// Apply applies at most one chunk of each workspace, of events that occurred until a
// time, and returns how many these were. A workspace that fails does not stop the others.
func (t *Tracking) Apply(ctx context.Context, until time.Time) (applied int, err error) {
	workspaces, err := t.waiting(ctx)
	if err != nil {
		return 0, err
	}
	var failed error
	for _, ws := range workspaces {
		n, err := t.applyChunk(ctx, ws, until)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("apply opens and clicks of workspace %s: %w", ws, err))
		}
		applied += n
	}
	return applied, failed
}

// waiting returns workspaces with queued events. It skips from one to the next.
func (t *Tracking) waiting(ctx context.Context) ([]uuid.UUID, error) {
	rows, err := t.Pool.Query(ctx, `
		with recursive w as (
			(select workspace_id from tracking_queue order by workspace_id limit 1)
			union all
			select n.workspace_id from w cross join lateral (
				select q.workspace_id from tracking_queue q where q.workspace_id > w.workspace_id order by q.workspace_id limit 1) n
		)
		select workspace_id from w`)
	if err != nil {
		return nil, fmt.Errorf("find queued opens and clicks: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

func (t *Tracking) applyChunk(ctx context.Context, ws uuid.UUID, until time.Time) (n int, err error) {
	var a application
	err = pgx.BeginFunc(ctx, t.Pool, func(tx pgx.Tx) error {
		a = application{tx: tx, ws: ws}
		if n, err = a.take(ctx, until); n == 0 || err != nil {
			return err
		}
		return a.apply(ctx)
	})
	if err != nil {
		return 0, err
	}
	t.Metrics.unmatched.Add(float64(a.unmatched))
	for _, e := range a.events {
		t.Metrics.events.WithLabelValues(e.kind, e.machine).Inc()
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
	isMatched bool // its notification exists
}

func (a *application) apply(ctx context.Context) error {
	if err := a.compare(ctx); err != nil {
		return err
	}
	a.compareTogether()
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
	case e.isFast:
		e.machine = tooFast
	case e.isBeside:
		e.machine = severalLinks
	case e.isProbed:
		e.machine = probedBefore
	}
}

// take deletes the oldest events of the queue. Events that another transaction takes are
// left out.
func (a *application) take(ctx context.Context, until time.Time) (int, error) {
	rows, err := a.tx.Query(ctx, `
		delete from tracking_queue q
		using (
			select workspace_id, id from tracking_queue where workspace_id = $1 and occurred_at <= $2
			order by workspace_id, id limit $3 for update skip locked
		) first
		where q.workspace_id = first.workspace_id and q.id = first.id
		returning q.id, q.origin_id, q.key, q.type, q.link, coalesce(q.machine, ''), q.occurred_at`, a.ws, until, chunk)
	if err != nil {
		return 0, fmt.Errorf("take queued opens and clicks: %w", err)
	}
	var e event
	_, err = pgx.ForEachRow(rows, []any{&e.id, &e.of.origin, &e.of.key, &e.kind, &e.of.link, &e.machine, &e.at}, func() error {
		a.events = append(a.events, &applied{event: e})
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("take queued opens and clicks: %w", err)
	}
	return len(a.events), nil
}

// compare reads what the rules compare events with: the notification, when it was sent,
// and its other events, whether they are queued or applied.
func (a *application) compare(ctx context.Context) error {
	var origins, keys, first, last []uuid.UUID
	var numbers []int32
	var clicks []bool
	var times []time.Time
	for _, e := range a.events {
		origins, keys = append(origins, e.of.origin), append(keys, e.of.key)
		numbers, times = append(numbers, int32(e.of.link)), append(times, e.at)
		clicks = append(clicks, e.kind == clicked && e.machine == "")
		first, last = append(first, idAt(e.at.Add(-before-time.Second))), append(last, idAt(e.at.Add(beside+time.Second)))
	}
	rows, err := a.tx.Query(ctx, comparison, a.ws, origins, keys, numbers, clicks, times, fast, beside, before, first, last)
	if err != nil {
		return fmt.Errorf("compare %d opens and clicks: %w", len(a.events), err)
	}
	var at int
	var e applied
	_, err = pgx.ForEachRow(rows, []any{&at, &e.content, &e.isFast, &e.isBeside, &e.isProbed}, func() error {
		of := a.events[at]
		of.isMatched, of.content, of.isFast, of.isBeside, of.isProbed = true, e.content, e.isFast, e.isBeside, e.isProbed
		return nil
	})
	if err != nil {
		return fmt.Errorf("compare %d opens and clicks: %w", len(a.events), err)
	}
	return nil
}

// idAt is lower than the ids that are made from a time on: they begin with their
// milliseconds (RFC 9562, 5.7). It bounds how many events of a notification are read.
func idAt(t time.Time) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[:8], uint64(t.UnixMilli())<<16)
	return id
}

const comparison = `
	select r.i::int - 1, b.content_id, coalesce(r.at < sent.at + $7::interval, false), coalesce(o.beside, false), coalesce(o.probed, false)
	from unnest($2::uuid[], $3::uuid[], $4::int[], $5::boolean[], $6::timestamptz[], $10::uuid[], $11::uuid[])
		with ordinality as r (origin_id, key, link, click, at, first, last, i)
	cross join lateral (
		select n.batch_id, n.ordinal from notifications n
		where n.workspace_id = $1 and n.origin_id = r.origin_id and n.key = r.key offset 0
	) n
	cross join lateral (
		select b.content_id from batches b where b.workspace_id = $1 and b.origin_id = r.origin_id and b.id = n.batch_id offset 0
	) b
	left join lateral (
		select min(a.at) as at from attempts a
		where r.click and a.workspace_id = $1 and a.batch_id = n.batch_id and a.ordinal = n.ordinal
		  and a.outcome = 'accepted' and a.basis = 'response'
	) sent on true
	left join lateral (
		select bool_or(e.type = 'clicked' and e.link <> r.link and e.at between r.at - $8::interval and r.at + $8::interval) as beside,
			bool_or(e.type = 'probed' and e.link = r.link and e.at between r.at - $9::interval and r.at) as probed
		from (
			select q.type, q.link, q.occurred_at as at from tracking_queue q
			where r.click and q.workspace_id = $1 and q.origin_id = r.origin_id and q.key = r.key and q.id between r.first and r.last
			union all
			select t.type, t.link, t.occurred_at from tracking_events t
			where r.click and t.workspace_id = $1 and t.origin_id = r.origin_id and t.key = r.key and t.id between r.first and r.last
		) e
	) o on true`

// compareTogether compares the events of the chunk with each other.
func (a *application) compareTogether() {
	of := map[[2]uuid.UUID][]*applied{}
	for _, e := range a.events {
		if e.kind == clicked || e.kind == probed {
			name := [2]uuid.UUID{e.of.origin, e.of.key}
			of[name] = append(of[name], e)
		}
	}
	for _, all := range of {
		for _, e := range all {
			for _, other := range all {
				since := e.at.Sub(other.at)
				e.isBeside = e.isBeside || other.kind == clicked && other.of.link != e.of.link && since.Abs() <= beside
				e.isProbed = e.isProbed || other.kind == probed && other.of.link == e.of.link && since >= 0 && since <= before
			}
		}
	}
}
