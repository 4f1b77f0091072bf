package sender

import (
	"context"
	"fmt"
	"time"

	"lemma"

	"github.com/jackc/pgx/v5"
)

// The Date of a message is the time of its call, and a second attempt repeats it. So
// it is fixed when a window opens, committed with the window before any call, and read
// again by the second attempt.
const (
	windowLasts = 20 * time.Second // no message of a window begins later
	dateLasts   = 30 * time.Second // no window whose commit took longer is called
)

// now estimates the database's time.
func (c *claim) now() time.Time { return c.at(time.Now()) }

// at estimates the database's time at a time of this process.
func (c *claim) at(t time.Time) time.Time { return c.clock.Add(t.Sub(c.started)) }

// answered estimates the database's time of an answer to a call of the last window. It is
// after that window was opened, and not later than the answer.
func (c *claim) answered(at time.Time) time.Time {
	if at.IsZero() {
		at = time.Now()
	}
	if c.openedAt.IsZero() {
		return c.at(at)
	}
	return c.opened.Add(max(at.Sub(c.openedAt), time.Microsecond))
}

// date sets the Date of a window's messages, in whole seconds as a header has it.
func (c *claim) date(w *window) {
	w.date = c.now().UTC().Truncate(time.Second)
	for i, ordinal := range w.rows {
		w.messages[i].Date = w.date
		if c.attempt == 2 {
			w.messages[i].Date = c.dates[ordinal]
		}
	}
}

// stale reports that the Date would be too old: the window is given back uncalled.
func (c *claim) stale(w *window) bool {
	return c.attempt == 1 && c.now().Sub(w.date) > dateLasts
}

// startBy sets the latest start of a window's messages: soon, so that their Date is
// right; before the send deadline; and early enough for a call to end within the
// lease, since the outcome of an interrupted call is unknown.
func (s *Sender) startBy(c *claim, w *window, begun time.Time) {
	by := begun.Add(windowLasts)
	for _, bound := range []time.Time{c.until.Add(-s.cfg.CallTimeout), c.expires} {
		if bound.Before(by) {
			by = bound
		}
	}
	for i := range w.messages {
		w.messages[i].StartBy = by
	}
}

// readDates reads the Date of the first attempt's messages. It is the date of the last
// window that contained the row before its outcome became unknown, or before the row
// was first moved to another batch: rows that wait for events may be moved several
// times. Later windows contain the row's ordinal without calling it. If the database's clock went back in between, it is the first window
// after that.
func (s *Sender) readDates(ctx context.Context, c *claim) error {
	if c.attempt == 1 || len(c.rows) == 0 {
		return nil
	}
	ordinals := make([]int16, len(c.rows))
	for i, r := range c.rows {
		ordinals[i] = r.Ordinal
	}
	rows, _ := s.pool.Query(ctx, `
		select a.ordinal, w.message_date from attempts a
		cross join lateral (select least(a.at, (
			select min(d.created_at) from batches d where d.workspace_id = a.workspace_id and d.origin_id = $4
			and d.root_id = a.batch_id and d.id <> d.root_id and d.attempt = 1 and a.ordinal = any(d.members))) as at) unknown
		cross join lateral (select w.message_date from batch_log w
			where w.workspace_id = a.workspace_id and w.batch_id = a.batch_id and w.event = 'window'
			  and a.ordinal between w.first and w.last and w.message_date is not null
			order by greatest(w.at - unknown.at, interval '0'), w.at desc limit 1) w
		where a.workspace_id = $1 and a.batch_id = $2 and a.ordinal = any($3) and a.attempt = 1`,
		c.WorkspaceID, c.root, ordinals, c.OriginID)
	c.dates = make(map[int16]time.Time, len(ordinals))
	var ordinal int16
	var date time.Time
	_, err := pgx.ForEachRow(rows, []any{&ordinal, &date}, func() error { c.dates[ordinal] = date.UTC(); return nil })
	if err == nil && len(c.dates) < len(ordinals) {
		err = fmt.Errorf("%d of %d first attempts have no window", len(ordinals)-len(c.dates), len(ordinals))
	}
	return lemma.Wrap(err, "read dates of batch %s", c.BatchID)
}
