package client

import (
	"context"
	"iter"
	"net/http"
	"strconv"
	"time"
)

// PageSize sets how many entries of a list one request reads: 1 to 200, the default.
func PageSize(n int) CallOption {
	return func(r *request) { r.query.Set("limit", strconv.Itoa(n)) }
}

// Sort sets the order of a list: -created_at (the default), created_at, name or -name.
func Sort(order string) CallOption { return func(r *request) { r.query.Set("sort", order) } }

// CreatedAfter filters a list by created_at: at this time or later.
func CreatedAfter(t time.Time) CallOption {
	return func(r *request) { r.query.Set("created_after", t.UTC().Format(time.RFC3339Nano)) }
}

// CreatedBefore filters a list by created_at: before this time.
func CreatedBefore(t time.Time) CallOption {
	return func(r *request) { r.query.Set("created_before", t.UTC().Format(time.RFC3339Nano)) }
}

// page is a page of a list.
type page[T any] struct {
	Data       []T     `json:"data"`
	NextCursor *string `json:"next_cursor"`
}

// each reads a list page by page. It ends after an error.
func each[T any](ctx context.Context, c *Client, fill func(*request), options []CallOption, path string, parts ...any) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		r, err := newRequest(http.MethodGet, path, parts...)
		if err != nil {
			yield(none, err)
			return
		}
		r.set("limit", "200")
		if fill != nil {
			fill(r)
		}
		for _, o := range options {
			o(r)
		}
		for {
			var p page[T]
			if _, err := c.do(ctx, r, &p); err != nil {
				yield(none, err)
				return
			}
			for _, one := range p.Data {
				if !yield(one, nil) {
					return
				}
			}
			if p.NextCursor == nil {
				return
			}
			r.query.Set("cursor", *p.NextCursor)
		}
	}
}

// Collect reads at most n entries of a list; 0 is all.
func Collect[T any](list iter.Seq2[T, error], n int) ([]T, error) {
	all := []T{}
	for one, err := range list {
		if err != nil {
			return all, err
		}
		if all = append(all, one); len(all) == n {
			break
		}
	}
	return all, nil
}
