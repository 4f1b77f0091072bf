package intake

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// SeedEvents inserts an event for each of the profiles "1" to n, as if they had
// been received one after another from some time ago until a tenth of it. It applies none.
// It is for benchmarks.
func (in *Intake) SeedEvents(ctx context.Context, ws uuid.UUID, name string, n int, ago time.Duration) error {
	const part = 100_000 // many in one statement would take longer than a statement may
	for first := 1; first <= n; first += part {
		_, err := in.pool.Exec(ctx, `
			insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
			select $1, gen_random_uuid(), i::text, $2, e.at, e.at from generate_series($5::int, $6::int) i
			cross join lateral (select now() - $4::interval * (1 - 0.9 * i / $3::int) as at) e`,
			ws, name, n, ago, first, min(first+part-1, n))
		if err != nil {
			return fmt.Errorf("seed events: %w", err)
		}
	}
	return nil
}
