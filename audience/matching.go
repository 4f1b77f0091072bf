package audience

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"lemma"
)

// Person is one row of the relation people, which a matching query can use.
type Person struct {
	Key        string
	EnrolledAt time.Time
}

// Matching runs a customer's select for some people, with distinct keys, and
// answers which of their keys it returned; others that it returns are ignored.
// The query answers one column of profile keys and sees a relation
//
//	people (profile_key text, enrolled_at timestamptz)
//
// which in MySQL is (profile_key varchar(255), enrolled_at datetime(6)), in UTC.
// In MariaDB what stands inside a WITH of the query's own does not see people.
func (a *Audiences) Matching(ctx context.Context, ws, source uuid.UUID, sql string, people []Person) (map[string]bool, error) {
	if len(people) > MaxLookup {
		return nil, fmt.Errorf("match %d people: at most %d go at once", len(people), MaxLookup)
	}
	people = slices.DeleteFunc(slices.Clone(people), func(p Person) bool { return !IsKey(p.Key) })
	if len(people) == 0 {
		return map[string]bool{}, nil
	}
	opened, err := a.forMatching(ctx, ws, source, sql)
	if err != nil {
		return nil, noLongerValid(err)
	}
	matched := make(map[string]bool, len(people))
	err = a.shortly(ctx, opened, func(r *run, c *connection) error {
		if err := c.describesMatching(r, sql); err != nil {
			return noLongerValid(err)
		}
		rows, columns, err := r.matching(r.ctx, sql, people)
		if err == nil {
			err = checkMatching(columns)
		}
		if err != nil {
			return noLongerValid(err)
		}
		return noLongerValid(a.gather(rows, keysOf(people), matched))
	})
	if err != nil {
		return nil, err
	}
	return matched, nil
}

func (a *Audiences) forMatching(ctx context.Context, ws, source uuid.UUID, sql string) (openedSource, error) {
	opened, err := a.opened(ctx, ws, source)
	if err != nil {
		return opened, err
	}
	return opened, aboutMatching(checkText(opened.target.kind, sql))
}

// ValidateMatching asks the source whether the query can be one, without
// running it. Its faults are at /sql, with line and column where the source
// gives them.
func (a *Audiences) ValidateMatching(ctx context.Context, ws, source uuid.UUID, sql string) error {
	opened, err := a.forMatching(ctx, ws, source, sql)
	if err != nil {
		return err
	}
	return a.within(ctx, opened, a.interactive(), func(r *run) error {
		columns, err := r.describeMatching(r.ctx, sql)
		if err != nil {
			return aboutMatching(expected(opened.target.kind, sql, err))
		}
		return checkMatching(columns)
	})
}

// expected says of a text that begins with no query what is wanted, where the
// source names but the word that it did not understand inside of our wrapping.
func expected(kind, sql string, err error) error {
	word := firstWord(kind, sql)
	var e *lemma.Error
	if !errors.As(err, &e) || e.Code != CodeQuery || len(e.Fields) == 0 || slices.Contains([]string{"", "select", "with", "values", "table"}, word) {
		return err
	}
	e.Fields[0].Detail = fmt.Sprintf("one select is expected, and this begins with %s: %s", spoken(word), e.Fields[0].Detail)
	return err
}

// describesMatching asks once per connection.
func (c *connection) describesMatching(r *run, sql string) error {
	text := "matching " + sql
	if c.known[text] {
		return nil
	}
	columns, err := r.describeMatching(r.ctx, sql)
	if err != nil {
		return err
	}
	c.remember(text)
	return checkMatching(columns)
}

func checkMatching(columns []Column) error {
	switch {
	case len(columns) != 1:
		return aboutMatching(badQuery(0, 0, "the query has %d columns, not one of profile keys", len(columns)))
	case !slices.Contains([]Type{Text, Integer, Number, Other}, columns[0].Type):
		return aboutMatching(badQuery(0, 0, "the query's column is of type %s, which cannot be a profile key", columns[0].Type))
	}
	return nil
}

// aboutMatching words a fault of a query that is no audience.
func aboutMatching(err error) error {
	var e *lemma.Error
	if errors.As(err, &e) && e.Code == CodeQuery {
		e.Message = "the query cannot decide who matches"
	}
	return err
}

func keysOf(people []Person) map[string]bool {
	set := make(map[string]bool, len(people))
	for _, p := range people {
		set[p.Key] = true
	}
	return set
}

// gather reads to the end, within the limits of any lookup.
func (a *Audiences) gather(rows cursor, asked, matched map[string]bool) error {
	counts := stream{options: a.options.ofLookups(), values: make([][]byte, 1)}
	for {
		more, err := rows.next(counts.values)
		if err != nil || !more {
			return err
		}
		if err := counts.count(); err != nil {
			return err
		}
		if key := counts.values[0]; asked[string(key)] {
			matched[string(key)] = true
		}
	}
}
