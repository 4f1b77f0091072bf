package suppression

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/loop"
)

// bloomForm is the form of stored bits. It changes with the key of an address and with the
// place of a pair: a process reads no filter of another form.
const bloomForm = 1

// blocksPerPart are a mebibyte.
const blocksPerPart = 1 << 20 / blockBytes

// errNoMemory ends the reading of a filter for which the memory does not suffice.
var errNoMemory = errors.New("no memory for a filter of suppressions")

// readStored reads the filter that StoreFilters has stored; nil if there is none. reserve
// takes memory for it, or the error is errNoMemory.
//
// The filter holds in each database that has its rows: the transaction that stored them is
// younger than those that their snapshot sees, and is flushed after them. So their numbers
// are not given again by a server that has recovered, nor by a standby or a backup. A dump
// does not have the snapshot, and rows without one are no filter.
func readStored(ctx context.Context, db DB, ws uuid.UUID, reserve func(bytes int) bool) (*filter, error) {
	rows, _ := db.Query(ctx, storedFilter, ws, bloomForm)
	var f filter
	var seen *string
	var part, parts, pairs, capacity *int
	var bits pgtype.DriverBytes
	read, isWhole := 0, true
	_, err := pgx.ForEachRow(rows, []any{&f.database, &seen, &part, &parts, &pairs, &capacity, &bits}, func() error {
		if seen == nil {
			return nil
		}
		if f.bits == nil {
			size := len(bits) * *parts // the first part is as large as each other, or the only one
			if !reserve(size) {
				return errNoMemory
			}
			f.since, f.bits = *seen, &bloom{pairs: *pairs, capacity: *capacity, blocks: make([][blockWords]uint64, 0, size/blockBytes)}
		}
		isWhole = isWhole && *seen == f.since && *part == read && (len(bits) == blocksPerPart*blockBytes || *part == *parts-1)
		f.bits.appendBytes(bits)
		read++
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the filter of suppressions: %w", err)
	}
	if f.bits == nil || !isWhole || read != *parts || len(f.bits.blocks) == 0 {
		return nil, nil
	}
	return &f, nil
}

const storedFilter = `
	select d.database, f.seen, f.part, f.parts, f.pairs, f.capacity, f.bits
	from (select ` + database + ` as database) d
	left join suppression_filters f on f.workspace_id = $1 and f.form = $2 and f.seen is not null
	order by f.part`

// StoreFilters stores the filters of workspaces to whose lists so much was added that a
// process that starts would soon not read it. It has one of them in memory at a time, and
// one process stores it. One that fails does not stop the others.
func (c *Checker) StoreFilters(ctx context.Context) error {
	rows, _ := c.pool.Query(ctx, grownLists, max(1, c.cfg.New/2), bloomForm)
	grown, err := pgx.CollectRows(rows, pgx.RowToStructByPos[grownList])
	if err != nil {
		return fmt.Errorf("find lists of suppressions that have grown: %w", err)
	}
	var failed loop.Errors
	for _, g := range grown {
		err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error { return c.store(ctx, tx, g) })
		if err != nil {
			failed.Add(fmt.Errorf("store the filter of workspace %s: %w", g.Workspace, err))
		}
	}
	return failed.Err()
}

// grownList is a workspace to whose lists much was added since its filter was stored.
type grownList struct {
	Workspace uuid.UUID
	Seen      string // snapshot of the filter; nothing without one
}

// perNew is how many pairs a filter has for each one that a check reads beyond Config.New.
const perNew = 100

// most is how many new pairs a check reads for a filter with a number of pairs at most. A
// stored filter is behind by half as many at most, so that a process that starts reads them.
func (c *Checker) most(pairs int) int { return c.cfg.New + pairs/perNew }

// grownLists counts no further than to the number that is needed.
var grownLists = fmt.Sprintf(`
	select w.id, f.seen
	from workspaces w
	cross join lateral (
		select coalesce(max(f.seen), '%s') as seen, $1 + coalesce(max(f.pairs), 0) / %d as behind
		from suppression_filters f where f.workspace_id = w.id and f.part = 0 and f.form = $2 and f.seen is not null
	) f
	cross join lateral (
		(select from suppressions s where s.workspace_id = w.id and s.written_by >= pg_snapshot_xmax(f.seen::pg_snapshot)
		order by s.written_by limit f.behind)
		union all
		(select from topic_unsubscribes t where t.workspace_id = w.id and t.written_by >= pg_snapshot_xmax(f.seen::pg_snapshot)
		order by t.written_by limit f.behind)
	) n
	group by w.id, f.seen, f.behind having count(*) >= f.behind`, nothing, 2*perNew)

// store stores a filter with the present snapshot. One transaction reads the snapshot and
// stores the filter, so that its number is certainly younger, and no crash is between.
func (c *Checker) store(ctx context.Context, tx pgx.Tx, g grownList) error {
	var isFree bool
	var now string
	err := tx.QueryRow(ctx, `
		select pg_try_advisory_xact_lock(hashtextextended('suppression_filters ' || $1::uuid, 0)), pg_current_snapshot()::text,
			set_config('statement_timeout', '10min', true)`, g.Workspace).Scan(&isFree, &now, nil)
	if err != nil || !isFree { // another process stores it
		return err
	}
	f, err := readStored(ctx, tx, g.Workspace, func(int) bool { return true })
	if err != nil {
		return err
	}
	if f != nil && f.since != g.Seen { // another process has stored it
		return nil
	}
	var bits *bloom
	if f != nil {
		bits = f.bits
		if err := addBetween(ctx, tx, g.Workspace, bits, f.since, now); err != nil {
			return err
		}
	}
	if bits == nil || bits.capacity-bits.pairs < c.most(bits.pairs) {
		if bits, err = c.readAll(ctx, tx, g.Workspace, now); err != nil {
			return err
		}
	}
	err = write(ctx, tx, g.Workspace, bits, now)
	if err == nil {
		c.metrics.stored.Inc()
	}
	return err
}

// readAll reads the lists into a new filter. It has capacity for what a check adds at most.
func (c *Checker) readAll(ctx context.Context, tx pgx.Tx, ws uuid.UUID, now string) (*bloom, error) {
	n := 0
	err := tx.QueryRow(ctx, `select count(*) from `+pairsBetween, ws, nothing, now).Scan(&n)
	if err != nil {
		return nil, fmt.Errorf("count suppressions: %w", err)
	}
	bits := newBloom(n, c.most(n))
	return bits, addBetween(ctx, tx, ws, bits, nothing, now)
}

// addBetween adds what was written between two snapshots, also beyond the capacity.
func addBetween(ctx context.Context, tx pgx.Tx, ws uuid.UUID, bits *bloom, since, now string) error {
	rows, _ := tx.Query(ctx, `select n.topic_id, n.key from `+pairsBetween, ws, since, now)
	var p pair
	_, err := pgx.ForEachRow(rows, []any{(*[16]byte)(&p.topic), (*[16]byte)(&p.key)}, func() error {
		bits.add(p)
		return nil
	})
	return lemma.Wrap(err, "read suppressions")
}

const pairsBetween = `(select $2::text::pg_snapshot as since, $3::text::pg_snapshot as now) s cross join lateral ` + writtenBetween

// write replaces the stored filter. The setting distinguishes its rows from those that are restored.
func write(ctx context.Context, tx pgx.Tx, ws uuid.UUID, bits *bloom, seen string) error {
	if _, err := tx.Exec(ctx, `select set_config('lemma.filter_snapshot', $1, true)`, seen); err != nil {
		return fmt.Errorf("store bits: %w", err)
	}
	if _, err := tx.Exec(ctx, `delete from suppression_filters where workspace_id = $1`, ws); err != nil {
		return fmt.Errorf("store bits: %w", err)
	}
	parts := (len(bits.blocks) + blocksPerPart - 1) / blocksPerPart
	for part := range parts {
		_, err := tx.Exec(ctx, `insert into suppression_filters (workspace_id, part, parts, form, pairs, capacity, bits)
			values ($1, $2, $3, $4, $5, $6, $7)`, ws, part, parts, bloomForm, bits.pairs, bits.capacity,
			bits.bytes(part*blocksPerPart, blocksPerPart))
		if err != nil {
			return fmt.Errorf("store bits: %w", err)
		}
	}
	return nil
}
