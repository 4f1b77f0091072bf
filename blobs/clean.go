package blobs

import (
	"context"
	"fmt"
	"time"

	"lemma"
	"lemma/loop"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// again is the time after the end of an attempt at which its content is deleted a second
// time: a worker that was suspended may have stored it after the first.
const again = 24 * time.Hour

// One call of Clean deletes at most cleanMost contents, and cleanShare of a workspace. Those
// that fail are tried again after cleanRetry.
const (
	cleanMost  = 100
	cleanShare = 10
	cleanRetry = 5 * time.Minute
)

// Clean deletes the content of attempts that have ended, at most a chunk of each workspace
// alike, and returns how many it deleted. Attempts whose lease has expired have ended. Content
// of other stores stays for the processes that have them.
// Content that is committed, and that of running attempts, stays. Any number of processes
// may call it: each takes other content.
func (b *Blobs) Clean(ctx context.Context) (deleted int, err error) {
	if err := b.endExpired(ctx); err != nil {
		return 0, err
	}
	all, err := b.takeEnded(ctx)
	if err != nil {
		return 0, fmt.Errorf("find ended blobs: %w", err)
	}
	var failed loop.Errors
	for _, e := range all {
		if err := b.clean(ctx, e); err != nil {
			failed.Add(err)
			continue
		}
		deleted++
	}
	b.Metrics.cleaned.Add(float64(deleted))
	return deleted, failed.Err()
}

// Uncleaned are the bytes of the ended attempts of a workspace whose content is still in this store, as
// far as they were noted.
func (b *Blobs) Uncleaned(ctx context.Context, tx pgx.Tx, ws uuid.UUID) (bytes int64, err error) {
	err = tx.QueryRow(ctx, `
		select coalesce(sum(bytes), 0)::bigint from blobs
		where workspace_id = $1 and status = 'ended' and store = $3 and clean_at < ended_at + $2`, ws, again, b.At).Scan(&bytes)
	return bytes, lemma.Wrap(err, "measure ended blobs")
}

type ended struct {
	Workspace, ID uuid.UUID
	Name          string
	Last          bool
}

// takeEnded takes the content that is to be deleted next: the first of each workspace that
// has some, then the second, and of these what has been due longest.
func (b *Blobs) takeEnded(ctx context.Context) ([]ended, error) {
	rows, _ := b.Pool.Query(ctx, `
		with recursive w as (
			(select workspace_id from blobs where status = 'ended' and store = $5 order by workspace_id limit 1)
			union all
			select n.workspace_id from w cross join lateral (
				select workspace_id from blobs where status = 'ended' and store = $5 and workspace_id > w.workspace_id
				order by workspace_id limit 1) n
		), due as (
			select d.workspace_id, d.id from w cross join lateral (
				select workspace_id, id, clean_at, row_number() over (order by clean_at) as place from (
					select workspace_id, id, clean_at from blobs
					where workspace_id = w.workspace_id and status = 'ended' and store = $5 and clean_at <= now() order by clean_at limit $2) b
			) d
			order by d.place, d.clean_at limit $3
		)
		update blobs b set clean_at = now() + $4::interval
		from due d where b.workspace_id = d.workspace_id and b.id = d.id and b.status = 'ended' and b.clean_at <= now()
		returning b.workspace_id, b.id, b.name, b.ended_at < now() - $1::interval`, again, cleanShare, cleanMost, cleanRetry, b.At)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[ended])
}

func (b *Blobs) endExpired(ctx context.Context) error {
	_, err := b.Pool.Exec(ctx, `
		update blobs set status = 'ended', ended_at = now(), clean_at = now(), leased_by = null, lease_until = null
		where status = 'registered' and lease_until < now()`)
	return lemma.Wrap(err, "end expired blobs")
}

// clean deletes the content of an attempt, then records that.
func (b *Blobs) clean(ctx context.Context, e ended) error {
	if err := b.Store.Delete(ctx, e.Name); err != nil {
		return fmt.Errorf("delete content of attempt %s: %w", e.ID, err)
	}
	args := []any{e.Workspace, e.ID}
	sql := `delete from blobs where workspace_id = $1 and id = $2 and status = 'ended'`
	if !e.Last {
		sql, args = `update blobs set clean_at = ended_at + $3 where workspace_id = $1 and id = $2 and status = 'ended'`, append(args, again)
	}
	_, err := b.Pool.Exec(ctx, sql, args...)
	return lemma.Wrap(err, "record the deletion of attempt %s", e.ID)
}
