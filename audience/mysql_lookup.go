package audience

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"lemma"
	"lemma/audience/value"
)

// lookup passes numbers as numbers and other keys as text. MySQL compares loosely
// ('12abc' = 12, 'a' = 'A'), so it can return further rows.
func (m *mysqlSession) lookup(ctx context.Context, sql, key string, columns, keys []string) (cursor, []Column, error) {
	in := " in (" + strings.TrimSuffix(strings.Repeat("?, ", len(keys)), ", ") + ")"
	text := func(compared string) func(mysqlColumns) string {
		return func(known mysqlColumns) string {
			return "select " + known.selected(columns) + " from (\n" + sql + wrapTail + " where " +
				fmt.Sprintf(compared, known.named(key).compared()) + in
		}
	}
	values := func(known mysqlColumns) []driver.Value { return known.named(key).values(keys) }
	c, err := m.read(ctx, text("%s"), values)
	if hasNoCharacter(err) {
		c, err = m.read(ctx, text("convert(%s using utf8mb4)"), values)
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

// The two forms around a matching query, as for Postgres.
const (
	mysqlAloneHead = "with people as (select t.profile_key, t.enrolled_at from json_table('[]', '$[*]' columns (%s)) as t) " +
		"select 1 from dual where exists (\n"
	mysqlAloneTail  = "\n)"
	mysqlPeopleHead = "with people as (select t.profile_key, t.enrolled_at from json_table(?, '$[*]' columns (%s)) as t) "
	mysqlPeople     = "profile_key varchar(255) character set utf8mb4 collate %s path '$[0]', enrolled_at datetime(6) path '$[1]'"
)

// peopleColumns gives the keys the collation of the database, so that comparisons need
// no collate and can use an index.
func (m *mysqlSession) peopleColumns() string { return fmt.Sprintf(mysqlPeople, m.collation) }

func (m *mysqlSession) describeMatching(ctx context.Context, sql string) ([]Column, error) {
	people := m.peopleColumns()
	_, parameters, err := m.prepared(ctx, fmt.Sprintf(mysqlAloneHead, people)+sql+mysqlAloneTail)
	if err != nil || parameters > 0 {
		return nil, withoutFirstLine(orParameter(err, "the query must not have parameters (?); the profiles are in the relation people"))
	}
	columns, _, err := m.prepared(ctx, fmt.Sprintf(mysqlPeopleHead, people)+wrapHead+sql+wrapTail)
	return columns.columns(), withoutFirstLine(err)
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
	text := func(known mysqlColumns) string {
		return fmt.Sprintf(mysqlPeopleHead, m.peopleColumns()) + "select " + known.all() + " from (\n" + sql + wrapTail
	}
	c, err := m.read(ctx, text, func(mysqlColumns) []driver.Value { return []driver.Value{peopleJSON(people)} })
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
		b = value.AppendString(append(b, '['), []byte(p.Key))
		b = append(b, `,"`...)
		b = p.EnrolledAt.UTC().AppendFormat(b, "2006-01-02 15:04:05.000000")
		b = append(b, `"]`...)
	}
	return string(append(b, ']'))
}
