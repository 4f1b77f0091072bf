package notifications

import (
	"context"
	"fmt"

	"lemma"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// untilNone runs a statement on the batches of an origin again while one is left. The statement
// may wait for a worker or a reaper, which then commits a batch that its snapshot does not have,
// and of which a reaper may make the next. The read takes no lock: while the batch from which
// another is made is not committed, it is seen as one that is left.
func untilNone(ctx context.Context, tx pgx.Tx, left string, args []any, run func() error) error {
	for more := true; more; {
		if err := run(); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `select exists (select from batches where `+left+`)`, args...).Scan(&more); err != nil {
			return fmt.Errorf("read what is left: %w", err)
		}
	}
	return nil
}

// Hold closes the gate of an origin's batches in the caller's transaction. After
// its commit no batch is claimed and no further window opens. It takes as long as it
// needs: a pause by Lemma itself must not end in the limit of statements.
func (l *Ledger) Hold(ctx context.Context, tx pgx.Tx, workspaceID, origin uuid.UUID) error {
	var limit string // that of the caller: the default is not that of Lemma's connections
	if err := tx.QueryRow(ctx, `select current_setting('statement_timeout')`).Scan(&limit); err != nil {
		return fmt.Errorf("hold batches of %s: %w", origin, err)
	}
	if _, err := tx.Exec(ctx, `set local statement_timeout = 0`); err != nil {
		return fmt.Errorf("hold batches of %s: %w", origin, err)
	}
	// First, so that it waits for a page that is being opened, and no other follows.
	if _, err := tx.Exec(ctx, `delete from releases where workspace_id = $1 and origin_id = $2`, workspaceID, origin); err != nil {
		return fmt.Errorf("end the release of %s: %w", origin, err)
	}
	const open = `workspace_id = $1 and origin_id = $2 and status in ('ready', 'leased') and gate = 'open'`
	args := []any{workspaceID, origin}
	err := untilNone(ctx, tx, open, args, func() error {
		_, err := tx.Exec(ctx, `update batches set gate = 'held' where `+open, args...)
		return err
	})
	if err != nil {
		return fmt.Errorf("hold batches of %s: %w", origin, err)
	}
	_, err = tx.Exec(ctx, `select set_config('statement_timeout', $1, true)`, limit)
	return lemma.Wrap(err, "hold batches of %s", origin)
}

// Cancelled counts what a cancel has found.
type Cancelled struct {
	InFlight  int64 // in open windows: their calls are made
	Cancelled int64 // never called; also rows that a worker holds and has not given back yet
}

// Cancel ends an origin's batches in the caller's transaction: no window opens
// after its commit. Rows that were never called are cancelled. Rows whose first
// attempt is unknown are settled by evidence about it, or else orphaned. Rows of an
// open window are in flight and end by themselves.
func (l *Ledger) Cancel(ctx context.Context, tx pgx.Tx, workspaceID, origin uuid.UUID) (Cancelled, error) {
	if _, err := cancel(ctx, tx, ``, workspaceID, origin); err != nil {
		return Cancelled{}, fmt.Errorf("cancel batches of %s: %w", origin, err)
	}
	return ReadCancelled(ctx, tx, workspaceID, origin)
}

// CancelOf is Cancel for the batches of one provider. It returns how many rows it cancels
// that were never called.
func (l *Ledger) CancelOf(ctx context.Context, tx pgx.Tx, workspaceID, origin, provider uuid.UUID) (cancelled int64, err error) {
	cancelled, err = cancel(ctx, tx, ` and provider_id = $3`, workspaceID, origin, provider)
	return cancelled, lemma.Wrap(err, "cancel batches of %s", origin)
}

// CancelContent is CancelOf for the batches of one content.
func (l *Ledger) CancelContent(ctx context.Context, tx pgx.Tx, workspaceID, origin, content uuid.UUID) (cancelled int64, err error) {
	cancelled, err = cancel(ctx, tx, ` and content_id = $3`, workspaceID, origin, content)
	return cancelled, lemma.Wrap(err, "cancel batches of content %s", content)
}

// cancel ends the batches of an origin for which a condition is true. It settles their second
// attempts, and returns how many rows it cancels that were never called.
func cancel(ctx context.Context, tx pgx.Tx, of string, workspaceID, origin uuid.UUID, more ...any) (cancelled int64, err error) {
	// A page of a release locks batches in another order.
	if _, err := tx.Exec(ctx, `select from releases where workspace_id = $1 and origin_id = $2 for update`, workspaceID, origin); err != nil {
		return 0, fmt.Errorf("lock the release: %w", err)
	}
	args := append([]any{workspaceID, origin}, more...)
	err = untilNone(ctx, tx, isCancellable+of, args, func() error {
		rows, _ := tx.Query(ctx, cancelBatches+isCancellable+of+cancelledRows, args...)
		var second []Ended
		b := Ended{Ref: Ref{WorkspaceID: workspaceID, OriginID: origin}}
		var n int64
		_, err := pgx.ForEachRow(rows, []any{&b.BatchID, &b.RootID, &b.ProviderID, &b.Open, &n}, func() error {
			cancelled += n
			if len(b.Open) > 0 {
				second = append(second, b)
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, b := range second {
			if _, err := SettleEnded(ctx, tx, b); err != nil {
				return err
			}
		}
		return nil
	})
	return cancelled, err
}

const isCancellable = `workspace_id = $1 and origin_id = $2 and status in ('ready', 'leased') and gate <> 'cancelled'`

const cancelBatches = `
	update batches set gate = 'cancelled',
		status = case status when 'ready' then 'cancelled' else status end,
		cancelled = cancelled + case when status = 'ready' and attempt = 1 then coalesce(cardinality(open), size) else 0 end,
		orphaned = orphaned + case when status = 'ready' and attempt = 2 then coalesce(cardinality(open), size) else 0 end,
		finished_at = case status when 'ready' then now() end
	where `

// cancelledRows are the rows of a second attempt that a cancel has ended, and how many
// others it cancels.
const cancelledRows = `
	returning id, root_id, provider_id, case when attempt = 2 and status = 'cancelled' then open end,
		case when attempt > 1 then 0 when status = 'cancelled' then cancelled
			else size - sent - failed - orphaned - skipped - cancelled - retried - calling end`

// ReadCancelled counts what a cancel of an origin has found, or would find now. The
// rest of a leased batch counts as cancelled: no window opens behind its gate.
func ReadCancelled(ctx context.Context, db DB, workspaceID, origin uuid.UUID) (Cancelled, error) {
	rows, _ := db.Query(ctx, `
		select coalesce(sum(calling) filter (where status = 'leased'), 0)::bigint,
			(coalesce(sum(cancelled), 0) + coalesce(sum(size - sent - failed - orphaned - skipped - cancelled - retried - calling)
				filter (where status in ('ready', 'leased') and attempt = 1), 0))::bigint
		from batches where workspace_id = $1 and origin_id = $2`, workspaceID, origin)
	c, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Cancelled])
	return c, lemma.Wrap(err, "count cancelled notifications of %s", origin)
}
