package client

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// received is a request to a scripted server.
type received struct {
	method, path string
	header       http.Header
	body         []byte
}

// scripted is a server that answers by a function and records its requests.
type scripted struct {
	*httptest.Server
	mu     sync.Mutex
	got    []received
	answer func(try int, w http.ResponseWriter, r *http.Request)
}

func serve(t *testing.T, answer func(try int, w http.ResponseWriter, r *http.Request)) *scripted {
	t.Helper()
	s := &scripted{answer: answer}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.got = append(s.got, received{r.Method, r.URL.RequestURI(), r.Header.Clone(), body})
		try := len(s.got)
		s.mu.Unlock()
		answer(try, w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *scripted) requests() []received {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]received{}, s.got...)
}

// client returns a client of the server with a short back-off.
func (s *scripted) client(t *testing.T, options ...Option) *Client {
	t.Helper()
	c, err := New(s.URL, "lk_test", append([]Option{BackOff(time.Millisecond)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

func refuse(w http.ResponseWriter, status int, code string) {
	reply(w, status, Problem{Type: "urn:lemma:problem:" + code, Title: http.StatusText(status), Status: status, Code: code,
		Detail: "because of " + code, RequestID: "req_1"})
}

// hangUp closes the connection without an answer.
func hangUp(w http.ResponseWriter) {
	if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
		_ = conn.Close()
	}
}
