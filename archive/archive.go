// Package archive copies partitions to the blob store before they are dropped. It
// guarantees:
//
//   - Store returns without an error only when the store has each row of the partition:
//     the content was read back, and its checksum and its number of rows are right.
//   - A process that crashes leaves nothing for ever; another one archives the partition.
//   - What was archived can be read again.
//
// A partition is created again after it was dropped if the clock of the database was ahead. It is
// another table, and has another archive, with the next number.
//
// An archive is the CSV that Postgres writes (COPY), with a header, compressed by gzip. It
// has the rows of all workspaces, and it is not deleted by Lemma.
package archive

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/blobs"
	"lemma/migrations"
	"lemma/pgerr"
)

// Archive stores and reads partitions. It is safe for concurrent use.
type Archive struct {
	pool  *pgxpool.Pool
	blobs *blobs.Blobs
}

// New returns an Archive.
func New(pool *pgxpool.Pool, b *blobs.Blobs) *Archive { return &Archive{pool, b} }

// Entry is an archived partition.
type Entry struct {
	ID        uuid.UUID
	Partition string
	Number    int // of the archives of partitions of that name
	Table     string
	Month     time.Time // its first instant, in UTC whatever the zone of this process
	RowCount  int64
	Bytes     int64
	StoredAt  time.Time
}

func (e Entry) owner() blobs.Owner { return blobs.Owner{ID: e.ID} }

// Store archives a detached partition: nothing writes to it any more. One that is archived
// already, or that another process has archived and dropped, is not stored again. The caller drops
// it afterwards.
func (a *Archive) Store(ctx context.Context, p migrations.Partition) error {
	e, attempt, err := a.begin(ctx, p)
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("archive %s: %w", p.Name(), err)
	}
	if attempt == nil { // committed, perhaps by a process that crashed before it published
		err := a.publish(ctx, e)
		lost, is := errors.AsType[*blobs.Lost](err)
		if !is {
			return err
		}
		if err := a.forget(ctx, e, lost.ID); err != nil { // the table still has the rows
			return fmt.Errorf("archive %s again: %w", p.Name(), err)
		}
		return a.Store(ctx, p)
	}
	held, stop := a.blobs.Hold(ctx, *attempt)
	defer stop()
	content, err := a.blobs.Prepare(held, *attempt, func(w io.Writer) (err error) {
		e.RowCount, err = a.copy(held, p, w)
		return err
	})
	if err == nil {
		err = a.verify(held, attempt.Name, content, e.RowCount)
	}
	if err != nil {
		return fmt.Errorf("archive %s: %w", p.Name(), errors.Join(err, a.giveUp(ctx, *attempt)))
	}
	if err := a.commit(held, e, *attempt, content); err != nil {
		return fmt.Errorf("archive %s: %w", p.Name(), err)
	}
	return a.publish(ctx, e)
}

// errBusy is the error while another process archives the partition.
var errBusy = errors.New("another process archives it")

// begin registers an attempt; nil if one is committed.
func (a *Archive) begin(ctx context.Context, p migrations.Partition) (e Entry, attempt *blobs.Attempt, err error) {
	e = Entry{ID: lemma.NewID(), Partition: p.Name(), Table: p.Table, Month: p.Month}
	err = pgx.BeginFunc(ctx, a.pool, func(tx pgx.Tx) error {
		if err := keep(ctx, tx, p); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `insert into archives (id, partition, number, table_oid, source, month)
			select $1, $2, coalesce(max(number), 0) + 1, $3, $4, $5 from archives where partition = $2 on conflict do nothing`,
			e.ID, e.Partition, p.OID, e.Table, e.Month); err != nil {
			return err
		}
		var stored bool
		err := tx.QueryRow(ctx, `select id, stored_at is not null from archives where partition = $1 and table_oid = $2 for update`,
			e.Partition, p.OID).Scan(&e.ID, &stored)
		if errors.Is(err, pgx.ErrNoRows) { // it archives another table of the name, at the same moment
			return errBusy
		}
		if err != nil || stored {
			return err
		}
		made, ok, err := a.blobs.Register(ctx, tx, e.owner(), "archive/"+e.Table, ".csv.gz")
		if err == nil && !ok {
			err = errBusy
		}
		attempt = &made
		return err
	})
	return e, attempt, err
}

// errGone is the error for a partition that was dropped, also if another of its name was created since.
var errGone = errors.New("it was dropped")

// keep keeps a detached partition from being dropped until the end of the transaction.
func keep(ctx context.Context, tx pgx.Tx, p migrations.Partition) error {
	_, err := tx.Exec(ctx, "lock table "+pgx.Identifier{p.Name()}.Sanitize()+" in access share mode")
	if pgerr.Is(err, pgerr.UndefinedTable) {
		return errGone
	}
	if err != nil {
		return err
	}
	there, err := p.IsDetached(ctx, tx)
	if err == nil && !there {
		err = errGone
	}
	return err
}

// forget ends a committed attempt whose content the store does not have: the store has lost it, or is
// another one than that of the attempt.
func (a *Archive) forget(ctx context.Context, e Entry, lost uuid.UUID) error {
	return pgx.BeginFunc(ctx, a.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `select from blobs where workspace_id = $1 and id = $2 and owner_id = $3 and status = 'committed' for update`,
			e.owner().Workspace, lost, e.ID)
		if err != nil || tag.RowsAffected() == 0 { // another process was faster
			return err
		}
		if _, err := tx.Exec(ctx, `update archives set row_count = null, bytes = null, stored_at = null where id = $1`, e.ID); err != nil {
			return err
		}
		return a.blobs.Drop(ctx, tx, e.owner())
	})
}

// copy writes the rows of a partition, and returns their number.
func (a *Archive) copy(ctx context.Context, p migrations.Partition, to io.Writer) (rows int64, err error) {
	packed := gzip.NewWriter(to)
	err = pgx.BeginFunc(ctx, a.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "set local statement_timeout = 0"); err != nil {
			return err
		}
		if err := keep(ctx, tx, p); err != nil {
			return err
		}
		tag, err := tx.Conn().PgConn().CopyTo(ctx, packed, "copy "+pgx.Identifier{p.Name()}.Sanitize()+" to stdout (format csv, header)")
		rows = tag.RowsAffected()
		return err
	})
	return rows, errors.Join(err, packed.Close())
}

// verify reads the content back from the store, and compares its checksum and the number of
// its rows.
func (a *Archive) verify(ctx context.Context, name string, content blobs.Content, rows int64) error {
	stored, err := a.blobs.Store.Open(ctx, name, 0)
	if err != nil {
		return err
	}
	defer stored.Close()
	sum := sha256.New()
	tee := io.TeeReader(stored, sum)
	unpacked, err := gzip.NewReader(tee)
	if err != nil {
		return err
	}
	lines := csv.NewReader(unpacked)
	lines.ReuseRecord, lines.LazyQuotes = true, false
	found := int64(-1) // the header
	for {
		_, err := lines.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		found++
	}
	if _, err := io.Copy(io.Discard, tee); err != nil {
		return err
	}
	if found != rows || string(sum.Sum(nil)) != string(content.SHA256) {
		return fmt.Errorf("the store has %d rows instead of %d, or another checksum", found, rows)
	}
	return nil
}

func (a *Archive) giveUp(ctx context.Context, attempt blobs.Attempt) error {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer done()
	return pgx.BeginFunc(ctx, a.pool, func(tx pgx.Tx) error {
		_, err := a.blobs.End(ctx, tx, attempt)
		return err
	})
}

// errLost is the error of a process that has lost its lease.
var errLost = errors.New("another process took it over")

func (a *Archive) commit(ctx context.Context, e Entry, attempt blobs.Attempt, content blobs.Content) error {
	return pgx.BeginFunc(ctx, a.pool, func(tx pgx.Tx) error {
		held, err := a.blobs.Commit(ctx, tx, attempt, content)
		if err == nil && !held {
			err = errLost
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `update archives set row_count = $2, bytes = $3, stored_at = now() where id = $1 and stored_at is null`,
			e.ID, e.RowCount, content.Bytes)
		return err
	})
}

// publish checks that the store has the whole content, and makes it readable.
func (a *Archive) publish(ctx context.Context, e Entry) error {
	if _, err := a.blobs.Publish(ctx, e.owner(), func(pgx.Tx) error { return nil }); err != nil {
		return err
	}
	_, err := a.blobs.Published(ctx, e.owner())
	return err
}

const columns = `id, partition, number, source, month, row_count, bytes, stored_at`

// List lists what was archived, the oldest month first.
func (a *Archive) List(ctx context.Context) ([]Entry, error) {
	rows, _ := a.pool.Query(ctx, `select `+columns+` from archives where stored_at is not null order by month, partition, number`)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Entry])
	return all, lemma.Wrap(err, "list archives")
}

// Read writes the rows of an archived partition as CSV, with a header. The number is that of one
// of several archives, or 0.
func (a *Archive) Read(ctx context.Context, partition string, number int, to io.Writer) error {
	rows, _ := a.pool.Query(ctx, `select `+columns+` from archives
		where partition = $1 and stored_at is not null and $2 in (0, number) order by number limit 2`, partition, number)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Entry])
	switch {
	case err != nil:
		return fmt.Errorf("find archive of %s: %w", partition, err)
	case len(found) == 0:
		return lemma.Missing("archive of this partition")
	case len(found) > 1:
		return fmt.Errorf("%s was archived several times, since it was created again: choose an archive by its number", partition)
	}
	return a.read(ctx, found[0], to)
}

func (a *Archive) read(ctx context.Context, e Entry, to io.Writer) error {
	if err := a.publish(ctx, e); err != nil {
		return err
	}
	found, err := a.blobs.Published(ctx, e.owner())
	if err != nil {
		return err
	}
	stored, err := a.blobs.Store.Open(ctx, found.Name, 0)
	if err != nil {
		return fmt.Errorf("open archive of %s, which was stored in %s: %w", e.Partition, found.Store, err)
	}
	defer stored.Close()
	unpacked, err := gzip.NewReader(stored)
	if err != nil {
		return fmt.Errorf("read archive of %s: %w", e.Partition, err)
	}
	_, err = io.Copy(to, unpacked) //nolint:gosec // Lemma has written it; it is streamed
	return err
}
