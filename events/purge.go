package events

import (
	"context"
	"time"

	"lemma"

	"github.com/jackc/pgx/v5/pgxpool"
)

// unmatchedAge is how long events are kept that match no notification. Those of a
// notification are dropped with the partition of its month.
const unmatchedAge = 30 * 24 * time.Hour

// Purge deletes old events that match no notification, at most a hundred thousand.
func Purge(ctx context.Context, pool *pgxpool.Pool) (deleted int64, err error) {
	tag, err := pool.Exec(ctx, `
		delete from provider_events e
		using (
			select workspace_id, origin_id, provider_id, source, source_event_id, id from provider_events
			where batch_id is null and recorded_at < now() - $1::interval order by recorded_at limit 100000
		) old
		where e.workspace_id = old.workspace_id and e.origin_id = old.origin_id and e.provider_id = old.provider_id
		  and e.source = old.source and e.source_event_id = old.source_event_id and e.id = old.id and e.batch_id is null`, unmatchedAge)
	return tag.RowsAffected(), lemma.Wrap(err, "delete old events")
}
