package sender

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"lemma"
	"lemma/lifecycle"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/notifications"
)

// Something in a batch may kill each process that claims it. After aloneAfter claims in
// a row that ended without opening a window, a claim renders its rows one by one and
// logs each before. After maxCrashes the reaper ends the row that the last claim was
// rendering, or the batch if the claim had not come so far.
const (
	aloneAfter = 2
	maxCrashes = 5
)

// batchCrashed is the reason of rows that are ended so, and of the pause of their origin.
const batchCrashed = notifications.BatchCrashed

// countCrashes counts the claims of a batch since a claim opened a window or ended its
// lease, or the reaper ended a row. All of them crashed if the batch is stale. The log
// of the batch has them, so a claim itself writes nothing for the count.
const countCrashes = `
	select count(*)::int from batch_log l
	where l.workspace_id = $1 and l.batch_id = $2 and l.event = 'claimed' and l.at > coalesce((
		select max(o.at) from batch_log o
		where o.workspace_id = $1 and o.batch_id = $2 and o.event not in ('claimed', 'rendering', 'reaped')), '-infinity')`

// alone reports that rows are rendered one by one.
func (c *claim) alone() bool { return c.crashes >= aloneAfter }

// renderAlone logs the next row before it is rendered, after the outcome of the row
// before it is committed. It returns false if the lease is lost.
func (s *Sender) renderAlone(ctx context.Context, c *claim, done []outcome) (ok bool, err error) {
	if len(done) > 0 {
		if g, err := s.commit(ctx, c, done, ending{state: stateKeep}); err != nil || g == lost {
			return false, err
		}
	}
	tag, err := s.pool.Exec(ctx, `
		insert into batch_log (workspace_id, batch_id, event, token, first, last)
		select workspace_id, id, 'rendering', leased_by, $5, $5 from batches
		where workspace_id = $1 and origin_id = $2 and id = $3 and leased_by = $4`,
		c.WorkspaceID, c.OriginID, c.BatchID, c.token, c.rows[c.next].Ordinal)
	return tag.RowsAffected() == 1, lemma.Wrap(err, "log the next row of batch %s", c.BatchID)
}

// findCrashed returns the rows that are ended, of those that were not called: the one
// that the crashed claim was rendering, or all.
func findCrashed(ctx context.Context, tx pgx.Tx, ref notifications.Ref, token string,
	untouched []int16) (crashed, rest []int16, err error) {
	var row int16
	err = tx.QueryRow(ctx, `
		select first from batch_log where workspace_id = $1 and batch_id = $2 and event = 'rendering' and token = $3
		order by at desc limit 1`, ref.WorkspaceID, ref.BatchID, token).Scan(&row)
	if errors.Is(err, pgx.ErrNoRows) {
		return untouched, []int16{}, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("find the row that batch %s crashed at: %w", ref.BatchID, err)
	}
	at := slices.Index(untouched, row)
	if at < 0 {
		return untouched, []int16{}, nil
	}
	return []int16{row}, slices.Delete(slices.Clone(untouched), at, at+1), nil
}

// endCrashed skips rows that were not called. Those of a second attempt become
// orphaned, since the outcome of the first is unknown.
func endCrashed(crashed []int16) []outcome {
	detail := fmt.Sprintf("the process that claimed the batch crashed or hung %d times before it made a call; search its log", maxCrashes)
	rows := make([]outcome, len(crashed))
	for i, ordinal := range crashed {
		rows[i] = outcome{ordinal: ordinal, kind: skipped, basis: "gate", reason: batchCrashed, detail: detail}
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

// pauseCrashed pauses the origin of rows that were ended: its other rows may kill
// processes too.
func (s *Sender) pauseCrashed(ctx context.Context, ref notifications.Ref, rows int) {
	s.log.Error("rows ended after crashes", "batch_id", ref.BatchID, "origin_id", ref.OriginID, "crashes", maxCrashes, "rows", rows)
	detail := fmt.Sprintf("the process that claimed a batch crashed or hung %d times; check its log before you resume", maxCrashes)
	if _, err := s.pause(ctx, ref.WorkspaceID, ref.OriginID, uuid.Nil, lifecycle.Cause{Reason: batchCrashed, Detail: detail}); err != nil {
		s.log.Error("origin of a crashed batch not paused", "origin_id", ref.OriginID, "error", err)
	}
}
