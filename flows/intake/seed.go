package intake

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// SeedEvents inserts an event for each of the profiles "1" to n, as if it had been
// received some time ago. It applies none. It is for benchmarks.
func (in *Intake) SeedEvents(ctx context.Context, ws uuid.UUID, name string, n int, ago time.Duration) error {
	_, err := in.pool.Exec(ctx, `
		insert into trigger_events (workspace_id, key, profile_key, name, occurred_at, received_at)
		select $1, gen_random_uuid(), i::text, $2, now() - $4::interval, now() - $4::interval from generate_series(1, $3::int) i`,
		ws, name, n, ago)
	if err != nil {
		return fmt.Errorf("seed events: %w", err)
	}
	return nil
}
