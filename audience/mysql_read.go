package audience

import (
	"context"
	"database/sql/driver"
	"strconv"
)

// mysqlRows is the result of a prepared statement, which it closes at its end.
type mysqlRows struct {
	*mysqlCursor
	statement driver.Stmt
	columns   []Column
}

func (c *mysqlRows) next(dst [][]byte) (bool, error) {
	more, err := c.mysqlCursor.next(dst)
	if err == nil && !more {
		c.close()
		c.statement.Close()
	}
	return more, err
}

// read runs a prepared statement, so that no value becomes part of its text, and
// values of all reads have the same form. The statement is prepared again if a column
// has to be read by an expression.
func (m *mysqlSession) read(ctx context.Context, text func(mysqlColumns) string, values func(mysqlColumns) []driver.Value) (
	*mysqlRows, error) {
	first := text(nil)
	statement, columns, err := m.prepare(ctx, first)
	if err != nil {
		return nil, err
	}
	if again := text(columns); again != first {
		statement.Close()
		if statement, _, err = m.prepare(ctx, again); err != nil {
			return nil, err
		}
	}
	return m.execute(ctx, statement, columns.columns(), values(columns))
}

func (m *mysqlSession) execute(ctx context.Context, statement driver.Stmt, columns []Column, values []driver.Value) (*mysqlRows, error) {
	if n := statement.NumInput(); n != len(values) {
		statement.Close()
		return nil, badQuery(0, 0, "the query has a parameter (?)")
	}
	named := make([]driver.NamedValue, len(values))
	for i, v := range values {
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	m.reading = true
	rows, err := statement.(driver.StmtQueryContext).QueryContext(ctx, named)
	if err != nil {
		statement.Close()
		return nil, m.fault(err)
	}
	return &mysqlRows{&mysqlCursor{session: m, rows: rows, raw: make([]driver.Value, len(rows.Columns()))}, statement, columns}, nil
}

func (m *mysqlSession) open(ctx context.Context, sql string, columns []string, limit int) (cursor, error) {
	tail := " from (\n" + sql + wrapTail
	if limit > 0 {
		tail += " limit " + strconv.Itoa(limit)
	}
	text := func(known mysqlColumns) string { return "select " + known.selected(columns) + tail }
	c, err := m.read(ctx, text, func(mysqlColumns) []driver.Value { return nil })
	if err != nil {
		return nil, err
	}
	return c, nil
}
