package client

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// pages answers with three pages of two flows, and refuses one of them.
func pages(failing int) func(int, http.ResponseWriter, *http.Request) {
	return func(_ int, w http.ResponseWriter, r *http.Request) {
		n := map[string]int{"": 1, "second": 2, "third": 3}[r.URL.Query().Get("cursor")]
		next := []any{nil, "second", "third", nil}[n]
		if n == failing {
			refuse(w, http.StatusBadRequest, "bad_cursor")
			return
		}
		id := []string{"", "a", "b", "c"}[n]
		reply(w, http.StatusOK, map[string]any{"data": []any{map[string]any{"id": id + "1"}, map[string]any{"id": id + "2"}},
			"next_cursor": next, "has_more": next != nil})
	}
}

func ids(flows []Flow) (all []string) {
	for _, f := range flows {
		all = append(all, f.ID)
	}
	return all
}

func TestListsAreReadToTheirEnd(t *testing.T) {
	t.Parallel()
	s := serve(t, pages(0))
	all, err := Collect(s.client(t).ListFlows(t.Context(), FlowFilter{}), 0)
	if diff := cmp.Diff([]string{"a1", "a2", "b1", "b2", "c1", "c2"}, ids(all)); diff != "" || err != nil {
		t.Errorf("%v: %s", err, diff)
	}
	if again, err := Collect(s.client(t).ListFlows(t.Context(), FlowFilter{}, PageSize(2)), 0); err != nil || len(again) != 6 ||
		s.requests()[3].path != "/v1/flows?limit=2" {
		t.Errorf("%d of %d, asked as %s: %v", len(again), 6, s.requests()[3].path, err)
	}
}

func TestListsAreReadNoFurtherThanWanted(t *testing.T) {
	t.Parallel()
	s := serve(t, pages(0))
	some, err := Collect(s.client(t).ListFlows(t.Context(), FlowFilter{}), 2)
	if err != nil || len(some) != 2 || len(s.requests()) != 1 {
		t.Errorf("%d after %d requests: %v", len(some), len(s.requests()), err)
	}
}

func TestListsCanBeReadTwice(t *testing.T) {
	t.Parallel()
	list := serve(t, pages(0)).client(t).ListFlows(t.Context(), FlowFilter{})
	for range 2 {
		if all, err := Collect(list, 0); err != nil || len(all) != 6 {
			t.Errorf("%d: %v", len(all), err)
		}
	}
}

func TestListsEndWithTheirError(t *testing.T) {
	t.Parallel()
	all, err := Collect(serve(t, pages(2)).client(t).ListFlows(t.Context(), FlowFilter{}), 0)
	if CodeOf(err) != "bad_cursor" || len(all) != 2 {
		t.Errorf("%d: %v", len(all), err)
	}
}
