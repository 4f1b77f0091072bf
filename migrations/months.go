package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/pgerr"
)

// Partition has the rows of a table whose ids were made in one month.
type Partition struct {
	Table    string
	Month    time.Time // its first instant, UTC
	Attached bool      // false: it was detached, and still has to be dropped
	Bytes    int64     // with indexes
	OID      uint32    // of the table: one of that name may be dropped, and created again
}

// Name is the name of the partition in the database.
func (p Partition) Name() string { return p.Table + p.Month.Format("_2006_01") }

// End is the first instant after the month.
func (p Partition) End() time.Time { return p.Month.AddDate(0, 1, 0) }

// IDs are the bounds of the ids in the partition: from is included, to is not.
func (p Partition) IDs() (from, to uuid.UUID) { return lowestID(p.Month), lowestID(p.End()) }

// FirstIDs are the bounds of the ids that have the first millisecond of the month, as those
// that are made for a month have: see notifications.DirectID.
func (p Partition) FirstIDs() (from, to uuid.UUID) {
	return lowestID(p.Month), lowestID(p.Month.Add(time.Millisecond))
}

// Partitioned lists the tables that are partitioned by month.
func Partitioned() []string { return slices.Clone(partitioned) }

// Months lists the partitions of all tables, also those that were detached. The oldest
// month is first, and the tables of a month are in the order of Partitioned.
func Months(ctx context.Context, q querier) ([]Partition, error) {
	rows, _ := q.Query(ctx, `
		select t.name, to_date(right(c.relname, 7), 'YYYY_MM')::timestamp at time zone 'UTC', c.relispartition,
			pg_total_relation_size(c.oid), c.oid
		from unnest($1::text[]) with ordinality as t (name, place)
		join pg_class c on c.relname like replace(t.name, '_', '\_') || '\_____\___' and right(c.relname, 7) ~ '^\d{4}_\d\d$'
			and c.relkind = 'r' and c.relnamespace = to_regnamespace(current_schema())
		order by 2, t.place`, partitioned)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Partition])
	if err != nil {
		return nil, fmt.Errorf("list partitions: %w", err)
	}
	for i := range all {
		all[i].Month = all[i].Month.UTC()
	}
	return all, nil
}

// Detached lists the names of a table's partitions that were detached and are not dropped yet:
// their archive cannot be written, or is being written. It locks the table until the end of the
// transaction, so that each month is either in the list or in the table.
func Detached(ctx context.Context, tx pgx.Tx, table string) ([]string, error) {
	if _, err := tx.Exec(ctx, "lock table only "+table+" in access share mode"); err != nil {
		return nil, fmt.Errorf("lock %s: %w", table, err)
	}
	rows, _ := tx.Query(ctx, `
		select relname::text from pg_class
		where relname like replace($1, '_', '\_') || '\_____\___' and right(relname, 7) ~ '^\d{4}_\d\d$'
			and relkind = 'r' and not relispartition and relnamespace = to_regnamespace(current_schema())
		order by 1`, table)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list detached partitions: %w", err)
	}
	return names, nil
}

// detachWait is how long the lock of Detach is waited for, and so how long statements of
// the table may wait behind it.
const detachWait = 200 * time.Millisecond

// ErrBusy is returned by Detach while other transactions use the table.
var ErrBusy = errors.New("the table is in use by other transactions")

// Detach removes a partition from its table. Its rows stay in a table of its own, which
// Drop deletes. inUse decides under the lock, so that nothing can begin to need the rows
// between the decision and the end; it has to be quick, since the table is locked. done
// is false if they are in use, or another process was faster.
//
// Postgres cannot detach concurrently from a table with a default partition. The lock is
// exclusive, but it is held for the catalog only, and waited for 200 ms at most: then the
// error is ErrBusy.
func Detach(
	ctx context.Context, pool *pgxpool.Pool, p Partition, inUse func(context.Context, pgx.Tx) (bool, error),
) (done bool, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, fmt.Sprintf("set local lock_timeout = '%dms'; set local statement_timeout = '1s'; "+
			"lock table only %s in access exclusive mode", detachWait.Milliseconds(), p.Table))
		if err != nil {
			return err
		}
		attached, err := scalar[bool](ctx, tx, "select exists (select from pg_inherits where inhrelid = to_regclass($1) and inhrelid = $2)",
			p.Name(), p.OID)
		if err != nil || !attached {
			return err
		}
		if used, err := inUse(ctx, tx); err != nil || used {
			return err
		}
		_, err = tx.Exec(ctx, fmt.Sprintf("alter table %s detach partition %s", p.Table, p.Name()))
		done = err == nil
		return err
	})
	if pgerr.Is(err, pgerr.LockTimeout) {
		err = ErrBusy
	}
	if err != nil {
		return false, fmt.Errorf("detach %s: %w", p.Name(), err)
	}
	return done, nil
}

// Drop deletes a detached partition, unless keep decides in the same transaction that it
// stays: then done is false. It locks nothing that other statements use. Dropping one that is
// gone changes nothing, also if another of its name was created since.
func Drop(ctx context.Context, pool *pgxpool.Pool, p Partition, keep func(context.Context, pgx.Tx) (bool, error)) (done bool, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		there, err := p.IsDetached(ctx, tx)
		if err != nil || !there {
			done = err == nil
			return err
		}
		if _, err := tx.Exec(ctx, "lock table "+p.Name()+" in access exclusive mode"); err != nil {
			return err
		}
		if there, err = p.IsDetached(ctx, tx); err != nil || !there {
			done = err == nil
			return err
		}
		if kept, err := keep(ctx, tx); err != nil || kept {
			return err
		}
		_, err = tx.Exec(ctx, "drop table "+p.Name())
		done = err == nil
		return err
	})
	if pgerr.Is(err, pgerr.UndefinedTable) { // another process was faster
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("drop %s: %w", p.Name(), err)
	}
	return done, nil
}

// IsDetached reports whether a partition exists: that table, and no other of its name. It fails while
// the table is attached.
func (p Partition) IsDetached(ctx context.Context, tx pgx.Tx) (there bool, err error) {
	attached := false
	err = tx.QueryRow(ctx, "select relispartition from pg_class where oid = to_regclass($1) and oid = $2", p.Name(), p.OID).Scan(&attached)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err == nil && attached:
		err = errors.New("detach it first")
	}
	return err == nil, err
}
