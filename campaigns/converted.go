package campaigns

import (
	"bytes"
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/abtest"
	"lemma/audience"
)

// readConverted reads the members of an iteration, and records which of them have
// converted before a time. Opens and clicks are counted by package tracking.
func (c *Campaigns) readConverted(ctx context.Context, it Iteration, until time.Time) (*members, error) {
	m, err := c.readMembers(ctx, it)
	if err != nil {
		return nil, err
	}
	switch by := it.Metric; {
	case by.Event != "":
		err = c.readEvents(ctx, it, until, m)
	case by.SQL != "":
		err = c.readKeys(ctx, it, until, m)
	}
	return m, err
}

// readKeys reads the keys that the SQL of a metric returns.
func (c *Campaigns) readKeys(ctx context.Context, it Iteration, until time.Time, m *members) error {
	found := conversionsOf(it, m)
	defer found.end()
	period := audience.Period{StartedAt: *it.StartedAt, CutOffAt: until}
	return c.audiences.Keys(ctx, it.WorkspaceID, it.Metric.DataSourceID, it.Metric.SQL, period, found.add)
}

const (
	// eventParts is of how many parts of the time the events are read: more than there are
	// readers, since some have more events than others.
	eventParts = 4 * readers
	// eventsPerRow is how many profile keys Postgres sends as one row, of up to 4 MB. A row
	// for each costs Postgres and Lemma more, and waits for the scheduler.
	eventsPerRow = 1 << 14
)

// period is from a time until before another.
type period struct{ from, to time.Time }

// partsOf divides a period. The times are those that Postgres can store.
func partsOf(p period, n int) []period {
	parts := make([]period, n)
	from := p.from
	for i := range parts {
		to := p.from.Add(p.to.Sub(p.from) / time.Duration(n) * time.Duration(i+1)).Truncate(time.Microsecond)
		if i == n-1 {
			to = p.to
		}
		parts[i], from = period{from, to}, to
	}
	return parts
}

// readEvents reads the events of an iteration's metric that were received before a time.
func (c *Campaigns) readEvents(ctx context.Context, it Iteration, until time.Time, m *members) error {
	return lemma.Wrap(c.readSomeEvents(ctx, it, until, m, eventsPerRow), "read events of iteration %s", it.ID)
}

// readSomeEvents is readEvents, some in a row.
func (c *Campaigns) readSomeEvents(ctx context.Context, it Iteration, until time.Time, m *members, perRow int) error {
	parts := partsOf(period{*it.StartedAt, until}, eventParts)
	return inReaders(ctx, c.reading, parts, func(ctx context.Context, p period) error {
		found := conversionsOf(it, m)
		defer found.end()
		for {
			last, err := c.readReceived(ctx, it, p, perRow, found.add)
			if err != nil || last == nil {
				return err
			}
			p.from = last.Add(time.Microsecond)
		}
	})
}

// readReceived reads the profile keys of the first events of a period, in the order in
// which they were received, and all that were received at the time of the last of them.
// That time is nil if there are no more. A separator divides the keys. Their number shows
// whether a key has it: then a zero byte, which no key has, divides them. As text, the keys
// cost Postgres a third less.
func (c *Campaigns) readReceived(ctx context.Context, it Iteration, p period, most int, read func(key []byte)) (*time.Time, error) {
	last, divided, err := c.readDivided(ctx, it, p, most, `string_agg(profile_key, E'\x1f')`, '\x1f', read)
	if err == nil && !divided {
		last, _, err = c.readDivided(ctx, it, p, most, `string_agg(textsend(profile_key), '\x00'::bytea)`, 0, read)
	}
	return last, err
}

// readDivided is readReceived with keys that a byte divides. It reads nothing if a key has
// that byte.
func (c *Campaigns) readDivided(ctx context.Context, it Iteration, p period, most int, keysBy string, by byte, read func(key []byte)) (
	last *time.Time, divided bool, err error) {
	rows, _ := c.pool.Query(ctx, `
		select `+keysBy+`, count(*), max(received_at)
		from (
			select profile_key, received_at from trigger_events
			where workspace_id = $1 and name = $2 and received_at >= $3 and received_at < $4 and occurred_at >= $5
			order by received_at fetch first ($6::int) rows with ties
		) e`, it.WorkspaceID, it.Metric.Event, p.from, p.to, it.StartedAt, most)
	var keys []byte
	var n int
	_, err = pgx.ForEachRow(rows, []any{(*pgtype.DriverBytes)(&keys), &n, &last}, func() error {
		if n < most {
			last = nil
		}
		divider := []byte{by}
		if divided = n == 0 || bytes.Count(keys, divider) == n-1; divided && n > 0 {
			for key := range bytes.SplitSeq(keys, divider) {
				read(key)
			}
		}
		return nil
	})
	return last, divided, err
}

// conversions records which members have converted, some at a time.
type conversions struct {
	members *members
	split   abtest.Split // of the fingerprints
	found   []uint64
}

func conversionsOf(it Iteration, m *members) conversions {
	return conversions{members: m, split: assignmentPlan(it.ID, it.Experiment).Variant}
}

func (f *conversions) add(key []byte) {
	if f.found = append(f.found, f.split.HashBytes(key)); len(f.found) >= together {
		f.end()
	}
}

// end records those that remain.
func (f *conversions) end() {
	f.members.convertAll(f.found)
	f.found = f.found[:0]
}
