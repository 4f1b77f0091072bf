package sender

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"lemma/notifications"
)

// maxCrashes is after how many claims in a row that ended without opening a window the
// reaper ends a batch. Something in the batch may kill each process that claims it.
const maxCrashes = 5

// batchCrashed is the reason of rows of such a batch, and of the pause of their origin.
const batchCrashed = notifications.BatchCrashed

// crashesInARow counts the claims of a batch since a claim opened a window or ended its
// lease. All of them crashed if the batch is stale. The log of the batch has them, so a
// claim itself writes nothing for the count.
func crashesInARow(ctx context.Context, tx pgx.Tx, ref notifications.Ref) (n int, err error) {
	err = tx.QueryRow(ctx, `
		select count(*) from batch_log l
		where l.workspace_id = $1 and l.batch_id = $2 and l.event = 'claimed' and l.at > coalesce((
			select max(o.at) from batch_log o
			where o.workspace_id = $1 and o.batch_id = $2 and o.event not in ('claimed', 'reaped')), '-infinity')`,
		ref.WorkspaceID, ref.BatchID).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count crashes of batch %s: %w", ref.BatchID, err)
	}
	return n, nil
}

// endCrashed skips rows that were not called. Those of a second attempt become
// orphaned, since the outcome of the first is unknown.
func endCrashed(untouched []int16) []outcome {
	detail := fmt.Sprintf("the process that claimed the batch died or hung %d times before it called anyone; search its log", maxCrashes)
	rows := make([]outcome, len(untouched))
	for i, ordinal := range untouched {
		rows[i] = outcome{ordinal: ordinal, kind: skipped, basis: "gate", reason: batchCrashed, detail: detail, at: time.Now()}
	}
	return rows
}

// afterCrash is until when a batch is not claimed again. Batches that crashed with the
// same process become due at different times from the second crash on, so that the
// one that kills processes is claimed without the others.
func afterCrash(crashes int) time.Duration {
	if crashes < 2 {
		return 0
	}
	return rand.N(time.Duration(crashes) * 5 * time.Second)
}

// pauseCrashed pauses the origin of a batch that was ended: its other batches may kill
// processes too.
func (s *Sender) pauseCrashed(ctx context.Context, ref notifications.Ref, rows int) {
	s.log.Error("batch ended after crashes", "batch_id", ref.BatchID, "origin_id", ref.OriginID, "crashes", maxCrashes, "rows", rows)
	detail := fmt.Sprintf("the process that claimed a batch died or hung %d times; look at its log before you resume", maxCrashes)
	if err := s.pause(ctx, ref.WorkspaceID, ref.OriginID, batchCrashed, detail); err != nil {
		s.log.Error("origin of a crashed batch not paused", "origin_id", ref.OriginID, "error", err)
	}
}
