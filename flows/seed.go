package flows

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/flows/enrollment"
)

// SeedWaiting inserts n enrollments in version 1 of a flow that wait at a node and are due
// after some time. Their profile keys are numbers from 1 behind a prefix. It is for
// benchmarks.
func (f *Flows) SeedWaiting(ctx context.Context, ws, flow uuid.UUID, node, prefix string, n int, after time.Duration) error {
	const perStatement = 250_000
	for done := 0; done < n; done += perStatement {
		err := enrollment.Transact(ctx, f.pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `
				with made as (insert into enrollments (workspace_id, id, flow_id, version, shard, uniqueness_key, overlap_key, profile_key, node, step,
					waiting_since, resume_at, source)
				select $1, id, $2, 1, get_byte(uuid_send(id), 15) & 3, gen_random_uuid(), '00000000-0000-0000-0000-000000000000',
					$3::text || i, $4, 1, now() - interval '1 hour', now() + make_interval(secs => $5), 'event'
				from (select i, overlay(gen_random_uuid()::text placing substr($6::uuid::text, 1, 15) from 1 for 15)::uuid as id
					from generate_series($7::int + 1, $7 + $8::int) i) made
				returning workspace_id, flow_id, uniqueness_key, id)
				insert into enrollment_keys (workspace_id, flow_id, uniqueness_key, enrollment_id) select workspace_id, flow_id, uniqueness_key, id
					from made`,
				ws, flow, prefix, node, after.Seconds(), lemma.NewID(), done, min(perStatement, n-done))
			if err != nil {
				return err
			}
			return enrollment.LowerBounds(ctx, tx, enrollment.ShardsOf(ws, flow))
		})
		if err != nil {
			return fmt.Errorf("seed enrollments: %w", err)
		}
	}
	return nil
}
