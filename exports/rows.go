package exports

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/exports/format"
)

// progress is what an attempt has written so far.
type progress struct{ rows, bytes atomic.Int64 }

// counted counts the bytes of a file.
type counted struct {
	to    io.Writer
	bytes *atomic.Int64
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.bytes.Add(int64(n))
	return n, err
}

// write writes the rows of an export. Each page is a statement of its own, so that no
// snapshot is held for longer than a page takes.
func (e *Exports) write(ctx context.Context, j job, to io.Writer) error {
	kind := types[j.Type]
	file, err := format.New(j.Format, counted{to, &j.progress.bytes}, kind.columns, format.Options{KeepFormulas: j.CSVFormulas == "keep"})
	if err != nil {
		return err
	}
	sql, args := kind.statement(j.workspace, j.Export, e.cfg.PageRows)
	after := args[1 : 1+len(kind.keys)]
	for {
		last, err := e.writePage(ctx, kind, sql, args, file, j.progress)
		if err != nil {
			return fmt.Errorf("export %s: %w", j.Type, err)
		}
		if last == nil {
			break
		}
		copy(after, last)
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("end the file of an export: %w", err)
	}
	return nil
}

// writePage writes one page of rows and returns the keys of its last row, nil without rows.
func (e *Exports) writePage(ctx context.Context, kind rowType, sql string, args []any, file format.Encoder, p *progress) ([]any, error) {
	rows, err := e.Pool.Query(ctx, sql, append([]any{pgx.QueryResultFormats{pgx.BinaryFormatCode}}, args...)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	last := make([]uuid.UUID, len(kind.keys))
	found, kept := false, int64(0)
	for rows.Next() {
		values := rows.RawValues()
		for i := range last {
			copy(last[i][:], values[1+len(kind.columns)+i])
		}
		found = true
		if keep := values[0]; len(keep) == 0 || keep[0] == 0 {
			continue
		}
		if err := file.Row(values[1 : 1+len(kind.columns)]); err != nil {
			return nil, err
		}
		kept++
	}
	p.rows.Add(kept)
	if err := rows.Err(); err != nil || !found {
		return nil, err
	}
	keys := make([]any, len(last))
	for i, key := range last {
		keys[i] = key
	}
	return keys, nil
}

// statement returns the statement of a page and its arguments: the workspace, the keys to
// begin after, the largest first key, the limit, and those of the filters.
func (k rowType) statement(ws uuid.UUID, x Export, limit int) (string, []any) {
	args := []any{ws}
	arg := func(value any) string {
		args = append(args, value)
		return fmt.Sprintf("$%d", len(args))
	}
	first, most := uuid.Nil, uuid.Max
	switch k.keys[0] { // the rows of one are together
	case "origin_id":
		if x.Filters.CampaignID != nil {
			first, most = *x.Filters.CampaignID, *x.Filters.CampaignID
		}
	case "flow_id":
		if x.Filters.FlowID != nil {
			first, most = *x.Filters.FlowID, *x.Filters.FlowID
		}
	}
	names, places := make([]string, len(k.keys)), make([]string, len(k.keys))
	for i, key := range k.keys {
		from := uuid.Nil
		if i == 0 {
			from = first
		}
		names[i], places[i] = "n."+key, arg(from)+"::uuid"
	}
	// The bounds of the first key alone choose the partitions.
	after := fmt.Sprintf("(%s) > (%s) and %s >= %s and %[3]s <= %[5]s", strings.Join(names, ", "), strings.Join(places, ", "),
		names[0], places[0], arg(most)+"::uuid")
	limited := arg(limit)
	keep := []string{k.created + " <= " + arg(x.CreatedAt)}
	set := x.Filters.set()
	for _, name := range slices.Sorted(maps.Keys(set)) {
		keep = append(keep, strings.Replace(k.filters[name], "?", arg(set[name]), 1))
	}
	return strings.NewReplacer("{keep}", "("+strings.Join(keep, " and ")+")", "{after}", after, "{limit}", limited).Replace(k.sql), args
}

// progressEvery is how often the progress of a running export is stored.
const progressEvery = 2 * time.Second
