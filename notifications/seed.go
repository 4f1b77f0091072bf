package notifications

import (
	"bytes"
	"context"
	"slices"

	"lemma"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// SeedBatch is the size of the batches that SeedSent inserts.
const SeedBatch = 500

// SeedSent inserts n notifications that were sent, in batches that are done, and
// returns the ids of the batches. Their attempts are inserted by
// sender.SeedAttempts. It is for benchmarks beside a large ledger.
func (l *Ledger) SeedSent(ctx context.Context, ws, origin uuid.UUID, n int) ([]uuid.UUID, error) {
	rows, _ := l.pool.Query(ctx, `
		with made as (
			select gen_random_uuid() as id from generate_series(1, $3::int / $4::int)
		), numbered as (
			select id, row_number() over () - 1 as i from made
		), intents as (
			insert into notifications (workspace_id, origin_id, key, batch_id, ordinal, profile_key, address, payload)
			select $1, $2, gen_random_uuid(), m.id, o, (m.i * $4::int + o)::text, 'user' || (m.i * $4::int + o) || '@bench.example',
				'{"name":"Name"}'
			from numbered m, generate_series(0, $4::int - 1) o
		)
		insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, max_attempts, status, sent, finished_at)
		select $1, $2, id, id as root_id, $2, $2, $4::int, 2, 'done', $4::int, now() from made
		returning id`, ws, origin, n, SeedBatch)
	found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	return found, lemma.Wrap(err, "seed notifications")
}

// CopyIntents inserts recipients by COPY, without batches, jobs and counts. Benchmarks
// compare Insert with it.
func (l *Ledger) CopyIntents(ctx context.Context, ws, origin, batch uuid.UUID, rows []Recipient) error {
	slices.SortFunc(rows, func(a, b Recipient) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	_, err := l.pool.CopyFrom(ctx, pgx.Identifier{"notifications"}, copiedColumns, pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) {
		r := rows[i]
		return []any{ws, origin, r.Key, batch, int16(i), r.ProfileKey, r.Address, r.Payload}, nil
	}))
	return err
}
