package audience

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// A round trip fetches about fetchBytes, which are read before the rows are processed:
// so the source's limit for a statement does not include the processing. The first
// trip is short, so that the first rows are available soon.
const (
	fetchBytes = 256 << 10
	fetchFirst = 500
	fetchMost  = 10_000
)

func (p *pgSession) open(ctx context.Context, sql string, columns []string, limit int) (cursor, error) {
	if p.declared { // and read to its end
		if _, err := p.query(ctx, "close audience"); err != nil {
			return nil, err
		}
	}
	var text strings.Builder
	text.WriteString("declare audience no scroll cursor for select ")
	for i, c := range columns {
		if i > 0 {
			text.WriteString(", ")
		}
		text.WriteString(`audience."` + strings.ReplaceAll(c, `"`, `""`) + `"`)
	}
	text.WriteString(" from (\n" + sql + wrapTail)
	if limit > 0 {
		fmt.Fprintf(&text, " limit %d", limit)
	}
	if _, err := p.query(ctx, text.String()); err != nil {
		return nil, err
	}
	p.declared = true
	return &pgCursor{session: p, ctx: ctx, size: fetchFirst}, nil
}

type pgCursor struct {
	session *pgSession
	ctx     context.Context //nolint:containedctx // the context of the run
	chunk   *pgconn.ResultReader
	size    int // rows requested in this chunk
	rows    int // of the chunk so far
	bytes   int
	last    bool
	padded  padded
}

// padded are the positions of columns of the type char(n). The padding of their values
// has no meaning, and text that they are converted to does not have it.
type padded []int

const paddedText = 1042 // bpchar

func paddedOf(fields []pgconn.FieldDescription) (list padded) {
	for i, f := range fields {
		if f.DataTypeOID == paddedText {
			list = append(list, i)
		}
	}
	return list
}

func (list padded) trim(values [][]byte) {
	for _, i := range list {
		for n := len(values[i]); n > 0 && values[i][n-1] == ' '; n-- {
			values[i] = values[i][:n-1]
		}
	}
}

func (c *pgCursor) next(dst [][]byte) (bool, error) {
	for {
		c.session.meter.Progress()
		if c.chunk == nil {
			if c.last {
				return false, nil
			}
			c.fetch()
		}
		if c.chunk.NextRow() {
			return true, c.take(dst)
		}
		if err := c.endChunk(); err != nil {
			return false, err
		}
	}
}

// pause is true if the source has sent the requested rows.
func (c *pgCursor) pause() bool { return c.rows == c.size }

func (c *pgCursor) fetch() {
	if c.bytes > 0 {
		c.size = min(max(c.rows*fetchBytes/c.bytes, 1), fetchMost)
	}
	c.rows, c.bytes = 0, 0
	statement := "fetch forward " + strconv.Itoa(c.size) + " from audience"
	c.chunk = c.session.conn.ExecParams(c.ctx, statement, nil, nil, nil, nil)
}

func (c *pgCursor) take(dst [][]byte) error {
	values := c.chunk.Values()
	if len(values) != len(dst) {
		return changed("the source sent a row of %d columns instead of %d", len(values), len(dst))
	}
	if c.rows++; c.rows > c.size {
		return malformed(errors.New("more rows than were asked for"))
	}
	c.bytes += c.session.meter.LeftOut() // it takes as long as what is kept
	for _, v := range values {
		c.bytes += len(v)
	}
	if c.rows == 1 {
		c.padded = paddedOf(c.chunk.FieldDescriptions())
	}
	copy(dst, values)
	c.padded.trim(dst)
	return nil
}

// endChunk ends a chunk only when the source reports its end.
func (c *pgCursor) endChunk() error {
	tag, err := c.chunk.Close()
	if err != nil {
		return c.session.fault(err, "", 0)
	}
	if !announces(tag, int64(c.rows)) {
		return cutResult()
	}
	c.chunk, c.last = nil, c.rows < c.size
	return nil
}

// announces reports whether the tag of a statement counts so many rows. A result without
// a tag has not been sent to its end.
func announces(tag pgconn.CommandTag, rows int64) bool {
	return tag.String() != "" && tag.RowsAffected() == rows
}

func cutResult() error {
	return unavailable(nil, "the source did not send all the rows it announced")
}
