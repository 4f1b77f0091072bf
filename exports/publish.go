package exports

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lemma"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/blobs"
	"lemma/loop"
)

// publish makes the committed file of an export visible.
func (e *Exports) publish(ctx context.Context, o blobs.Owner) error {
	published, err := e.Blobs.Publish(ctx, o, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			update exports set status = 'completed', finished_at = now(), expires_at = now() + $3
			where workspace_id = $1 and id = $2 and status = 'publishing'`, o.Workspace, o.ID, e.cfg.Retention)
		return err
	})
	if published {
		e.Metrics.ended.WithLabelValues(Completed).Inc()
	}
	if lost, ok := errors.AsType[*blobs.Lost](err); ok {
		return errors.Join(err, e.writeAgain(ctx, o, lost.ID))
	}
	return err
}

// writeAgain queues an export whose committed attempt the store has lost, or fails it if
// that was its last failure.
func (e *Exports) writeAgain(ctx context.Context, o blobs.Owner, lost uuid.UUID) error {
	const reason, detail = "store_unavailable", "the blob store has lost the file"
	err := pgx.BeginFunc(ctx, e.Pool, func(tx pgx.Tx) error {
		var failures int
		err := tx.QueryRow(ctx, `
			update exports x set status = 'queued', failures = failures + 1, retry_at = now() + `+backOff+`, status_reason = $3, status_detail = $4
			where workspace_id = $1 and id = $2 and status = 'publishing'
			  and exists (select from blobs b where b.workspace_id = $1 and b.id = $5 and b.owner_id = x.id and b.status = 'committed')
			returning failures`, o.Workspace, o.ID, reason, detail, lost).Scan(&failures)
		switch {
		case errors.Is(err, pgx.ErrNoRows): // cancelled, or another process was faster
			return nil
		case err != nil:
			return err
		case failures >= mostFailures:
			return e.end(ctx, tx, o, reason, detail)
		}
		return e.Blobs.Drop(ctx, tx, o)
	})
	return lemma.Wrap(err, "write export %s again", o.ID)
}

// backOff is how long an export waits after its next failure.
const backOff = `least(greatest(failures + 1, attempts), 10) * interval '10 seconds'`

// publishAgain is how long PublishAll does not try an export again, so that those that
// cannot be published do not hide others.
const publishAgain = 10 * time.Second

// PublishAll publishes committed exports whose process did not, those first that have
// waited longest.
func (e *Exports) PublishAll(ctx context.Context) error {
	rows, _ := e.Pool.Query(ctx, `
		update exports x set retry_at = now() + $1::interval
		from (
			select workspace_id, id from exports where status = 'publishing' and retry_at <= now()
			order by retry_at limit 100 for update skip locked
		) d
		where x.workspace_id = d.workspace_id and x.id = d.id
		returning x.workspace_id, x.id`, publishAgain)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[blobs.Owner])
	if err != nil {
		return fmt.Errorf("find committed exports: %w", err)
	}
	return loop.Each(ctx, all, func(o blobs.Owner) error { return e.publish(ctx, o) })
}
