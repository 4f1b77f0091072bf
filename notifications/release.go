package notifications

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lemma"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	unholdMost   = 10_000 // batches that Unhold opens itself
	releasePage  = 5_000  // batches that a transaction of Release opens
	releasesMost = 100    // origins that ReadReleases returns
)

// Release is an origin whose batches were held by a pause, and are being opened.
type Release struct{ WorkspaceID, OriginID uuid.UUID }

// Unhold opens the gate of an origin's batches and enqueues them. Of more than 10,000 it
// opens as many, and Ledger.Release the others, so that neither the time nor the memory of a
// resume grows with them. Their rows are read from the audience again before a call:
// profiles may have opted out during the pause.
func (l *Ledger) Unhold(ctx context.Context, tx pgx.Tx, workspaceID, origin uuid.UUID) error {
	if err := l.openUpTo(ctx, tx, Release{workspaceID, origin}, l.unholdMost); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `
		insert into releases (workspace_id, origin_id)
		select $1::uuid, $2::uuid where `+anyHeld+`
		on conflict do nothing`, workspaceID, origin)
	return lemma.Wrap(err, "record the release of %s", origin)
}

// ReadReleases returns origins that have held batches to open, at random, and round robin by
// workspace: those of one do not delay those of another.
func (l *Ledger) ReadReleases(ctx context.Context) ([]Release, error) {
	rows, _ := l.pool.Query(ctx, `
		select workspace_id, origin_id from (
			select workspace_id, origin_id, row_number() over (partition by workspace_id order by random()) as n from releases) r
		order by n, random() limit $1`, releasesMost)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Release])
	return all, lemma.Wrap(err, "read releases")
}

// Release opens the next 5,000 held batches of an origin. It does nothing while another
// process does the same, and after a pause, which has deleted the row.
func (l *Ledger) Release(ctx context.Context, r Release) error {
	return pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error { return l.openPage(ctx, tx, r) })
}

func (l *Ledger) openPage(ctx context.Context, tx pgx.Tx, r Release) error {
	err := tx.QueryRow(ctx, `
		select from releases where workspace_id = $1 and origin_id = $2 for update skip locked`, r.WorkspaceID, r.OriginID).Scan()
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lock the release of %s: %w", r.OriginID, err)
	}
	if err := l.openUpTo(ctx, tx, r, l.releasePage); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		delete from releases where workspace_id = $1 and origin_id = $2 and not `+anyHeld, r.WorkspaceID, r.OriginID)
	return lemma.Wrap(err, "end the release of %s", r.OriginID)
}

// anyHeld is true if a batch of origin $2 is held. It reads without a lock: a batch whose
// retry batch is not committed yet is still seen as held.
const anyHeld = `exists (select from batches b
	where b.workspace_id = $1 and b.origin_id = $2 and b.status in ('ready', 'leased') and b.gate = 'held')`

// openUpTo opens and enqueues at most so many held batches of an origin.
func (l *Ledger) openUpTo(ctx context.Context, tx pgx.Tx, r Release, most int) error {
	jobs, err := unhold(ctx, tx, r, most)
	if err != nil {
		return fmt.Errorf("open batches of %s: %w", r.OriginID, err)
	}
	return l.Enqueue(ctx, tx, slices.DeleteFunc(jobs, func(j Job) bool { return j.After > hasJob }))
}

// hasJob is when a batch is due that still has the job which was inserted with it: each resume would add
// another. One without a job, since its worker crashed or put it off while it was held, is enqueued by the sweep when
// it is due.
const hasJob = 5 * time.Minute

// unhold opens the first batches by id. One that is due later keeps its enqueued_at, from which a
// send_offset counts. A range, and no join by ids, since a plan of a join may
// read all held batches for each of them while there are no statistics of held ones.
func unhold(ctx context.Context, tx pgx.Tx, r Release, most int) ([]Job, error) {
	rows, _ := tx.Query(ctx, `
		update batches b set gate = 'open', enqueued_at = case when due_at > now() then enqueued_at else now() end, resumed_at = now()
		where b.workspace_id = $1 and b.origin_id = $2 and b.status in ('ready', 'leased') and b.gate = 'held'
			and b.id <= coalesce((select id from batches
				where workspace_id = $1 and origin_id = $2 and status in ('ready', 'leased') and gate = 'held'
				order by id offset $3 - 1 limit 1), 'ffffffff-ffff-ffff-ffff-ffffffffffff')
		returning b.id, extract(epoch from greatest(least(b.due_at - now(), interval '100 years'), interval '0'))::float8`,
		r.WorkspaceID, r.OriginID, most)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Job, error) {
		j := Job{Ref: Ref{WorkspaceID: r.WorkspaceID, OriginID: r.OriginID}}
		var after float64
		err := row.Scan(&j.BatchID, &after)
		j.After = time.Duration(after * float64(time.Second))
		return j, err
	})
}
