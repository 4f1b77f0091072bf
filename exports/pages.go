package exports

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

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
	rows *rows
	err  error
}

// reader reads the pages of an export, two at a time where their bounds are known before.
type reader struct {
	*Exports
	job   job
	pages chan chan read // in the order of the file
	all   sync.WaitGroup
}

// read reads the parts of a type. It closes pages at the end, and when ctx ends.
func (r *reader) read(ctx context.Context, kind rowType) {
	defer close(r.pages)
	for _, p := range kind.parts {
		readPart := r.byKeys
		if len(p.keys) == 0 {
			readPart = r.byBatches
		}
		if err := readPart(ctx, kind, p); err != nil {
			failed := make(chan read, 1)
			failed <- read{err: err}
			r.send(ctx, failed)
			return
		}
	}
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
	sql, args := p.statement(kind, r.job.workspace, r.job.Export, r.cfg.PageRows)
	after := args[1 : 1+len(p.keys)]
	for {
		page, last, err := r.page(ctx, kind, p, sql, args)
		if err != nil || last == nil {
			return err
		}
		next := make(chan read, 1)
		next <- read{rows: page}
		if !r.send(ctx, next) {
			return nil
		}
		copy(after, last)
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
			n := enough(all, r.cfg.PageRows)
			args := slices.Clone(args)
			args[1], args[2] = columnsOf(all[:n])
			all = all[n:]
			next := make(chan read, 1)
			if !r.send(ctx, next) {
				return nil
			}
			r.all.Go(func() {
				page, _, err := r.page(ctx, kind, p, sql, args)
				next <- read{page, err}
			})
		}
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
	if err != nil {
		return nil, fmt.Errorf("list batches: %w", err)
	}
	return all, nil
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

// page reads one page and returns the keys of its last row, nil without rows. Nothing that
// its statement looks up comes twice, so that a cache of it only costs.
func (r *reader) page(ctx context.Context, kind rowType, p part, sql string, args []any) (to *rows, last []any, err error) {
	to = newRows()
	err = pgx.BeginFunc(ctx, r.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `set local enable_memoize = off`); err != nil {
			return err
		}
		found, err := tx.Query(ctx, sql, append([]any{pgx.QueryResultFormats{pgx.BinaryFormatCode}}, args...)...)
		if err != nil {
			return err
		}
		defer found.Close()
		keys := make([]uuid.UUID, len(p.keys))
		for found.Next() {
			values := found.RawValues()
			for i := range keys {
				copy(keys[i][:], values[1+len(kind.columns)+i])
			}
			if keep := values[0]; len(keep) > 0 && keep[0] != 0 {
				to.add(values[1 : 1+len(kind.columns)])
			}
		}
		if found.CommandTag().RowsAffected() > 0 {
			last = asArgs(keys)
		}
		return found.Err()
	})
	return to, last, err
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
