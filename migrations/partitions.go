package migrations

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
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
// partition should exist before the first row of its month, which else is in the
// default partition and has to be moved.
const monthsAhead = 3

// maxMoved is how many rows of the default partition are moved into a new partition at
// most: the table is locked until they are.
const maxMoved = 10_000

// Now is the time of the database, which decides what partitions are created and dropped: the
// clock of a process may be wrong.
func Now(ctx context.Context, q querier) (time.Time, error) {
	return scalar[time.Time](ctx, q, "select now()")
}

// Partitions creates the missing partitions of this month and the next three, and of this
// day and the next seven. Rows of their time that are in the default partition are moved into
// them; it logs the partitions for which there are too many, which stay there.
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
	held, err := defaultHolds(ctx, pool, table, from, to)
	if err != nil {
		return err
	}
	if held > maxMoved {
		slog.WarnContext(ctx, "rows of this time are in the default partition and stay there: they are too many to be moved",
			"table", table, "partition", name, "limit", maxMoved)
		return nil
	}
	if held > 0 {
		slog.WarnContext(ctx, "rows of this time are moved from the default partition", "table", table, "partition", name, "rows", held)
	}
	return createPartition(ctx, pool, table, name, from, to)
}

// lowestID is the lower bound of the UUIDv7 ids made at t or later: their first
// 48 bits are milliseconds since 1970 (RFC 9562, section 5.7).
func lowestID(t time.Time) uuid.UUID {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], uint64(t.UnixMilli())<<16)
	return id
}

// defaultHolds counts the rows of a span in the default partition, up to one more than
// maxMoved.
func defaultHolds(ctx context.Context, q querier, table string, from, to uuid.UUID) (int, error) {
	column, err := keyOf(ctx, q, table)
	if err != nil {
		return 0, err
	}
	count := fmt.Sprintf("select count(*) from (select from %s_default where %s >= $1 and %[2]s < $2 limit $3) r", table, column)
	return scalar[int](ctx, q, count, from, to, maxMoved+1)
}

// keyOf is the column by which a table is partitioned.
func keyOf(ctx context.Context, q querier, table string) (string, error) {
	return scalar[string](ctx, q, `
		select a.attname from pg_partitioned_table p
		join pg_attribute a on a.attrelid = p.partrelid and a.attnum = p.partattrs[0]
		where p.partrelid = to_regclass($1)`, table)
}

// createPartition creates a partition with the storage parameters of the default one, and
// moves the rows of its span from there. The default partition is detached while they are
// moved: a partition cannot be created for rows that it has, and triggers that forbid to
// delete them belong to the table. Its lock timeout is short, because sending waits behind it.
func createPartition(ctx context.Context, pool *pgxpool.Pool, table, name string, from, to uuid.UUID) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		options, err := scalar[[]string](ctx, tx,
			"select coalesce(reloptions, '{}') from pg_class where oid = to_regclass($1)", table+"_default")
		if err != nil {
			return err
		}
		column, err := keyOf(ctx, tx, table)
		if err != nil {
			return err
		}
		bounds := fmt.Sprintf("from ('%s') to ('%s')", from, to)
		_, err = tx.Exec(ctx, fmt.Sprintf(`
			set local lock_timeout = '5s';
			alter table %[1]s detach partition %[1]s_default;
			create table %[2]s partition of %[1]s for values %[3]s%[4]s;
			with moved as (delete from %[1]s_default where %[5]s >= '%[6]s' and %[5]s < '%[7]s' returning *)
			insert into %[2]s table moved;
			alter table %[1]s attach partition %[1]s_default default`,
			table, name, bounds, with(options), column, from, to))
		return err
	})
}

func with(options []string) string {
	if len(options) == 0 {
		return ""
	}
	return " with (" + strings.Join(options, ", ") + ")"
}
