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

// partitioned are the tables whose old data is dropped by month. Each is
// partitioned by a column of UUIDv7 ids.
var partitioned = []string{"notifications", "batches", "attempts", "batch_log", "provider_events", "deliveries", "enrollment_steps",
	"tracking_events", "engagements", "audit_log"}

// daily are the tables whose old data is dropped by day.
var daily = []string{"direct_keys"}

// daysAhead is how many days after the current one have partitions.
const daysAhead = 7

// monthsAhead is how many months after the current one have partitions. A
// partition must exist before the first row of its month, since it cannot be
// created for rows that are in the default partition.
const monthsAhead = 3

// Now is the time of the database, which decides what partitions are created and dropped: the
// clock of a process may be wrong.
func Now(ctx context.Context, q querier) (time.Time, error) {
	return scalar[time.Time](ctx, q, "select now()")
}

// Partitions creates the missing partitions of this month and the next three, and of this
// day and the next seven. It logs those whose first rows are in the default partition, where
// they stay.
func Partitions(ctx context.Context, pool *pgxpool.Pool, now time.Time) error {
	return locked(ctx, pool, func() error { return makePartitions(ctx, pool, now) })
}

func makePartitions(ctx context.Context, pool *pgxpool.Pool, now time.Time) error {
	first := time.Date(now.UTC().Year(), now.UTC().Month(), 1, 0, 0, 0, 0, time.UTC)
	for i := range monthsAhead + 1 {
		for _, table := range partitioned {
			if err := makePartition(ctx, pool, table, monthly, first.AddDate(0, i, 0)); err != nil {
				return fmt.Errorf("make partition of %s for %s: %w", table, first.AddDate(0, i, 0).Format("2006-01"), err)
			}
		}
	}
	today := now.UTC().Truncate(24 * time.Hour)
	for i := range daysAhead + 1 {
		for _, table := range daily {
			if err := makePartition(ctx, pool, table, byDay, today.AddDate(0, 0, i)); err != nil {
				return fmt.Errorf("make partition of %s for %s: %w", table, today.AddDate(0, 0, i).Format("2006-01-02"), err)
			}
		}
	}
	return nil
}

// span is the time of a partition.
type span struct {
	suffix string // of its name
	end    func(begin time.Time) time.Time
}

var (
	monthly = span{"_2006_01", func(begin time.Time) time.Time { return begin.AddDate(0, 1, 0) }}
	byDay   = span{"_2006_01_02", func(begin time.Time) time.Time { return begin.AddDate(0, 0, 1) }}
)

// DropDay drops the partition of a daily table whose lowest id is given, in the caller's
// transaction. dropped is false if there is none.
func DropDay(ctx context.Context, tx pgx.Tx, table string, lowest uuid.UUID) (dropped bool, err error) {
	name := table + time.UnixMilli(int64(binary.BigEndian.Uint64(lowest[:8])>>16)).UTC().Format(byDay.suffix)
	if dropped, err = scalar[bool](ctx, tx, "select to_regclass($1) is not null", name); err != nil || !dropped {
		return false, err
	}
	if _, err := tx.Exec(ctx, "drop table "+name); err != nil {
		return false, fmt.Errorf("drop %s: %w", name, err)
	}
	return true, nil
}

func makePartition(ctx context.Context, pool *pgxpool.Pool, table string, of span, begin time.Time) error {
	name := table + begin.Format(of.suffix)
	there, err := scalar[bool](ctx, pool, "select to_regclass($1) is not null", name)
	if err != nil || there {
		return err
	}
	from, to := lowestID(begin), lowestID(of.end(begin))
	taken, err := defaultHolds(ctx, pool, table, from, to)
	if err != nil {
		return err
	}
	if !taken {
		taken, err = createPartition(ctx, pool, table, name, from, to)
	}
	if taken {
		slog.WarnContext(ctx, "rows of this time are in the default partition and stay there",
			"table", table, "partition", name)
	}
	return err
}

// lowestID is the lower bound of the UUIDv7 ids made at t or later: their first
// 48 bits are milliseconds since 1970 (RFC 9562, section 5.7).
func lowestID(t time.Time) uuid.UUID {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], uint64(t.UnixMilli())<<16)
	return id
}

// defaultHolds reports whether the default partition has rows of a month.
// Postgres's own check reads all of that partition under an exclusive lock.
func defaultHolds(ctx context.Context, q querier, table string, from, to uuid.UUID) (bool, error) {
	column, err := scalar[string](ctx, q, `
		select a.attname from pg_partitioned_table p
		join pg_attribute a on a.attrelid = p.partrelid and a.attnum = p.partattrs[0]
		where p.partrelid = to_regclass($1)`, table)
	if err != nil {
		return false, err
	}
	exists := fmt.Sprintf("select exists (select from %s_default where %s >= $1 and %[2]s < $2)", table, column)
	return scalar[bool](ctx, q, exists, from, to)
}

// createPartition creates a partition with the storage parameters of the default
// one. Its lock timeout is short, because sending waits behind it. taken is true
// if a row of the month was inserted in the meantime.
func createPartition(ctx context.Context, pool *pgxpool.Pool, table, name string, from, to uuid.UUID) (taken bool, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		options, err := scalar[[]string](ctx, tx,
			"select coalesce(reloptions, '{}') from pg_class where oid = to_regclass($1)", table+"_default")
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "set local lock_timeout = '5s'"); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, fmt.Sprintf("create table %s partition of %s for values from ('%s') to ('%s')%s",
			name, table, from, to, with(options)))
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
