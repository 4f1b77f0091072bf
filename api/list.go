package api

import (
	"strconv"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/page"
)

// list is one page of a list.
type list[T any] struct {
	Data       []T     `json:"data"`
	NextCursor *string `json:"next_cursor"`
	HasMore    bool    `json:"has_more"`
}

// listOf renders a page.
func listOf[R, T any](found []R, next string, err error, show func(R) T) (list[T], error) {
	if err != nil {
		return list[T]{}, err
	}
	return list[T]{Data: each(found, show), NextCursor: orNull(next), HasMore: next != ""}, nil
}

// page reads the query of a list, which has been checked against the contract.
func (c *call) page() page.Query {
	q := page.Query{Limit: 50, Cursor: c.query("cursor"), Sort: c.query("sort"), Status: c.query("status"), Name: c.query("name"),
		CreatedAfter: c.instant("created_after"), CreatedBefore: c.instant("created_before")}
	if limit, err := strconv.Atoi(c.query("limit")); err == nil {
		q.Limit = limit
	}
	return q
}

// instant reads a query parameter that is a time by the contract, nil without one.
func (c *call) instant(name string) *time.Time {
	at, err := parseTime(c.query(name))
	if err != nil {
		return nil
	}
	return &at
}

// filterID reads an id to filter by, nil without one. It returns false for a text that is
// no id: no row matches.
func (c *call) filterID(name, prefix string) (id *uuid.UUID, ok bool) {
	text := c.query(name)
	if text == "" {
		return nil, true
	}
	found, ok := lemma.ParseID(prefix, text)
	return &found, ok
}

func nothing[T any]() list[T] { return list[T]{Data: []T{}} }

// number reads a query parameter that is a whole number by the contract, 0 without one.
func (c *call) number(name string) int {
	n, _ := strconv.Atoi(c.query(name))
	return n
}

// each converts the rows of a list. The result is never nil.
func each[R, T any](found []R, show func(R) T) []T {
	shown := make([]T, 0, len(found))
	for _, one := range found {
		shown = append(shown, show(one))
	}
	return shown
}

func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// idOrNull formats an id; nil stays nil.
func idOrNull(prefix string, id *uuid.UUID) *string {
	if id == nil {
		return nil
	}
	text := lemma.FormatID(prefix, *id)
	return &text
}

// utc returns a time in UTC; nil stays nil.
func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}

// present returns the counts above 0, and never nil.
func present(counts map[string]int64) map[string]int64 {
	shown := map[string]int64{}
	for reason, n := range counts {
		if n != 0 {
			shown[reason] = n
		}
	}
	return shown
}

// orZero returns a value of a request, zero without one.
func orZero[T any](value *T) (zero T) {
	if value == nil {
		return zero
	}
	return *value
}

// neverNull returns a map, empty instead of null.
func neverNull[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return m
}
