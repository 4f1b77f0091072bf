package audience

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience/sqltext"
)

// Person is a row of the relation people of a matching query.
type Person struct {
	Key        string
	EnrolledAt time.Time
}

// Matching runs a customer's select for people with distinct keys, and returns
// which of their keys the select returned. It ignores other keys. The query returns
// one column of profile keys and can use the relation
//
//	people (profile_key text, enrolled_at timestamptz)
//
// which in MySQL is (profile_key varchar(255), enrolled_at datetime(6)), in UTC.
// In MariaDB, people is not visible inside a WITH of the query.
func (a *Audiences) Matching(ctx context.Context, ws, source uuid.UUID, sql string, people []Person) (map[string]bool, error) {
	if len(people) > MaxLookup {
		return nil, fmt.Errorf("match %d people: must be at most %d", len(people), MaxLookup)
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
	err = a.withConnection(ctx, opened, func(r *run, c *connection) error {
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
		asked := keysOf(people)
		return noLongerValid(a.options.forLookups().eachKey(rows, func(key []byte) {
			if asked[string(key)] {
				matched[string(key)] = true
			}
		}))
	})
	return matched, err
}

func (a *Audiences) forMatching(ctx context.Context, ws, source uuid.UUID, sql string) (openedSource, error) {
	opened, err := a.opened(ctx, ws, source)
	if err != nil {
		return opened, err
	}
	return opened, matchingFault(checkText(opened.target.Kind, sql))
}

// ValidateMatching validates a matching query at the source, without running it.
// Faults are at /sql, with line and column if the source gives them.
func (a *Audiences) ValidateMatching(ctx context.Context, ws, source uuid.UUID, sql string) error {
	opened, err := a.forMatching(ctx, ws, source, sql)
	if err != nil {
		return err
	}
	return a.within(ctx, opened, a.readSpan(), func(r *run) error {
		columns, err := r.describeMatching(r.ctx, sql)
		if err != nil {
			return matchingFault(expected(opened.target.Kind, sql, err))
		}
		return checkMatching(columns)
	})
}

// expected returns a better error for a text that is not a query. The error of the
// source refers only to the unexpected word.
func expected(kind, sql string, err error) error {
	word := sqltext.FirstWord(kind, sql)
	var e *lemma.Error
	if !errors.As(err, &e) || e.Code != CodeQuery || len(e.Fields) == 0 ||
		slices.Contains([]string{"", "select", "with", "values", "table"}, word) {
		return err
	}
	e.Fields[0].Detail = fmt.Sprintf("one select is expected, and this begins with %s: %s", sqltext.Printable(word), e.Fields[0].Detail)
	return err
}

// describesMatching describes a query once per connection.
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
	if len(columns) != 1 {
		return matchingFault(badQuery(0, 0, "the query has %d columns, not one of profile keys", len(columns)))
	}
	if why := columns[0].notAKey(); why != "" {
		return matchingFault(badQuery(0, 0, "the query's column %s", why))
	}
	return nil
}

// matchingFault returns a fault of a matching query.
func matchingFault(err error) error {
	var e *lemma.Error
	if errors.As(err, &e) && e.Code == CodeQuery {
		e.Message = "the query is not a valid matching query"
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
