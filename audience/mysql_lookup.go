package audience

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"

	"lemma"
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

// execute runs a prepared statement, so that no value becomes part of its text.
func (m *mysqlSession) execute(ctx context.Context, text string, values ...driver.Value) (*mysqlRows, error) {
	statement, columns, err := m.prepare(ctx, text)
	if err != nil {
		return nil, err
	}
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

func (c *mysqlCursor) typeName(i int) string {
	return c.rows.(driver.RowsColumnTypeDatabaseTypeName).ColumnTypeDatabaseTypeName(i)
}

func backquoted(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// lookup passes integers as integers and other keys as text. MySQL compares loosely
// ('12abc' = 12, 'a' = 'A'), so it can return further rows.
func (m *mysqlSession) lookup(ctx context.Context, sql, key string, columns, keys []string) (cursor, []Column, error) {
	column := "audience." + backquoted(key)
	kind, err := m.typeOf(ctx, sql, column)
	if err != nil {
		return nil, nil, err
	}
	values, column := mysqlKeys(kind, column, keys)
	quoted := make([]string, len(columns))
	for i, c := range columns {
		quoted[i] = "audience." + backquoted(c)
	}
	in := " in (" + strings.TrimSuffix(strings.Repeat("?, ", len(values)), ", ") + ")"
	if len(values) == 0 {
		in = " in (null)"
	}
	text := "select " + strings.Join(quoted, ", ") + " from (\n" + sql + wrapTail + " where "
	c, err := m.execute(ctx, text+column+in, values...)
	if hasNoCharacter(err) {
		c, err = m.execute(ctx, text+"convert("+column+" using utf8mb4)"+in, values...)
	}
	if err != nil {
		return nil, nil, err
	}
	return c, c.columns, nil
}

// hasNoCharacter reports whether a key cannot be written in the character set of the
// column. All keys are then compared in utf8mb4, without the index.
func hasNoCharacter(err error) bool {
	var reported *mysql.MySQLError
	return errors.As(err, &reported) && slices.Contains([]uint16{1267, 1270, 1271, 3988}, reported.Number)
}

// typeOf reads the type of a column once per session, by a query of no rows.
func (m *mysqlSession) typeOf(ctx context.Context, sql, column string) (string, error) {
	text := "select " + column + " from (\n" + sql + wrapTail + " limit 0"
	if kind, ok := m.kinds[text]; ok {
		return kind, nil
	}
	c, err := m.start(ctx, text)
	if err != nil {
		return "", err
	}
	defer c.close()
	if len(m.kinds) >= maxKnown {
		clear(m.kinds)
	}
	m.kinds[text] = c.typeName(0)
	return m.kinds[text], nil
}

// mysqlKeys returns the values to compare with, and the expression of the column.
// Types without an exact comparison are compared as text, without the index.
func mysqlKeys(kind, column string, keys []string) ([]driver.Value, string) {
	kind = strings.ToUpper(kind)
	var values []driver.Value
	switch name := strings.TrimPrefix(kind, "UNSIGNED "); {
	case name != "BIT" && mysqlType(name) == Integer:
		for _, key := range keys {
			if n, err := strconv.ParseInt(key, 10, 64); err == nil && strconv.FormatInt(n, 10) == key {
				values = append(values, n)
			} else if n, err := strconv.ParseUint(key, 10, 64); err == nil && strconv.FormatUint(n, 10) == key {
				values = append(values, n)
			}
		}
		return values, column
	case name == "FLOAT", name == "DOUBLE", name == "TIME", name == "BIT":
		column = "cast(" + column + " as char)"
	}
	for _, key := range keys {
		values = append(values, key)
	}
	return values, column
}

// The two forms around a matching query, as for Postgres.
const (
	mysqlAloneHead = "with people as (select t.profile_key, t.enrolled_at from json_table('[]', '$[*]' columns (%s)) as t) " +
		"select 1 from dual where exists (\n"
	mysqlAloneTail  = "\n)"
	mysqlPeopleHead = "with people as (select t.profile_key, t.enrolled_at from json_table(?, '$[*]' columns (%s)) as t) " + wrapHead
	mysqlPeople     = "profile_key varchar(255) character set utf8mb4 collate %s path '$[0]', enrolled_at datetime(6) path '$[1]'"
)

var collationName = regexp.MustCompile(`^utf8mb4_[a-z0-9_]+$`)

// peopleColumns gives the keys the collation of the database if that is one of
// Unicode, so that comparisons need no collate and can use an index.
func (m *mysqlSession) peopleColumns(ctx context.Context) (string, error) {
	if m.collation == "" {
		rows, err := m.query(ctx, "select @@collation_database")
		if err != nil {
			return "", err
		}
		m.collation = "utf8mb4_bin"
		if len(rows) == 1 && collationName.MatchString(rows[0][0]) {
			m.collation = rows[0][0]
		}
	}
	return fmt.Sprintf(mysqlPeople, m.collation), nil
}

func (m *mysqlSession) describeMatching(ctx context.Context, sql string) ([]Column, error) {
	people, err := m.peopleColumns(ctx)
	if err != nil {
		return nil, err
	}
	_, parameters, err := m.prepared(ctx, fmt.Sprintf(mysqlAloneHead, people)+sql+mysqlAloneTail)
	if err != nil || parameters > 0 {
		return nil, withoutFirstLine(orParameter(err, "the query must not have parameters (?); the profiles are in the relation people"))
	}
	columns, _, err := m.prepared(ctx, fmt.Sprintf(mysqlPeopleHead, people)+sql+wrapTail)
	return columns, withoutFirstLine(err)
}

// withoutFirstLine corrects the line of an error for the line before the query.
func withoutFirstLine(err error) error {
	var e *lemma.Error
	if errors.As(err, &e) && len(e.Fields) > 0 && e.Fields[0].Line > 1 {
		e.Fields[0].Line--
	}
	return err
}

func (m *mysqlSession) matching(ctx context.Context, sql string, people []Person) (cursor, []Column, error) {
	columns, err := m.peopleColumns(ctx)
	if err != nil {
		return nil, nil, err
	}
	c, err := m.execute(ctx, fmt.Sprintf(mysqlPeopleHead, columns)+sql+wrapTail, peopleJSON(people))
	if err != nil {
		return nil, nil, err
	}
	return c, c.columns, nil
}

// peopleJSON is [["key", "2026-11-21 02:16:44.5"], …], in UTC as the session is.
func peopleJSON(people []Person) string {
	b := []byte{'['}
	for i, p := range people {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(b, '['), []byte(p.Key))
		b = append(b, `,"`...)
		b = p.EnrolledAt.UTC().AppendFormat(b, "2006-01-02 15:04:05.000000")
		b = append(b, `"]`...)
	}
	return string(append(b, ']'))
}
