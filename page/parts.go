package page

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

// PartTime is the default of List.PartTime, partRows that of List.Part.
const (
	firstRows = 1_000 // of the first part, since most pages are full soon
	partRows  = 50_000
	PartTime  = 2 * time.Second
)

// base is what an index serves: the first conditions and arguments of a statement.
type base struct{ conditions, args int }

// Unindexed marks the conditions that follow as served by no index.
func (s *Statement[T]) Unindexed() { s.base = base{len(s.conditions), len(s.args)} }

// ReadParts is Read with conditions that no index serves. Read would compare all rows of the
// list until its page is full. ReadParts reads the list in parts, each by one statement, and
// ends when the page is full or List.PartTime has passed: such a page has fewer rows, or
// none, and a cursor. from is the list without a filter, such as
// "things where workspace_id = $1", and has an index in the order of the list.
func (s *Statement[T]) ReadParts(
	ctx context.Context, db Rows, from string, read func(Clauses) ([]T, error),
) (rows []T, next string, err error) {
	if len(s.conditions) == s.base.conditions {
		return s.Read(read)
	}
	var after []any
	if s.query.Cursor != "" {
		if after, err = s.decode(s.query.Cursor); err != nil {
			return nil, "", err
		}
	}
	begun := time.Now()
	for size := min(firstRows, s.list.partRows()); ; {
		partBegun := time.Now()
		last, err := s.lastOfPart(ctx, db, from, after, size)
		if err != nil {
			return nil, "", fmt.Errorf("list %s: %w", s.list.Name, err)
		}
		found, err := read(s.clauses(after, last, s.query.Limit+1-len(rows)))
		if err != nil {
			return nil, "", fmt.Errorf("list %s: %w", s.list.Name, err)
		}
		rows = append(rows, found...)
		if part, next := s.Page(rows); next != "" || last == nil {
			return part, next, nil
		}
		if time.Since(begun) >= s.list.partTime() {
			return rows, s.encodePosition(last), nil
		}
		after, size = last, s.list.nextSize(size, time.Since(partBegun))
	}
}

// lastOfPart is the position of the last of size rows behind a position; nil if fewer are left.
func (s *Statement[T]) lastOfPart(ctx context.Context, db Rows, from string, after []any, size int) (last []any, err error) {
	columns := make([]string, len(s.order))
	for i, k := range s.order {
		columns[i] = k.Column
	}
	part := &Statement[T]{list: s.list, order: s.order, descending: s.descending, args: append([]any{}, s.args[:s.base.args]...)}
	where := append([]string{}, s.conditions[:s.base.conditions]...)
	if after != nil {
		where = append(where, part.behind(after))
	}
	sql := "select " + strings.Join(columns, ", ") + " from " + from
	if len(where) > 0 {
		sql += " and " + strings.Join(where, " and ")
	}
	rows, err := db.Query(ctx, sql+" "+part.orderBy()+" limit 1 offset "+part.Arg(size-1), part.args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	if rows.Next() {
		if last, err = rows.Values(); err != nil {
			return nil, err
		}
		for i, value := range last {
			if id, ok := value.([16]byte); ok {
				last[i] = uuid.UUID(id)
			}
		}
	}
	return last, rows.Err()
}

// nextSize is the number of rows of the next part, by how long the last one took: so a part
// takes a fifth of the time of a request at most, unless it suddenly becomes slower.
func (l List[T]) nextSize(size int, took time.Duration) int {
	switch {
	case took > PartTime/8:
		return max(size/4, min(firstRows, l.partRows()))
	case took < PartTime/40:
		return min(size*8, l.partRows())
	}
	return size
}

func (l List[T]) partRows() int {
	if l.Part > 0 {
		return l.Part
	}
	return partRows
}

func (l List[T]) partTime() time.Duration {
	if l.PartTime > 0 {
		return l.PartTime
	}
	return PartTime
}
