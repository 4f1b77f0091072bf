package blobs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// again is the time after the end of an attempt at which its content is deleted a second
// time: a worker that was suspended may have stored it after the first.
const again = 24 * time.Hour

const cleanChunk = 100

// Clean deletes the content of attempts that have ended, at most one chunk, and returns
// how many it deleted. Attempts whose lease has expired have ended. Content that is
// committed, and that of running attempts, stays.
func (b *Blobs) Clean(ctx context.Context) (deleted int, err error) {
	if err := b.endExpired(ctx); err != nil {
		return 0, err
	}
	rows, err := b.Pool.Query(ctx, `
		select workspace_id, id, name, ended_at < now() - $1::interval as last from blobs
		where status = 'ended' and (cleaned_at is null or ended_at < now() - $1::interval) order by created_at limit $2`, again, cleanChunk)
	if err != nil {
		return 0, fmt.Errorf("find ended blobs: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ended])
	if err != nil {
		return 0, fmt.Errorf("find ended blobs: %w", err)
	}
	var failed error
	for _, e := range all {
		if err := b.clean(ctx, e); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		deleted++
	}
	b.Metrics.cleaned.Add(float64(deleted))
	return deleted, failed
}

type ended struct {
	Workspace, ID uuid.UUID
	Name          string
	Last          bool
}

func (b *Blobs) endExpired(ctx context.Context) error {
	_, err := b.Pool.Exec(ctx, `
		update blobs set status = 'ended', ended_at = now(), leased_by = null, lease_until = null
		where status = 'registered' and lease_until < now()`)
	if err != nil {
		return fmt.Errorf("end expired blobs: %w", err)
	}
	return nil
}

// clean deletes the content of an attempt, then records that.
func (b *Blobs) clean(ctx context.Context, e ended) error {
	if err := b.Store.Delete(ctx, e.Name); err != nil {
		return fmt.Errorf("delete content of attempt %s: %w", e.ID, err)
	}
	sql := `update blobs set cleaned_at = now() where workspace_id = $1 and id = $2 and status = 'ended'`
	if e.Last {
		sql = `delete from blobs where workspace_id = $1 and id = $2 and status = 'ended'`
	}
	if _, err := b.Pool.Exec(ctx, sql, e.Workspace, e.ID); err != nil {
		return fmt.Errorf("record the deletion of attempt %s: %w", e.ID, err)
	}
	return nil
}
