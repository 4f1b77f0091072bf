package demo

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// A request whose answer is late is repeated, and counts once. An error counts nothing.
func TestAReaderRepeatsALateRequest(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/c/x" {
			w.WriteHeader(http.StatusNotFound)
		} else if requests.Add(1) == 1 {
			time.Sleep(lateAfter)
		}
	}))
	defer s.Close()
	r := newReaders(nil)
	r.open(t.Context(), `<img src="`+s.URL+`/o/x"><a href="`+s.URL+`/c/x">`, 0, true)
	var n ABCounts
	if err := r.count(&n); err == nil || n.Opened != 1 || n.Clicked != 0 || n.Unsure != 0 || requests.Load() != 2 {
		t.Errorf("%+v after %d requests, %v", n, requests.Load(), err)
	}
}

// Numbers agree but for what is unsure, and for clicks that count as machines'.
func TestCountsAgree(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		n    ABCounts
		want bool
	}{
		{ABCounts{Opened: 9, Opens: 9, Clicked: 4, Clicks: 4}, true},
		{ABCounts{Opened: 9, Opens: 8, Clicked: 4, Clicks: 4}, false},
		{ABCounts{Opened: 9, Opens: 8, Clicked: 4, Clicks: 3, Unsure: 2}, true},
		{ABCounts{Opened: 9, Opens: 8, Clicked: 4, Clicks: 3, Unsure: 1}, false},
		{ABCounts{Opened: 9, Opens: 9, Clicked: 4, Clicks: 3, Machine: 1}, true},
		{ABCounts{Opened: 9, Opens: 10, Clicked: 4, Clicks: 4, Unsure: 2}, false},
	} {
		if c.n.agree(c.n.Unsure) != c.want {
			t.Errorf("%+v", c.n)
		}
	}
}
