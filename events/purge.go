package events

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// unmatchedAge is how long events are kept that match no notification. Those of a
// notification are dropped with the partition of its month.
const unmatchedAge = 30 * 24 * time.Hour

// purgePage is how many events one statement of Purge deletes at most.
const purgePage = 10_000

// Purge deletes all old events that match no notification, which have a partition of their own, and returns how many.
func Purge(ctx context.Context, pool *pgxpool.Pool) (deleted int64, err error) {
	for {
		tag, err := pool.Exec(ctx, `
			delete from provider_events_unmatched where ctid = any(array(
				select ctid from provider_events_unmatched
				where batch_id is null and recorded_at < now() - $1::interval
				order by recorded_at limit $2 for update skip locked))`, unmatchedAge, purgePage)
		if err != nil {
			return deleted, fmt.Errorf("delete old events: %w", err)
		}
		if deleted += tag.RowsAffected(); tag.RowsAffected() < purgePage {
			return deleted, nil
		}
	}
}
