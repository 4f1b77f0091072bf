package audience

import (
	"context"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"lemma/audience/value"
	"lemma/pgerr"
)

// selected returns the column list of a select from the audience.
func selected(columns []string) string {
	quoted := make([]string, len(columns))
	for i, c := range columns {
		quoted[i] = "audience." + quotedColumn(c)
	}
	return strings.Join(quoted, ", ")
}

func quotedColumn(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// lookup compares in the type of the key column, so that the planner can use its
// index. If the keys cannot be converted to that type, or it has no equality, the
// bytes of their texts are compared.
func (p *pgSession) lookup(ctx context.Context, sql, key string, columns, keys []string) (cursor, []Column, error) {
	text := "select " + selected(columns) + " from (\n" + sql + wrapTail + " where "
	column := "audience." + quotedColumn(key)
	c, live, err := p.execute(ctx, text+column+" = any($1)", func(types []uint32, live []Column) []string {
		return []string{arrayLiteral(fitting(types, live, key, keys))}
	})
	if err == nil || !incomparable(err) {
		return c, live, err
	}
	if err := p.end(ctx); err != nil {
		return nil, nil, err
	}
	if err := p.again(ctx); err != nil {
		return nil, nil, err
	}
	return p.execute(ctx, text+"pg_catalog.convert_to(pg_catalog.format('%s', "+column+"), 'UTF8') = any($1::pg_catalog.bytea[])",
		func([]uint32, []Column) []string { return []string{arrayLiteral(asBytes(keys))} })
}

// The arrays of types whose values have one known text form.
const (
	int2Array, int4Array, int8Array, oidArray = 1005, 1007, 1016, 1028
	numericArray, uuidArray                   = 1231, 2951
)

// fitting returns the keys that the type can represent. The source would refuse all
// keys because of another one. Types that are compared as another type, such as
// regclass, have texts that it does not have.
func fitting(types []uint32, live []Column, key string, keys []string) []string {
	if c, _ := columnNamed(live, key); len(types) != 1 || types[0] == oidArray && c.Type != value.Integer {
		return keys
	}
	var fits func(key string) bool
	switch types[0] {
	case int2Array:
		fits = func(key string) bool { return isInteger(key, 16) }
	case int4Array:
		fits = func(key string) bool { return isInteger(key, 32) }
	case int8Array:
		fits = func(key string) bool { return isInteger(key, 64) }
	case oidArray:
		fits = func(key string) bool {
			n, err := strconv.ParseUint(key, 10, 32)
			return err == nil && strconv.FormatUint(n, 10) == key
		}
	case numericArray:
		fits = isDecimal
	case uuidArray:
		fits = isUUID
	default:
		return keys
	}
	return slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return !fits(key) })
}

func isInteger(key string, bits int) bool {
	n, err := strconv.ParseInt(key, 10, bits)
	return err == nil && strconv.FormatInt(n, 10) == key
}

func isDecimal(key string) bool {
	return key == "NaN" || key == "Infinity" || key == "-Infinity" || value.IsNumber([]byte(key)) && !strings.ContainsAny(key, "eE")
}

func isUUID(key string) bool {
	if len(key) != 36 {
		return false
	}
	for i := range len(key) {
		c, dash := key[i], i == 8 || i == 13 || i == 18 || i == 23
		if dash != (c == '-') || !dash && (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func asBytes(keys []string) []string {
	list := make([]string, len(keys))
	for i, key := range keys {
		list[i] = `\x` + hex.EncodeToString([]byte(key))
	}
	return list
}

// incomparable reports errors that a comparison of bytes may avoid: errors of data,
// and of types without an equality on arrays.
func incomparable(err error) bool {
	return pgerr.Is(err, "22", "42883", "42725", "42P18", "42704", "0A000")
}

// execute runs a statement whose arguments may depend on the types of its parameters,
// and returns when the first row or the end has been read.
func (p *pgSession) execute(ctx context.Context, text string, arguments func([]uint32, []Column) []string) (cursor, []Column, error) {
	types, columns, err := p.prepare(ctx, text)
	if err != nil {
		return nil, nil, err
	}
	p.meter.Progress()
	var values [][]byte
	for _, v := range arguments(types, columns) {
		values = append(values, []byte(v))
	}
	rows := &pgRows{session: p, reader: p.conn.ExecPrepared(ctx, "", values, nil, nil)}
	if rows.waiting, err = rows.advance(); err != nil {
		return nil, nil, err
	}
	return rows, columns, nil
}

// prepare describes the result. It does so again after it has loaded types, since that
// replaces the unnamed statement.
func (p *pgSession) prepare(ctx context.Context, text string) (parameters []uint32, columns []Column, err error) {
	for {
		p.meter.Progress()
		s, err := p.conn.Prepare(ctx, "", text, nil)
		if err != nil {
			return nil, nil, p.fault(err, "", 0)
		}
		unknown := p.unknown(s.Fields)
		columns, err = p.columns(ctx, s.Fields)
		if err != nil || len(unknown) == 0 {
			return s.ParamOIDs, columns, err
		}
	}
}

// pgRows is the result of one statement, streamed.
type pgRows struct {
	session *pgSession
	reader  *pgconn.ResultReader
	waiting bool // a row has been read and not returned
	ended   bool
	rows    int64
	padded  padded
}

func (c *pgRows) next(dst [][]byte) (bool, error) {
	if !c.waiting {
		if more, err := c.advance(); err != nil || !more {
			return false, err
		}
	}
	c.waiting = false
	values := c.reader.Values()
	if len(values) != len(dst) {
		return false, changed("the source sent a row of %d columns instead of %d", len(values), len(dst))
	}
	copy(dst, values)
	c.padded.trim(dst)
	return true, nil
}

// advance ends the result only when the source reports its end.
func (c *pgRows) advance() (bool, error) {
	if c.ended {
		return false, nil
	}
	c.session.meter.Progress()
	if c.reader.NextRow() {
		if c.rows++; c.rows == 1 {
			c.padded = paddedOf(c.reader.FieldDescriptions())
		}
		return true, nil
	}
	c.ended = true
	tag, err := c.reader.Close()
	if err != nil {
		return false, c.session.fault(err, "", 0)
	}
	if !announces(tag, c.rows) {
		return false, cutResult()
	}
	return false, nil
}

func (c *pgRows) pause() bool { return c.rows%1000 == 0 }

// The two forms around a matching query. The first describes it: it has no
// parameter, so that the query cannot have one, and ends in another way than the
// second, so that a text that closes the parentheses of one is invalid in the other.
const (
	pgAloneHead = "with people (profile_key, enrolled_at) as (" +
		"select null::pg_catalog.text, null::pg_catalog.timestamptz where false) select exists ((\n"
	pgPeopleHead = "with people (profile_key, enrolled_at) as (" +
		"select * from unnest($1::pg_catalog.text[], $2::pg_catalog.timestamptz[])) " + wrapHead
	pgAloneTail = "\n))"
)

func (p *pgSession) describeMatching(ctx context.Context, sql string) ([]Column, error) {
	p.meter.Progress()
	alone, err := p.conn.Prepare(ctx, "", pgAloneHead+sql+pgAloneTail, nil)
	if err != nil {
		return nil, p.fault(err, sql, len(pgAloneHead))
	}
	if len(alone.ParamOIDs) > 0 {
		return nil, badQuery(0, 0, "the query must not have parameters ($1); the profiles are in the relation people")
	}
	p.meter.Progress()
	wrapped, err := p.conn.Prepare(ctx, "", pgPeopleHead+sql+wrapTail, nil)
	if err != nil {
		return nil, p.fault(err, sql, len(pgPeopleHead))
	}
	return p.columns(ctx, wrapped.Fields)
}

func (p *pgSession) matching(ctx context.Context, sql string, people []Person) (cursor, []Column, error) {
	keys, times := make([]string, len(people)), make([]string, len(people))
	for i, person := range people {
		keys[i], times[i] = person.Key, person.EnrolledAt.UTC().Format(time.RFC3339Nano)
	}
	return p.execute(ctx, pgPeopleHead+sql+wrapTail, func([]uint32, []Column) []string {
		return []string{arrayLiteral(keys), arrayLiteral(times)}
	})
}
