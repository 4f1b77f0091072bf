package audience

import (
	"context"
	"strconv"

	"github.com/google/uuid"

	"lemma/audience/sqltext"
	"lemma/audience/value"
	"lemma/page"
)

// Schema has the tables that the role of a source can read.
type Schema struct {
	Tables    []Table
	Truncated bool // there is more; the first 20,000 columns are shown, with names of 4 MiB
}

// Table is a table or view of a source.
type Table struct {
	Schema  string
	Name    string
	Columns []TableColumn
}

// TableColumn is a column of a Table.
type TableColumn struct {
	Name     string
	Type     value.Type
	Nullable bool
}

// Schema reads the tables and columns that the source's role can read.
func (a *Audiences) Schema(ctx context.Context, ws, id uuid.UUID) (Schema, error) {
	source, err := a.opened(ctx, ws, id)
	if err != nil {
		return Schema{}, err
	}
	var s Schema
	err = a.within(ctx, source, a.readSpan(), func(r *run) (err error) {
		s, err = r.tables(r.ctx)
		return err
	})
	return s, err
}

// tableList collects columns that are ordered by table. A source that is hostile may answer
// with other names than a server allows, so they are made printable, and their bytes are
// bounded.
type tableList struct {
	Schema
	columns, bytes int
}

func (l *tableList) add(schema, table string, c TableColumn) {
	schema, table, c.Name = sqltext.Printable(schema), sqltext.Printable(table), sqltext.Printable(c.Name)
	n := len(l.Tables)
	another := n == 0 || l.Tables[n-1].Schema != schema || l.Tables[n-1].Name != table
	l.bytes += len(c.Name)
	if another {
		l.bytes += len(schema) + len(table)
	}
	if l.bytes > page.MaxBytes {
		l.Truncated = true
	}
	if l.Truncated {
		return
	}
	if another {
		l.Tables = append(l.Tables, Table{Schema: schema, Name: table})
		n++
	}
	l.Tables[n-1].Columns = append(l.Tables[n-1].Columns, c)
	l.columns++
	l.Truncated = l.columns >= maxSchemaColumns
}

func oidOf(text []byte) uint32 {
	n, _ := strconv.ParseUint(string(text), 10, 32)
	return uint32(n)
}
