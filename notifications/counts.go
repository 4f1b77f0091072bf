package notifications

import (
	"context"
	"time"

	"lemma"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Counts are the notifications of an origin by status. Audience is the sum of
// fanout_chunks, all other fields are sums of the batches: Balanced is false when
// rows or batches were lost or doubled.
type Counts struct {
	Audience   int64
	Sent       int64
	Failed     int64
	Orphaned   int64
	Cancelled  int64
	Skipped    int64
	SkippedBy  map[string]int64
	Pending    int64
	Processing int64
	Retried    int64
	Balanced   bool
	Open       int64            // batches that have not ended
	LastEnd    *time.Time       // when the last batch ended
	Deliveries map[string]int64 // by delivery state, as carriers reported it
	Engagement Engagement
}

// Counts adds up the batches of an origin, one per some hundreds of notifications.
func (l *Ledger) Counts(ctx context.Context, workspaceID, origin uuid.UUID) (Counts, error) {
	return ReadCounts(ctx, l.pool, workspaceID, origin)
}

// DB is a pool or a transaction.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// ReadCounts is Counts in the caller's transaction.
func ReadCounts(ctx context.Context, db DB, workspaceID, origin uuid.UUID) (Counts, error) {
	all, err := readCounts(ctx, db, workspaceID, []uuid.UUID{origin})
	return all[origin], err
}

// CountsOf adds up several origins in one statement. The result has all of them.
func (l *Ledger) CountsOf(ctx context.Context, workspaceID uuid.UUID, origins []uuid.UUID) (map[uuid.UUID]Counts, error) {
	if len(origins) == 0 {
		return nil, nil
	}
	return readCounts(ctx, l.pool, workspaceID, origins)
}

func readCounts(ctx context.Context, db DB, workspaceID uuid.UUID, origins []uuid.UUID) (map[uuid.UUID]Counts, error) {
	rows, _ := db.Query(ctx, `
		select o.id, (c.created + f.skipped)::bigint, b.sent::bigint, b.failed::bigint, b.orphaned::bigint, b.cancelled::bigint,
			(b.skipped + f.skipped)::bigint, coalesce(s.reasons, '{}'),
			(b.first + b.second - b.sent - b.failed - b.orphaned - b.cancelled - b.skipped - b.retried)::bigint,
			b.calling::bigint,
			b.retried::bigint, c.created = b.first and b.second = b.retried, b.open, b.last_end,
			(select coalesce(jsonb_object_agg(r.state, r.n), '{}') from (
				select state, sum(count) as n from delivery_counts where workspace_id = $1 and origin_id = o.id group by state) r),
			(select `+EngagementSums+` from engagement_counts e where e.workspace_id = $1 and e.origin_id = o.id)
		from unnest($2::uuid[]) as o (id)
		cross join lateral (
			select coalesce(sum(size) filter (where attempt = 1), 0) as first, coalesce(sum(size) filter (where attempt = 2), 0) as second,
				coalesce(sum(sent), 0) as sent, coalesce(sum(failed), 0) as failed, coalesce(sum(orphaned), 0) as orphaned,
				coalesce(sum(cancelled), 0) as cancelled, coalesce(sum(skipped), 0) as skipped,
				coalesce(sum(retried), 0) as retried, coalesce(sum(calling), 0) as calling,
				count(*) filter (where status in ('ready', 'leased')) as open, max(finished_at) as last_end
			from batches where workspace_id = $1 and origin_id = o.id
		) b
		cross join lateral (
			select coalesce(sum(created), 0) as created from fanout_chunks where workspace_id = $1 and origin_id = o.id
		) c
		cross join lateral (
			select jsonb_object_agg(r.reason, r.n) as reasons from (
				select u.reason, sum(u.n) as n from (
					select k.key as reason, k.value::bigint as n from fanout_chunks f, jsonb_each_text(f.skipped) k
					where f.workspace_id = $1 and f.origin_id = o.id
					union all
					select k.key, k.value::bigint from batches b, jsonb_each_text(b.skips) k
					where b.workspace_id = $1 and b.origin_id = o.id and b.skips <> '{}'
				) u group by u.reason
			) r
		) s
		cross join lateral (
			select coalesce(sum(k.value::bigint), 0) as skipped from fanout_chunks f, jsonb_each_text(f.skipped) k
			where f.workspace_id = $1 and f.origin_id = o.id
		) f`, workspaceID, origins)
	all := make(map[uuid.UUID]Counts, len(origins))
	var id uuid.UUID
	var b Counts
	into := []any{&id, &b.Audience, &b.Sent, &b.Failed, &b.Orphaned, &b.Cancelled, &b.Skipped, &b.SkippedBy,
		&b.Pending, &b.Processing, &b.Retried, &b.Balanced, &b.Open, &b.LastEnd, &b.Deliveries, &b.Engagement}
	_, err := pgx.ForEachRow(rows, into, func() error {
		b.Pending -= b.Processing
		all[id] = b
		b = Counts{} // two origins share no map and no time
		return nil
	})
	return all, lemma.Wrap(err, "read counts of %d origins", len(origins))
}
