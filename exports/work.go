package exports

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/blobs"
	"lemma/exports/format"
	"lemma/loop"
	"lemma/pgerr"
	"lemma/settings"
)

const (
	mostFailures = 5  // in a row, until an export fails
	mostAttempts = 20 // with those whose worker crashed
)

// job is an export that this process writes.
type job struct {
	Export
	workspace uuid.UUID
	attempt   blobs.Attempt
	progress  *progress
}

func (j job) owner() blobs.Owner { return blobs.Owner{Workspace: j.workspace, ID: j.ID} }

// Loop writes exports, publishes and cleans until ctx ends.
func (e *Exports) Loop(ctx context.Context) { e.loop(ctx, 0) }

// Help is Loop for a process of the API: it begins exports that no worker has begun for long,
// since workers may have no store.
func (e *Exports) Help(ctx context.Context) { e.loop(ctx, e.cfg.Patience) }

func (e *Exports) loop(ctx context.Context, patience time.Duration) {
	if e.Blobs.Store == nil {
		return
	}
	var all sync.WaitGroup
	defer all.Wait()
	for range e.cfg.Workers {
		all.Go(func() {
			loop.Every(ctx, e.cfg.Poll, func(ctx context.Context) error {
				for {
					if found, err := e.runOnce(ctx, patience); !found || err != nil {
						return err
					}
				}
			}, e.logged("write exports"))
		})
	}
	all.Go(func() { loop.Every(ctx, e.cfg.Poll, e.PublishAll, e.logged("publish exports")) })
	all.Go(func() { loop.Every(ctx, time.Minute, e.Clean, e.logged("clean exports")) })
}

func (e *Exports) logged(doing string) func(error) {
	return func(err error) { e.Log.Error(doing, "error", err) }
}

// RunOnce claims one due export, writes, commits and publishes it. It returns false if
// none is due. That another process took it over is no error.
func (e *Exports) RunOnce(ctx context.Context) (found bool, err error) { return e.runOnce(ctx, 0) }

func (e *Exports) runOnce(ctx context.Context, patience time.Duration) (found bool, err error) {
	j, found, err := e.begin(ctx, patience)
	if err != nil || !found {
		return false, err
	}
	defer e.leave(j.workspace)
	begun := time.Now()
	content, err := e.prepare(ctx, j)
	if err != nil {
		return true, e.fail(ctx, j, err)
	}
	held, err := e.commit(ctx, j, content)
	if errors.Is(err, errSpace) {
		return true, e.fail(ctx, j, err)
	}
	if err != nil || !held {
		return true, err
	}
	e.Metrics.rows.Add(float64(j.progress.rows.Load()))
	e.Metrics.seconds.Observe(time.Since(begun).Seconds())
	return true, e.publish(ctx, j.owner())
}

// begin claims an export for a worker of this process. It leaves out workspaces that hold
// all its workers but one, since an export may take hours.
func (e *Exports) begin(ctx context.Context, patience time.Duration) (j job, found bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	full := []uuid.UUID{}
	for ws, n := range e.running {
		if n >= max(1, e.cfg.Workers-1) {
			full = append(full, ws)
		}
	}
	if j, found, err = e.claim(ctx, patience, full...); found {
		e.running[j.workspace]++
	}
	return j, found, err
}

// leave ends what begin has begun.
func (e *Exports) leave(ws uuid.UUID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running[ws]--; e.running[ws] == 0 {
		delete(e.running, ws)
	}
}

// claim begins an attempt of the export that has been due longest, for patience at least,
// except those of some workspaces. Workspaces with fewer running exports come first.
func (e *Exports) claim(ctx context.Context, patience time.Duration, except ...uuid.UUID) (j job, found bool, err error) {
	var owner blobs.Owner
	err = pgx.BeginFunc(ctx, e.Pool, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `
			select workspace_id, id from exports x
			where status in ('queued', 'running') and retry_at <= now() - $2::interval and workspace_id <> all($1)
			  and not `+storesDiffer("$3", "$4")+`
			  and not `+leased+`
			order by (select count(*) from exports o where o.workspace_id = x.workspace_id and o.status = 'running'), retry_at
			limit 1 for update skip locked`, append([]uuid.UUID{}, except...), patience, e.Blobs.At, settings.InUse)
		owner, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[blobs.Owner])
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		j = job{workspace: owner.Workspace, progress: &progress{}}
		if j.Export, err = get(ctx, tx, owner.Workspace, owner.ID); err != nil {
			return err
		}
		if j.Attempts >= mostAttempts {
			return e.end(ctx, tx, owner, "too_many_attempts", "each of its workers has crashed, or has lost the database")
		}
		used, err := e.spaceOf(ctx, tx, owner.Workspace, owner.ID)
		if err != nil {
			return err
		}
		switch now, always := e.isUsed(used); {
		case always:
			return e.end(ctx, tx, owner, spaceUsed, e.spaceDetail())
		case now:
			return awaitCleaning(ctx, tx, owner)
		}
		if j.attempt, found, err = e.Blobs.Register(ctx, tx, owner, "exports", format.Extension(j.Format)); err != nil || !found {
			return err
		}
		_, err = tx.Exec(ctx, `
			update exports set status = 'running', attempts = attempts + 1, row_count = 0, byte_count = 0, started_at = coalesce(started_at, now())
			where workspace_id = $1 and id = $2`, owner.Workspace, owner.ID)
		return err
	})
	if err != nil && owner.ID != uuid.Nil {
		err = errors.Join(err, e.postpone(ctx, owner, err))
	}
	return j, found && err == nil, lemma.Wrap(err, "claim export")
}

// postpone lets an export that cannot be claimed wait, so that others are claimed. After
// mostFailures it fails. One that another process has claimed meanwhile stays as it is, and a
// database that was away is no failure of the export.
func (e *Exports) postpone(ctx context.Context, o blobs.Owner, cause error) error {
	return pgx.BeginFunc(ctx, e.Pool, func(tx pgx.Tx) error {
		if err := lock(ctx, tx, o); err != nil {
			return err
		}
		var failures int
		err := tx.QueryRow(ctx, `
			update exports x set failures = failures + $3, retry_at = now() + `+backOff+`
			where workspace_id = $1 and id = $2 and status in ('queued', 'running') and not `+leased+`
			returning failures`, o.Workspace, o.ID, failuresOf(cause)).Scan(&failures)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil || failures < mostFailures {
			return err
		}
		return e.end(ctx, tx, o, "internal", "Lemma could not begin it; the log has the cause")
	})
}

// leased is the condition of an export x that a worker writes.
const leased = `exists (select from blobs b where b.workspace_id = x.workspace_id and b.owner_id = x.id and b.status = 'registered'
	and b.lease_until >= now())`

// failuresOf is how many failures of an export a cause is: 0 if the database was away. A
// statement that took too long does so each time.
func failuresOf(cause error) int {
	if pgerr.Away(cause) && !pgerr.Is(cause, "57014") {
		return 0
	}
	return 1
}

// prepare writes the file of an attempt while it holds the lease.
func (e *Exports) prepare(ctx context.Context, j job) (blobs.Content, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	ctx, stop := e.Blobs.Hold(ctx, j.attempt)
	defer stop()
	go loop.Every(ctx, e.progressEvery, func(ctx context.Context) error {
		used, err := e.saveProgress(ctx, j)
		if used.Bytes > e.cfg.Space {
			end(errSpace)
		}
		return err
	}, e.logged("save progress"))
	content, err := e.Blobs.Prepare(ctx, j.attempt, func(w io.Writer) error { return e.write(ctx, j, w) })
	if err != nil && errors.Is(context.Cause(ctx), errSpace) {
		err = errSpace
	}
	return content, err
}

// errSpace ends an attempt that writes more than its workspace may keep.
var errSpace = errors.New("the workspace has no space for the file")

// saveProgress stores the progress of an attempt that holds its lease, and returns the space that its
// workspace uses with it.
func (e *Exports) saveProgress(ctx context.Context, j job) (used space, err error) {
	err = pgx.BeginFunc(ctx, e.Pool, func(tx pgx.Tx) error {
		if err := lock(ctx, tx, j.owner()); err != nil {
			return err
		}
		held, err := e.Blobs.Held(ctx, tx, j.attempt)
		if err != nil || !held {
			return err
		}
		if err := e.count(ctx, tx, j); err != nil {
			return err
		}
		if err := e.Blobs.Written(ctx, tx, j.attempt, j.progress.bytes.Load()); err != nil {
			return err
		}
		used, err = e.spaceOf(ctx, tx, j.workspace, uuid.Nil)
		return err
	})
	return used, err
}

// lock locks an export before its attempts, as all transactions do: else two would wait for
// each other.
func lock(ctx context.Context, tx pgx.Tx, o blobs.Owner) error {
	_, err := tx.Exec(ctx, `select from exports where workspace_id = $1 and id = $2 for no key update`, o.Workspace, o.ID)
	return err
}

func (e *Exports) count(ctx context.Context, tx pgx.Tx, j job) error {
	_, err := tx.Exec(ctx, `update exports set row_count = $3, byte_count = $4 where workspace_id = $1 and id = $2 and status = 'running'`,
		j.workspace, j.ID, j.progress.rows.Load(), j.progress.bytes.Load())
	return err
}

// commit makes the attempt's file that of the export. It returns false if the attempt has
// lost its lease, and errSpace if the workspace has no space for the file.
func (e *Exports) commit(ctx context.Context, j job, content blobs.Content) (held bool, err error) {
	err = pgx.BeginFunc(ctx, e.Pool, func(tx pgx.Tx) error {
		if err := lock(ctx, tx, j.owner()); err != nil {
			return err
		}
		if held, err = e.Blobs.Commit(ctx, tx, j.attempt, content); err != nil || !held {
			return err
		}
		if err := e.count(ctx, tx, j); err != nil {
			return err
		}
		if used, err := e.spaceOf(ctx, tx, j.workspace, uuid.Nil); err != nil || used.Bytes > e.cfg.Space {
			return cmp.Or(err, errSpace)
		}
		_, err := tx.Exec(ctx, `
			update exports set status = 'publishing', status_reason = null, status_detail = null
			where workspace_id = $1 and id = $2 and status = 'running'`, j.workspace, j.ID)
		return err
	})
	return held, lemma.Wrap(err, "commit export %s", j.ID)
}

// failTime bounds the record of a failure, also during a shutdown.
const failTime = 5 * time.Second

// fail ends an attempt that failed. The export is tried again, mostFailures times in a
// row. A lost lease, a shutdown and a database that was away are no failures: then
// mostAttempts bounds it.
func (e *Exports) fail(ctx context.Context, j job, cause error) error {
	stopped := ctx.Err() != nil
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), failTime)
	defer done()
	return pgx.BeginFunc(ctx, e.Pool, func(tx pgx.Tx) error {
		if err := lock(ctx, tx, j.owner()); err != nil {
			return err
		}
		held, err := e.Blobs.End(ctx, tx, j.attempt)
		if err != nil || !held {
			return err
		}
		if stopped {
			_, err := tx.Exec(ctx, `update exports set status = 'queued', retry_at = now(), attempts = attempts - 1
				where workspace_id = $1 and id = $2 and status = 'running'`, j.workspace, j.ID)
			return err
		}
		e.Log.Error("export failed", "export", lemma.FormatID(lemma.PrefixExport, j.ID), "attempt", j.Attempts+1, "error", cause)
		reason, detail := "internal", "Lemma could not read its rows; the log has the cause"
		if errors.Is(cause, blobs.ErrStore) {
			reason, detail = "store_unavailable", "the blob store does not accept the file; the log has the cause"
		}
		if errors.Is(cause, errSpace) {
			return e.end(ctx, tx, j.owner(), spaceUsed, e.spaceDetail())
		}
		var failures int
		err = tx.QueryRow(ctx, `
			update exports set failures = failures + $5, retry_at = now() + `+backOff+`, status_reason = $3, status_detail = $4
			where workspace_id = $1 and id = $2 and status = 'running' returning failures`,
			j.workspace, j.ID, reason, detail, failuresOf(cause)).Scan(&failures)
		if err != nil || failures < mostFailures {
			return err
		}
		return e.end(ctx, tx, j.owner(), reason, detail)
	})
}

// end fails an export.
func (e *Exports) end(ctx context.Context, tx pgx.Tx, o blobs.Owner, reason, detail string) error {
	_, err := tx.Exec(ctx, `
		update exports set status = 'failed', status_reason = $3, status_detail = $4, finished_at = now(), expires_at = now() + $5
		where workspace_id = $1 and id = $2 and status in ('queued', 'running')`, o.Workspace, o.ID, reason, detail, e.cfg.Retention)
	if err != nil {
		return err
	}
	e.Metrics.ended.WithLabelValues(Failed).Inc()
	return e.Blobs.Drop(ctx, tx, o)
}

// Clean deletes expired exports, and the content that no export has.
func (e *Exports) Clean(ctx context.Context) error {
	failed := e.expireAll(ctx)
	for {
		if n, err := e.Blobs.Clean(ctx); n == 0 || err != nil {
			return errors.Join(failed, err)
		}
	}
}

// expired is an export whose time is over.
type expired struct {
	blobs.Owner
	At time.Time
}

// expireAll deletes expired exports, page by page. One that cannot be deleted is left for the
// next run, and does not stop those that expired after it.
func (e *Exports) expireAll(ctx context.Context) error {
	var failed loop.Errors
	var last expired
	for {
		rows, _ := e.Pool.Query(ctx, `
			select workspace_id, id, expires_at from exports where expires_at < now() and (expires_at, workspace_id, id) > ($1, $2, $3)
			order by expires_at, workspace_id, id limit $4`, last.At, last.Workspace, last.ID, e.expirePage)
		page, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (x expired, err error) {
			err = row.Scan(&x.Workspace, &x.ID, &x.At)
			return x, err
		})
		if err != nil || len(page) == 0 {
			return errors.Join(failed.Err(), lemma.Wrap(err, "find expired exports"))
		}
		failed.Add(loop.Each(ctx, page, func(x expired) error { return e.expire(ctx, x.Owner) }))
		last = page[len(page)-1]
	}
}

// expire deletes an expired export unless another process does.
func (e *Exports) expire(ctx context.Context, o blobs.Owner) error {
	err := pgx.BeginFunc(ctx, e.Pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			delete from exports x using (
				select workspace_id, id from exports where workspace_id = $1 and id = $2 and expires_at < now() for update skip locked
			) old
			where x.workspace_id = old.workspace_id and x.id = old.id`, o.Workspace, o.ID)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		return e.Blobs.Drop(ctx, tx, o)
	})
	return lemma.Wrap(err, "delete expired export %s", o.ID)
}
