package campaigns

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// maxCrashes is after how many runs of a fan-out in a row that ended without a
// word the campaign is paused: what kills a process once may do so at every
// restart. A run that wrote somebody down begins the row anew: an audience that
// is read for hours outlives any number of kills, as long as it gets on.
const maxCrashes = 5

// parkCrashed ends an expired lease, and nothing else does: it waits for chunks that
// are being written under it. It counts the run, whose process died, or hung. It
// pauses the campaign at every fifth in a row and answers whether it did. A resume gives
// it five more.
func (c *Campaigns) parkCrashed(ctx context.Context, workspaceID, id uuid.UUID) (parked bool, err error) {
	var token string
	err = c.pool.QueryRow(ctx, `
		select leased_by from fanouts where workspace_id = $1 and campaign_id = $2 and finished_at is null and lease_until < now()`, workspaceID, id).Scan(&token)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find the lease of fan-out %s: %w", id, err)
	}
	var crashes int
	err = pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		if err := lockForVerb(ctx, tx, id); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `
			update fanouts f set leased_by = null, lease_until = null, crashes = case when w.wrote then 1 else crashes + 1 end,
				source_failures = case when w.wrote then 0 else source_failures end,
				internal_failures = case when w.wrote then 0 else internal_failures end
			from (select `+wroteChunk+` as wrote from fanouts f where workspace_id = $1 and campaign_id = $2) w
			where workspace_id = $1 and campaign_id = $2 and leased_by = $3 and lease_until < now() and finished_at is null
			returning crashes`, workspaceID, id, token).Scan(&crashes)
	})
	if errors.Is(err, pgx.ErrNoRows) { // another node has counted it
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("count a crash of fan-out %s: %w", id, err)
	}
	c.log.Warn("fan-out ended without a result", "campaign_id", id, "crashes", crashes)
	if crashes%maxCrashes != 0 {
		return false, nil
	}
	detail := fmt.Sprintf("the process that read the audience died or hung %d times; look at its log before you resume", crashes)
	return true, c.PauseFor(ctx, workspaceID, id, "fanout_crashed", detail)
}
