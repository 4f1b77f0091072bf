package migrations

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// partitioned are the tables that old data leaves by the month: each is cut by
// a column that holds UUIDv7 ids.
var partitioned = []string{"notifications", "batches", "attempts", "enrollment_steps"}

// monthsAhead is how many months beyond the present one have partitions. They
// must be there before the first row of the month: a partition cannot be made
// for rows that the default partition has taken.
const monthsAhead = 3

// Partitions makes the partitions of now's month and the next three, where
// they are missing. Calling it again, or from many nodes at once, is harmless;
// workers call it from time to time.
//
// A month whose first rows are in the default partition stays there: that is
// logged, costs speed once the month is to be dropped, and loses nothing.
func Partitions(ctx context.Context, pool *pgxpool.Pool, now time.Time) error {
	return locked(ctx, pool, func() error { return makePartitions(ctx, pool, now) })
}

func makePartitions(ctx context.Context, pool *pgxpool.Pool, now time.Time) error {
	first := time.Date(now.UTC().Year(), now.UTC().Month(), 1, 0, 0, 0, 0, time.UTC)
	for i := range monthsAhead + 1 {
		for _, table := range partitioned {
			if err := makePartition(ctx, pool, table, first.AddDate(0, i, 0)); err != nil {
				return fmt.Errorf("make partition of %s for %s: %w", table, first.AddDate(0, i, 0).Format("2006-01"), err)
			}
		}
	}
	return nil
}

func makePartition(ctx context.Context, pool *pgxpool.Pool, table string, month time.Time) error {
	name := table + month.Format("_2006_01")
	there, err := scalar[bool](ctx, pool, "select to_regclass($1) is not null", name)
	if err != nil || there {
		return err
	}
	from, to := lowestID(month), lowestID(month.AddDate(0, 1, 0))
	taken, err := defaultHolds(ctx, pool, table, from, to)
	if err != nil {
		return err
	}
	if !taken {
		taken, err = createPartition(ctx, pool, table, name, from, to)
	}
	if taken {
		slog.WarnContext(ctx, "rows of this month are in the default partition and stay there", "table", table, "month", month.Format("2006-01"))
	}
	return err
}

// lowestID is the bound before the UUIDv7 ids made at t or later: their first
// 48 bits are milliseconds since 1970 (RFC 9562, section 5.7).
func lowestID(t time.Time) uuid.UUID {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], uint64(t.UnixMilli())<<16)
	return id
}

// defaultHolds asks before Postgres would: its own check reads the whole
// default partition under a lock that stops everybody.
func defaultHolds(ctx context.Context, q querier, table string, from, to uuid.UUID) (bool, error) {
	column, err := scalar[string](ctx, q, `
		select a.attname from pg_partitioned_table p
		join pg_attribute a on a.attrelid = p.partrelid and a.attnum = p.partattrs[0]
		where p.partrelid = to_regclass($1)`, table)
	if err != nil {
		return false, err
	}
	return scalar[bool](ctx, q, fmt.Sprintf("select exists (select from %s_default where %s >= $1 and %[2]s < $2)", table, column), from, to)
}

// createPartition makes one with the storage parameters of the default
// partition. It gives up on its locks after some seconds rather than stand in
// front of everybody who wants to send, and answers true when a row of the
// month came in between.
func createPartition(ctx context.Context, pool *pgxpool.Pool, table, name string, from, to uuid.UUID) (taken bool, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		options, err := scalar[[]string](ctx, tx, "select coalesce(reloptions, '{}') from pg_class where oid = to_regclass($1)", table+"_default")
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "set local lock_timeout = '5s'"); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, fmt.Sprintf("create table %s partition of %s for values from ('%s') to ('%s')%s", name, table, from, to, with(options)))
		return err
	})
	const checkViolation = "23514"
	if fault := new(pgconn.PgError); errors.As(err, &fault) && fault.Code == checkViolation {
		return true, nil
	}
	return false, err
}

func with(options []string) string {
	if len(options) == 0 {
		return ""
	}
	return " with (" + strings.Join(options, ", ") + ")"
}
