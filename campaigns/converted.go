package campaigns

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"lemma/audience"
)

// readConverted reads the members of an iteration, and records which of them have
// converted before a time. Opens and clicks are counted by package tracking.
func (c *Campaigns) readConverted(ctx context.Context, it Iteration, until time.Time) (*members, error) {
	by := it.Metric
	if by.Event != "" {
		return c.readEvents(ctx, it, until)
	}
	m, err := c.readMembers(ctx, it, func() {})
	if err != nil || by.SQL == "" {
		return m, err
	}
	hash, period := fingerprint(it), audience.Period{StartedAt: *it.StartedAt, CutOffAt: until}
	return m, c.audiences.Keys(ctx, it.WorkspaceID, by.DataSourceID, by.SQL, period, func(key []byte) { m.convert(hash(string(key))) })
}

const (
	// eventReaders is how many connections read the events of an iteration at a time; a
	// process has twice as many. Postgres needs longer to write a row than Lemma to read it.
	eventReaders = 8
	// maxEarly is how many events a reader keeps until the members are read: 1 MB.
	maxEarly = 1 << 17
)

// readEvents reads members, and at the same time the events of the metric, a part of the
// time in each connection. The members have their connection first, since readers of
// events wait for them.
func (c *Campaigns) readEvents(ctx context.Context, it Iteration, until time.Time) (*members, error) {
	work, ctx := errgroup.WithContext(ctx)
	read := make(chan *members, eventReaders)
	part := until.Sub(*it.StartedAt) / eventReaders
	m, err := c.readMembers(ctx, it, func() {
		for i := range eventReaders {
			from, to := it.StartedAt.Add(time.Duration(i)*part), it.StartedAt.Add(time.Duration(i+1)*part)
			if i == eventReaders-1 {
				to = until
			}
			work.Go(func() error { return c.readPart(ctx, it, from, to, &conversions{read: read, maxEarly: maxEarly}) })
		}
	})
	if err != nil {
		work.Go(func() error { return err })
		return nil, work.Wait()
	}
	for range eventReaders {
		read <- m
	}
	return m, work.Wait()
}

// readPart reads the events of an iteration's metric that were received in a part of the
// time.
func (c *Campaigns) readPart(ctx context.Context, it Iteration, from, to time.Time, found *conversions) error {
	select {
	case c.reading <- struct{}{}:
		defer func() { <-c.reading }()
	case <-ctx.Done():
		return ctx.Err()
	}
	rows, err := c.pool.Query(ctx, `
		select profile_key from trigger_events
		where workspace_id = $1 and name = $2 and received_at >= $3 and received_at < $4 and occurred_at >= $5`,
		it.WorkspaceID, it.Metric.Event, from, to, it.StartedAt)
	if err != nil {
		return fmt.Errorf("read events of iteration %s: %w", it.ID, err)
	}
	defer rows.Close()
	hash := fingerprint(it)
	for rows.Next() {
		if err := found.add(ctx, hash(string(rows.RawValues()[0]))); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read events of iteration %s: %w", it.ID, err)
	}
	return found.end(ctx)
}

// conversions records what converts members, some at a time, and keeps more of them until
// the members are read.
type conversions struct {
	read     <-chan *members
	members  *members // nil: not yet
	found    []uint64
	maxEarly int
}

func (f *conversions) add(ctx context.Context, h uint64) error {
	f.found = append(f.found, h)
	if f.members == nil && len(f.found) < f.maxEarly || len(f.found) < together {
		return nil
	}
	return f.end(ctx)
}

// end waits for the members and converts those that were found.
func (f *conversions) end(ctx context.Context) error {
	if f.members == nil {
		select {
		case f.members = <-f.read:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.members.convertAll(f.found)
	f.found = f.found[:0]
	return nil
}
