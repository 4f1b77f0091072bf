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

// readEvents adds the profiles with an event of an iteration's metric to converted. Each
// connection reads a part of the time.
func (c *Campaigns) readEvents(ctx context.Context, it Iteration, until time.Time, converted *hashes) error {
	found := make([][]uint64, eventReaders)
	part := until.Sub(*it.StartedAt) / eventReaders
	work, ctx := errgroup.WithContext(ctx)
	for i := range found {
		from, to := it.StartedAt.Add(time.Duration(i)*part), it.StartedAt.Add(time.Duration(i+1)*part)
		if i == eventReaders-1 {
			to = until
		}
		work.Go(func() (err error) {
			found[i], err = c.readPart(ctx, it, from, to)
			return err
		})
	}
	if err := work.Wait(); err != nil {
		return fmt.Errorf("read events of iteration %s: %w", it.ID, err)
	}
	for _, part := range found {
		for _, h := range part {
			converted.add(h)
		}
	}
	return nil
}

// readPart reads the events of an iteration's metric that were received in a part of the
// time, as hashes of their profile keys.
func (c *Campaigns) readPart(ctx context.Context, it Iteration, from, to time.Time) (found []uint64, err error) {
	rows, err := c.pool.Query(ctx, `
		select profile_key from trigger_events
		where workspace_id = $1 and name = $2 and received_at >= $3 and received_at < $4 and occurred_at >= $5`,
		it.WorkspaceID, it.Metric.Event, from, to, it.StartedAt)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	split := fingerprints(it.ID)
	for rows.Next() {
		found = append(found, split.Hash(string(rows.RawValues()[0])))
	}
	return found, rows.Err()
}
