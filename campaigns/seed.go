package campaigns

import (
	"context"
	"time"

	"lemma"

	"github.com/google/uuid"
)

// SeedCutOff moves the start and the cut-off of an iteration into the past. It is for
// benchmarks.
func (c *Campaigns) SeedCutOff(ctx context.Context, ws, iteration uuid.UUID, start, cutOff time.Duration) error {
	_, err := c.pool.Exec(ctx, `
		update iterations set started_at = now() - $3::interval, cut_off_at = now() - $4::interval
		where workspace_id = $1 and id = $2 and status = 'running' and evaluating_by is null`, ws, iteration, start, cutOff)
	return lemma.Wrap(err, "seed cut-off")
}
