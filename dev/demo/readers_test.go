package demo

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// answers answers requests without a network, by their path.
type answers func(path string) (status int)

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: a(r.URL.Path), Body: http.NoBody, Request: r}, nil
}

// A request whose answer is late is repeated, and counts once. An error counts nothing.
func TestAReaderRepeatsALateRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		requests := 0
		r := newReaders(nil)
		r.http.Transport = answers(func(path string) int {
			if path == "/c/x" {
				return http.StatusNotFound
			}
			if requests++; requests == 1 {
				<-time.After(lateAfter)
			}
			return http.StatusOK
		})
		r.open(t.Context(), `<img src="http://lemma/o/x"><a href="http://lemma/c/x">`, 0, true)
		var n ABCounts
		if err := r.count(&n); err == nil || n.Opened != 1 || n.Clicked != 0 || n.Unsure != 0 || requests != 2 {
			t.Errorf("%+v after %d requests, %v", n, requests, err)
		}
	})
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
