package exports

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"lemma"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// part is some of the rows of a type, in pages of one statement each. Its columns are
// whether a row is kept, those of the type, and its keys.
type part struct {
	keys []string // columns of the order, of type uuid; without any, a page has the rows of some batches
	sql  string
}

// read is a page that was read.
type read struct {
	rows  *rows
	found int   // rows that were read, also those that are not kept
	last  []any // the keys of the last one
	cut   bool  // it has its bytes: the statement has more rows
	err   error
}

// reader reads the pages of an export, two at a time where their bounds are known before.
type reader struct {
	*Exports
	job   job
	pages chan chan read // in the order of the file
	limit atomic.Int64   // rows of the next page
	all   sync.WaitGroup
}

// read reads the parts of a type. It closes pages at the end, and when ctx ends.
func (r *reader) read(ctx context.Context, kind rowType) {
	defer close(r.pages)
	r.limit.Store(min(firstRows, int64(r.cfg.PageRows)))
	for _, p := range kind.parts {
		readPart := r.byKeys
		if len(p.keys) == 0 {
			readPart = r.byBatches
		}
		if err := readPart(ctx, kind, p); err != nil {
			r.send(ctx, one(read{err: err}))
			return
		}
	}
}

// firstRows are the rows of the first page, whose bytes are not known.
const firstRows = 1000

// adapt sets the rows of the next page by those of this one, so that it has nearly its
// bytes. It has at most twice as many rows as the last one: rows that a page reads and has
// no place for are few beside the others.
func (r *reader) adapt(page read) {
	if page.found > 0 {
		fit := int64(page.found) * int64(r.cfg.PageBytes) / int64(max(len(page.rows.data), 1))
		r.limit.Store(max(1, min(fit, 2*r.limit.Load(), int64(r.cfg.PageRows))))
	}
}

// one returns the only page of a statement.
func one(page read) chan read {
	next := make(chan read, 1)
	next <- page
	close(next)
	return next
}

func (r *reader) send(ctx context.Context, next chan read) bool {
	select {
	case r.pages <- next:
		return true
	case <-ctx.Done():
		return false
	}
}

// byKeys reads pages that begin after the keys of the page before.
func (r *reader) byKeys(ctx context.Context, kind rowType, p part) error {
	sql, args := p.statement(kind, r.job.workspace, r.job.Export, 0)
	after, limit := args[1:1+len(p.keys)], &args[1+len(p.keys)]
	for {
		*limit = r.limit.Load()
		page := r.page(ctx, kind, p, sql, args, r.cfg.PageBytes)
		if page.err != nil || page.found == 0 {
			return page.err
		}
		if !r.send(ctx, one(page)) {
			return nil
		}
		copy(after, page.last)
	}
}

// byBatches reads pages of some batches each.
func (r *reader) byBatches(ctx context.Context, kind rowType, p part) error {
	sql, args := p.statement(kind, r.job.workspace, r.job.Export, 0)
	first, most := r.job.Filters.origins()
	after := batch{OriginID: first}
	for {
		all, err := r.batches(ctx, after, first, most)
		if err != nil || len(all) == 0 {
			return err
		}
		after = all[len(all)-1]
		for len(all) > 0 {
			n := enough(all, int(r.limit.Load()))
			some := all[:n]
			all = all[n:]
			next := make(chan read)
			if !r.send(ctx, next) {
				return nil
			}
			r.all.Go(func() {
				defer close(next)
				r.readBatches(ctx, kind, p, sql, slices.Clone(args), some, next)
			})
		}
	}
}

// readBatches reads some batches in one page, or bisects them if they have more bytes. A page
// has at least one batch. False ends the export.
func (r *reader) readBatches(ctx context.Context, kind rowType, p part, sql string, args []any, all []batch, next chan<- read) bool {
	args[1], args[2] = columnsOf(all)
	most := r.cfg.PageBytes
	if len(all) == 1 {
		most = math.MaxInt
	}
	page := r.page(ctx, kind, p, sql, args, most)
	if page.cut {
		page.rows.free()
		half := len(all) / 2
		return r.readBatches(ctx, kind, p, sql, args, all[:half], next) && r.readBatches(ctx, kind, p, sql, args, all[half:], next)
	}
	select {
	case next <- page:
		return page.err == nil
	case <-ctx.Done():
		return false
	}
}

// batch is a batch of notifications.
type batch struct {
	OriginID, ID uuid.UUID
	Size         int
}

// listed is how many batches are listed together.
const listed = 1000

// batches lists the batches of the workspace after one. Those that were derived from
// another have no notifications of their own.
func (r *reader) batches(ctx context.Context, after batch, first, most uuid.UUID) ([]batch, error) {
	rows, _ := r.Pool.Query(ctx, `
		select origin_id, id, size from batches
		where workspace_id = $1 and id = root_id and (origin_id, id) > ($2, $3) and origin_id >= $4 and origin_id <= $5
		order by origin_id, id limit $6`, r.job.workspace, after.OriginID, after.ID, first, most, listed)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[batch])
	return all, lemma.Wrap(err, "list batches")
}

// enough returns how many of the batches have the rows of a page, at least one.
func enough(all []batch, rows int) int {
	for i, b := range all {
		if rows -= b.Size; rows < 0 {
			return max(i, 1)
		}
	}
	return len(all)
}

func columnsOf(all []batch) (origins, ids []uuid.UUID) {
	for _, b := range all {
		origins, ids = append(origins, b.OriginID), append(ids, b.ID)
	}
	return origins, ids
}

// page reads one page, of rows of at most some bytes, or one row. Nothing that its statement
// looks up comes twice, so that a cache of it only costs.
func (r *reader) page(ctx context.Context, kind rowType, p part, sql string, args []any, most int) read {
	page := read{rows: newRows()}
	page.err = pgx.BeginFunc(ctx, r.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `set local enable_memoize = off`); err != nil {
			return err
		}
		found, err := tx.Query(ctx, sql, append([]any{pgx.QueryResultFormats{pgx.BinaryFormatCode}}, args...)...)
		if err != nil {
			return err
		}
		defer found.Close()
		keys := make([]uuid.UUID, len(p.keys))
		for !page.cut && found.Next() {
			values := found.RawValues()
			if keep := values[0]; len(keep) > 0 && keep[0] != 0 && !page.rows.add(values[1:1+len(kind.columns)], most) {
				page.cut = true
				continue
			}
			for i := range keys {
				copy(keys[i][:], values[1+len(kind.columns)+i])
			}
			page.found++
		}
		page.last = asArgs(keys)
		found.Close()
		return found.Err()
	})
	if page.err == nil {
		r.adapt(page)
	}
	return page
}

func asArgs(keys []uuid.UUID) []any {
	all := make([]any, len(keys))
	for i, key := range keys {
		all[i] = key
	}
	return all
}

// statement returns the statement of a page and its arguments: the workspace, the bounds
// of the page, and those of the filters. The bounds are the origins and ids of batches; or
// the keys to begin after, the largest first key and the limit.
func (p part) statement(kind rowType, ws uuid.UUID, x Export, limit int) (string, []any) {
	args := []any{ws}
	arg := func(value any) string {
		args = append(args, value)
		return fmt.Sprintf("$%d", len(args))
	}
	after, limited := "", ""
	if len(p.keys) == 0 {
		args = append(args, nil, nil)
	} else {
		after, limited = p.after(x.Filters, arg), arg(limit)
	}
	keep := []string{kind.created + " <= " + arg(x.CreatedAt)}
	set := x.Filters.set()
	for _, name := range slices.Sorted(maps.Keys(set)) {
		keep = append(keep, strings.Replace(kind.filters[name], "?", arg(set[name]), 1))
	}
	return strings.NewReplacer("{keep}", "("+strings.Join(keep, " and ")+")", "{after}", after, "{limit}", limited).Replace(p.sql), args
}

// after returns the condition of the rows after some keys. A filter on the first key fixes
// it, since the rows of one flow or origin are together.
func (p part) after(f Filters, arg func(any) string) string {
	var fixed *uuid.UUID
	switch p.keys[0] {
	case "origin_id":
		fixed = f.CampaignID
	case "flow_id":
		fixed = f.FlowID
	}
	if fixed != nil {
		return fmt.Sprintf("n.%s = %s::uuid and n.%s > %s::uuid", p.keys[0], arg(*fixed), p.keys[1], arg(uuid.Nil))
	}
	names, places := make([]string, len(p.keys)), make([]string, len(p.keys))
	for i, key := range p.keys {
		names[i], places[i] = "n."+key, arg(uuid.Nil)+"::uuid"
	}
	after := fmt.Sprintf("(%s) > (%s)", strings.Join(names, ", "), strings.Join(places, ", "))
	if p.keys[0] == "origin_id" { // the first key alone chooses the partitions
		after += fmt.Sprintf(" and %s >= %s", names[0], places[0])
	}
	return after
}

// origins returns the smallest and the largest origin of notifications.
func (f Filters) origins() (first, most uuid.UUID) {
	if f.CampaignID != nil {
		return *f.CampaignID, *f.CampaignID
	}
	return uuid.Nil, uuid.Max
}
