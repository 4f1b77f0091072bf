package audience

import (
	"context"
	"strconv"

	"github.com/google/uuid"

	"lemma/audience/value"
)

// Schema has the tables that the role of a source can read.
type Schema struct {
	Tables    []Table
	Truncated bool // there is more; the first 20,000 columns are shown
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
		s.Tables, err = r.tables(r.ctx)
		return err
	})
	n := 0
	for _, t := range s.Tables {
		n += len(t.Columns)
	}
	s.Truncated = n >= maxSchemaColumns
	return s, err
}

// tableList collects columns that are ordered by table.
type tableList []Table

func (l *tableList) add(schema, table string, c TableColumn) {
	n := len(*l)
	if n == 0 || (*l)[n-1].Schema != schema || (*l)[n-1].Name != table {
		*l = append(*l, Table{Schema: schema, Name: table})
		n++
	}
	(*l)[n-1].Columns = append((*l)[n-1].Columns, c)
}

func oidOf(text []byte) uint32 {
	n, _ := strconv.ParseUint(string(text), 10, 32)
	return uint32(n)
}
