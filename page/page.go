// Package page reads lists: filter, order, cursor and limit. A caller that follows
// the cursors gets each row that exists from the first page to the last exactly
// once, in the requested order. A cursor is valid only for the list, the filter and
// the order that it was made for; others refuse it (invalid_cursor).
//
// A List names the columns that can be filtered and ordered by. Start collects the
// common conditions, the caller adds its own with And, and End returns the
// conditions, the order and the arguments of a statement that reads one row more
// than the page contains. Page removes that row and makes the next cursor. A page of
// large rows is shorter: see MaxBytes.
package page

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// Query is the filter, the order and the page of a request. Zero fields do not filter.
type Query struct {
	Limit         int        // rows of the page, 1 to 200
	Cursor        string     // the next_cursor of the page before; empty for the first
	Sort          string     // a key of List.Orders, with a leading "-" for descending; empty: List.Default
	Status        string     // rows with this status
	Name          string     // rows whose name contains this, in any case
	CreatedAfter  *time.Time // rows created at this time or later
	CreatedBefore *time.Time // rows created before this time
}

// List describes a list of the API. Columns are SQL expressions of its statement.
type List[T any] struct {
	Name    string // part of each cursor: the cursor of another list is refused
	Status  string // column that Query.Status is compared with; empty: the caller compares it
	Label   string // column that Query.Name is searched in; empty: rows have no name
	Created string // column that Query.CreatedAfter and CreatedBefore are compared with
	Orders  map[string]Order[T]
	Default string // the order of a query without Sort; empty: DefaultSort

	Part     int           // rows that one statement of ReadParts reads; 0: 50,000
	PartTime time.Duration // how long ReadParts looks for rows of a page; 0: 2 s
}

// DefaultSort is newest first.
const DefaultSort = "-created_at"

// Order is a sequence of columns of which the last is unique.
type Order[T any] []Key[T]

// Key is one column of an order.
type Key[T any] struct {
	Column  string
	Type    Type
	Of      func(T) any // the column's value in a row: uuid.UUID, string, time.Time or int
	Reverse bool        // ordered opposite to the requested direction
}

// Statement collects the conditions of one page.
type Statement[T any] struct {
	list       List[T]
	query      Query
	order      Order[T]
	descending bool
	conditions []string
	args       []any
	base       base
}

// Clauses are the parts of a finished statement.
type Clauses struct {
	Where string // the conditions, joined by "and"
	Order string // "order by ... limit $n"
	Args  []any
}

// Start begins the statement of a page with the filters that all lists share.
// args are $1 and following, as the SQL of the caller refers to them: $1 is the workspace.
func (l List[T]) Start(q Query, args ...any) (*Statement[T], error) {
	s := &Statement[T]{list: l, query: q, args: args}
	sort := q.Sort
	if sort == "" {
		sort = l.Default
	}
	if sort == "" {
		sort = DefaultSort
	}
	name, descending := strings.CutPrefix(sort, "-")
	order, known := l.Orders[name]
	if !known {
		return nil, lemma.Fault("?sort", "invalid_sort", "this list cannot be ordered by %q", sort)
	}
	s.query.Sort, s.order, s.descending = sort, order, descending
	if q.Status != "" && l.Status != "" {
		s.And(l.Status + " = " + s.Arg(q.Status))
	}
	if q.Name != "" && l.Label != "" {
		// Not ~: the planner estimates that few rows match a long text, and sorts all instead of reading in order.
		s.And("substring(" + l.Label + " from " + s.Arg(inAnyCase(q.Name)) + ") is not null")
	}
	if q.CreatedAfter != nil {
		s.And(l.Created + " >= " + s.Arg(*q.CreatedAfter))
	}
	if q.CreatedBefore != nil {
		s.And(l.Created + " < " + s.Arg(*q.CreatedBefore))
	}
	return s, nil
}

// Arg adds an argument and returns its placeholder.
func (s *Statement[T]) Arg(value any) string {
	s.args = append(s.args, value)
	return fmt.Sprintf("$%d", len(s.args))
}

// And adds a condition.
func (s *Statement[T]) And(condition string) { s.conditions = append(s.conditions, condition) }

// End adds the condition of the cursor, the order and the limit. No condition can be
// added after it, since the cursor is bound to those before.
func (s *Statement[T]) End() (Clauses, error) {
	var after []any
	if s.query.Cursor != "" {
		var err error
		if after, err = s.decode(s.query.Cursor); err != nil {
			return Clauses{}, err
		}
	}
	return s.clauses(after, nil, s.query.Limit+1), nil
}

// clauses are those of the rows behind a position, up to another one if last is not nil.
func (s *Statement[T]) clauses(after, last []any, limit int) Clauses {
	where := append([]string{}, s.conditions...)
	filters := len(s.args)
	if after != nil {
		where = append(where, s.behind(after))
	}
	if last != nil {
		where = append(where, s.upTo(last))
	}
	if len(where) == 0 {
		where = []string{"true"}
	}
	clauses := Clauses{Where: strings.Join(where, " and "), Order: s.orderBy() + " limit " + s.Arg(limit), Args: s.args}
	s.args = s.args[:filters:filters] // what the cursor of the next page is bound to
	return clauses
}

// upTo is the condition of a row and those before it. All columns have one direction.
func (s *Statement[T]) upTo(last []any) string {
	columns, places := make([]string, len(s.order)), make([]string, len(s.order))
	for i, k := range s.order {
		columns[i], places[i] = k.Column, s.Arg(last[i])+"::"+string(k.Type)
	}
	compare := " <= "
	if s.descending != s.order[0].Reverse {
		compare = " >= "
	}
	return "(" + strings.Join(columns, ", ") + ")" + compare + "(" + strings.Join(places, ", ") + ")"
}

func (s *Statement[T]) orderBy() string {
	columns := make([]string, len(s.order))
	for i, k := range s.order {
		columns[i] = k.Column
		if s.descending != k.Reverse {
			columns[i] += " desc"
		}
	}
	return "order by " + strings.Join(columns, ", ")
}

// behind is the condition of the rows that follow a position in the order. Columns
// of one direction are compared as a row, which an index can seek.
func (s *Statement[T]) behind(after []any) string {
	columns, places, mixed := make([]string, len(s.order)), make([]string, len(s.order)), false
	for i, k := range s.order {
		columns[i], places[i] = k.Column, s.Arg(after[i])+"::"+string(k.Type)
		mixed = mixed || k.Reverse != s.order[0].Reverse
	}
	compare := func(i int) string {
		if s.descending != s.order[i].Reverse {
			return " < "
		}
		return " > "
	}
	switch {
	case len(columns) == 1:
		return columns[0] + compare(0) + places[0]
	case !mixed:
		return "(" + strings.Join(columns, ", ") + ")" + compare(0) + "(" + strings.Join(places, ", ") + ")"
	}
	last := len(columns) - 1
	condition := columns[last] + compare(last) + places[last]
	for i := last - 1; i >= 0; i-- {
		condition = fmt.Sprintf("(%s%s%s or (%s = %s and %s))", columns[i], compare(i), places[i], columns[i], places[i], condition)
	}
	return condition
}

// MaxBytes bounds the rows of a page in bytes of JSON, unless its first row has more.
const MaxBytes = 4 << 20

// Page removes the rows that were read beyond the page, and returns the cursor of
// the next page: empty if there is none.
func (s *Statement[T]) Page(rows []T) (page []T, next string) {
	fits, total := 0, 0
	for fits < min(len(rows), s.query.Limit) {
		if total += Size(rows[fits]); total > MaxBytes && fits > 0 {
			break
		}
		fits++
	}
	if fits == len(rows) {
		return rows, ""
	}
	return rows[:fits], s.encode(rows[fits-1])
}

// Size is the approximate size of a row in a response.
func Size(row any) int {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if e.Encode(row) != nil { // such as an empty json.RawMessage
		return len(fmt.Append(nil, row))
	}
	return text.Len()
}

// collect reads rows until they exceed a page, so that the others need no memory.
func collect[T any](rows pgx.Rows, scan pgx.RowToFunc[T]) (all []T, err error) {
	defer rows.Close()
	for total := 0; (total <= MaxBytes || len(all) < 2) && rows.Next(); {
		row, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all, total = append(all, row), total+Size(row)
	}
	rows.Close()
	return all, rows.Err()
}

// slack bounds how much earlier or later than its row an id is made: by a request that is
// repeated under its Idempotency-Key, for 24 hours, and by clocks that differ.
const slack = 48 * time.Hour

// Between bounds an id that is a UUIDv7 if the query filters by the time of
// creation, so that the rows of other times are not read.
func (s *Statement[T]) Between(id string) {
	if after := s.query.CreatedAfter; after != nil {
		s.And(id + " >= " + s.Arg(firstOf(after.Add(-slack))))
	}
	if before := s.query.CreatedBefore; before != nil {
		s.And(id + " < " + s.Arg(firstOf(before.Add(slack))))
	}
}

// firstOf is the smallest UUIDv7 of a millisecond (RFC 9562, 5.7).
func firstOf(t time.Time) uuid.UUID {
	var id uuid.UUID
	var millis [8]byte
	binary.BigEndian.PutUint64(millis[:], uint64(max(t.UnixMilli(), 0)))
	copy(id[:6], millis[2:])
	id[6] = 0x70
	return id
}

// Rows is a pool or a transaction.
type Rows interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Read reads a page. sql ends with its conditions, of which the first compares
// $1, the workspace; args are $2 and following.
func (l List[T]) Read(
	ctx context.Context, db Rows, q Query, workspace any, sql string, scan pgx.RowToFunc[T], args ...any,
) ([]T, string, error) {
	return l.ReadBy(q, func(end Clauses) ([]T, error) {
		rows, _ := db.Query(ctx, sql+" and "+end.Where+" "+end.Order, end.Args...)
		return collect(rows, scan)
	}, append([]any{workspace}, args...)...)
}

// ReadBy is Read for rows that need more than one statement.
func (l List[T]) ReadBy(q Query, read func(Clauses) ([]T, error), args ...any) ([]T, string, error) {
	s, err := l.Start(q, args...)
	if err != nil {
		return nil, "", err
	}
	return s.Read(read)
}

// Read finishes a statement, reads its rows, and returns the page.
func (s *Statement[T]) Read(read func(Clauses) ([]T, error)) (rows []T, next string, err error) {
	end, err := s.End()
	if err != nil {
		return nil, "", err
	}
	if rows, err = read(end); err != nil {
		return nil, "", fmt.Errorf("list %s: %w", s.list.Name, err)
	}
	rows, next = s.Page(rows)
	return rows, next, nil
}
