package notifications

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Each statement below runs twice in its transaction. The first run may have
// to wait for a reaper, which then commits a retry batch that the statement's
// own snapshot cannot see; the second sees it, and does nothing to the others.
const passes = 2

// Hold shuts the gate of an origin's batches in the caller's transaction: once
// it commits none is claimed and none opens a further window.
func (l *Ledger) Hold(ctx context.Context, tx pgx.Tx, workspaceID, origin uuid.UUID) error {
	for range passes {
		_, err := tx.Exec(ctx, `
			update batches set gate = 'held'
			where workspace_id = $1 and origin_id = $2 and status in ('ready', 'leased') and gate = 'open'`, workspaceID, origin)
		if err != nil {
			return fmt.Errorf("hold batches of %s: %w", origin, err)
		}
	}
	return nil
}

// Unhold opens the gate again and rings for every batch behind it.
func (l *Ledger) Unhold(ctx context.Context, tx pgx.Tx, workspaceID, origin uuid.UUID) error {
	for range passes {
		bells, err := unhold(ctx, tx, workspaceID, origin)
		if err != nil {
			return fmt.Errorf("open batches of %s: %w", origin, err)
		}
		if err := l.Ring(ctx, tx, bells); err != nil {
			return err
		}
	}
	return nil
}

func unhold(ctx context.Context, tx pgx.Tx, workspaceID, origin uuid.UUID) ([]Bell, error) {
	rows, err := tx.Query(ctx, `
		update batches set gate = 'open', enqueued_at = now()
		where workspace_id = $1 and origin_id = $2 and status in ('ready', 'leased') and gate = 'held'
		returning id, greatest(extract(epoch from due_at - now()), 0)::float8`, workspaceID, origin)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Bell, error) {
		b := Bell{Ref: Ref{WorkspaceID: workspaceID, OriginID: origin}}
		var after float64
		err := row.Scan(&b.BatchID, &after)
		b.After = time.Duration(after * float64(time.Second))
		return b, err
	})
}

// Cancelled is what a cancel found, in the moment in which it took effect.
type Cancelled struct {
	InFlight  int64 // in open windows: they are called to the end
	Cancelled int64 // never called, and never will be; also those that a worker holds and has not given back yet
}

// Cancel ends an origin's batches in the caller's transaction, and promises
// that no window opens after it commits. Rows that were never called are
// cancelled; those whose first attempt is in doubt become orphans. What stands
// in an open window is in flight: it is counted, and ends by itself.
func (l *Ledger) Cancel(ctx context.Context, tx pgx.Tx, workspaceID, origin uuid.UUID) (Cancelled, error) {
	for range passes {
		_, err := tx.Exec(ctx, `
			update batches set gate = 'cancelled',
				status = case status when 'ready' then 'cancelled' else status end,
				cancelled = cancelled + case when status = 'ready' and attempt = 1 then coalesce(cardinality(open), size) else 0 end,
				orphaned = orphaned + case when status = 'ready' and attempt = 2 then coalesce(cardinality(open), size) else 0 end,
				finished_at = case status when 'ready' then now() end
			where workspace_id = $1 and origin_id = $2 and status in ('ready', 'leased') and gate <> 'cancelled'`, workspaceID, origin)
		if err != nil {
			return Cancelled{}, fmt.Errorf("cancel batches of %s: %w", origin, err)
		}
	}
	return ReadCancelled(ctx, tx, workspaceID, origin)
}

// ReadCancelled says what a cancel of an origin found, or would find if it came
// now. The rest of a leased batch counts as cancelled at once: no window opens
// behind its gate, and it is given back as that.
func ReadCancelled(ctx context.Context, db DB, workspaceID, origin uuid.UUID) (Cancelled, error) {
	rows, err := db.Query(ctx, `
		select coalesce(sum(calling) filter (where status = 'leased'), 0)::bigint,
			(coalesce(sum(cancelled), 0) + coalesce(sum(size - sent - failed - orphaned - skipped - cancelled - retried - calling)
				filter (where status in ('ready', 'leased') and attempt = 1), 0))::bigint
		from batches where workspace_id = $1 and origin_id = $2`, workspaceID, origin)
	if err != nil {
		return Cancelled{}, fmt.Errorf("count what was cancelled of %s: %w", origin, err)
	}
	c, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Cancelled])
	if err != nil {
		return Cancelled{}, fmt.Errorf("count what was cancelled of %s: %w", origin, err)
	}
	return c, nil
}
