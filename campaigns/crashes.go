package campaigns

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/lifecycle"
)

// maxCrashes is the number of consecutive crashed runs of a fan-out after which the
// campaign is paused, since a row may crash every process that reads it. A run that
// has written a chunk resets the count: a long fan-out may crash any number of
// times as long as it progresses.
const maxCrashes = 5

// endExpired ends an expired lease, after the chunks that are being written under
// it. Only it does so. It counts the run, whose process crashed or hung. It pauses the
// campaign after every maxCrashes of them in a row, and reports whether it did.
func (c *Campaigns) endExpired(ctx context.Context, workspaceID, id uuid.UUID) (paused bool, err error) {
	var token string
	err = c.pool.QueryRow(ctx, `
		select leased_by from fanouts
		where workspace_id = $1 and campaign_id = $2 and finished_at is null and lease_until < now()`, workspaceID, id).Scan(&token)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find the lease of fan-out %s: %w", id, err)
	}
	var crashes int
	var seen time.Time
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
			returning crashes, now()`, workspaceID, id, token).Scan(&crashes, &seen)
	})
	if errors.Is(err, pgx.ErrNoRows) { // another process has counted it
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("count a crash of fan-out %s: %w", id, err)
	}
	c.log.Warn("fan-out ended without a result", "campaign_id", id, "crashes", crashes)
	if crashes%maxCrashes != 0 {
		return false, nil
	}
	detail := fmt.Sprintf("the process that read the audience crashed or hung %d times; check its log before you resume", crashes)
	_, err = c.PauseFor(ctx, workspaceID, id, lifecycle.Cause{Reason: "fanout_crashed", Detail: detail, SeenAt: seen})
	return true, err
}
