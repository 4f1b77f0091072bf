package sender

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// The Date of a message is when it is called, and the second attempt repeats
// the first's. So the time is fixed when a window opens, is committed with the
// window, before anybody is called, and is read again by the second attempt.
const (
	windowLasts = 20 * time.Second // no message of a window begins later
	dateLasts   = 30 * time.Second // no window whose commit took longer is called
)

// now is the database's time, as well as it can be told without asking.
func (c *claim) now() time.Time { return c.clock.Add(time.Since(c.started)) }

// date gives the messages of a window their Date, to the second as a header
// has it.
func (c *claim) date(w *window) {
	w.date = c.now().UTC().Truncate(time.Second)
	for i, ordinal := range w.rows {
		w.letters[i].Date = w.date
		if c.attempt == 2 {
			w.letters[i].Date = c.dates[ordinal]
		}
	}
}

// stale says that the Date would be too old: the window is given back uncalled.
func (c *claim) stale(w *window) bool {
	return c.attempt == 1 && c.now().Sub(w.date) > dateLasts
}

// startBy bounds when the messages of a window may begin: soon, so that their
// Date is true; before the send deadline; and early enough for the call to end
// by itself within the lease, since one that is cut off leaves a doubt.
func (s *Sender) startBy(c *claim, w *window, begun time.Time) {
	by := begun.Add(windowLasts)
	for _, bound := range []time.Time{c.until.Add(-s.cfg.CallTimeout), c.expires} {
		if bound.Before(by) {
			by = bound
		}
	}
	for i := range w.letters {
		w.letters[i].StartBy = by
	}
}

// readDates finds the Date of the first attempt's messages: that of the last
// window that a row was in before its outcome was called unknown, or before it
// left the batch for that. Later windows reach over the row without calling it.
// Where the database's clock went back in between, none is before: then it is the
// first after it, since a row without a date would be called by nobody.
func (s *Sender) readDates(ctx context.Context, c *claim) error {
	if c.attempt == 1 || len(c.rows) == 0 {
		return nil
	}
	ordinals := make([]int16, len(c.rows))
	for i, r := range c.rows {
		ordinals[i] = r.Ordinal
	}
	rows, err := s.pool.Query(ctx, `
		select a.ordinal, w.message_date from attempts a
		cross join lateral (select least(a.at, (select d.created_at from batches d where d.workspace_id = a.workspace_id and d.origin_id = $4
			and d.root_id = a.batch_id and d.id <> d.root_id and d.attempt = 1 and a.ordinal = any(d.open))) as at) doubt
		cross join lateral (select w.message_date from batch_log w
			where w.workspace_id = a.workspace_id and w.batch_id = a.batch_id and w.event = 'window'
			  and a.ordinal between w.first and w.last and w.message_date is not null
			order by greatest(w.at - doubt.at, interval '0'), w.at desc limit 1) w
		where a.workspace_id = $1 and a.batch_id = $2 and a.ordinal = any($3) and a.attempt = 1`, c.WorkspaceID, c.root, ordinals, c.OriginID)
	if err != nil {
		return fmt.Errorf("read dates of batch %s: %w", c.BatchID, err)
	}
	c.dates = make(map[int16]time.Time, len(ordinals))
	var ordinal int16
	var date time.Time
	_, err = pgx.ForEachRow(rows, []any{&ordinal, &date}, func() error { c.dates[ordinal] = date.UTC(); return nil })
	if err == nil && len(c.dates) < len(ordinals) {
		err = fmt.Errorf("%d of %d first attempts have no window", len(ordinals)-len(c.dates), len(ordinals))
	}
	if err != nil {
		return fmt.Errorf("read dates of batch %s: %w", c.BatchID, err)
	}
	return nil
}
