package campaigns

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// eventReaders is how many connections read the events of an iteration at a time. Postgres
// needs longer to write a row than Lemma to read it.
const eventReaders = 4

// readEvents records the members with an event of an iteration's metric. Each connection
// reads a part of the time.
func (c *Campaigns) readEvents(ctx context.Context, it Iteration, until time.Time, m *members) error {
	part := until.Sub(*it.StartedAt) / eventReaders
	work, ctx := errgroup.WithContext(ctx)
	for i := range eventReaders {
		from, to := it.StartedAt.Add(time.Duration(i)*part), it.StartedAt.Add(time.Duration(i+1)*part)
		if i == eventReaders-1 {
			to = until
		}
		work.Go(func() error { return c.readPart(ctx, it, from, to, m) })
	}
	if err := work.Wait(); err != nil {
		return fmt.Errorf("read events of iteration %s: %w", it.ID, err)
	}
	return nil
}

// readPart reads the events of an iteration's metric that were received in a part of the
// time.
func (c *Campaigns) readPart(ctx context.Context, it Iteration, from, to time.Time, m *members) error {
	rows, err := c.pool.Query(ctx, `
		select profile_key from trigger_events
		where workspace_id = $1 and name = $2 and received_at >= $3 and received_at < $4 and occurred_at >= $5`,
		it.WorkspaceID, it.Metric.Event, from, to, it.StartedAt)
	if err != nil {
		return err
	}
	defer rows.Close()
	split := fingerprints(it.ID)
	for rows.Next() {
		m.convert(split.Hash(string(rows.RawValues()[0])))
	}
	return rows.Err()
}
