package server

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Requests without a known key that wait for something keep no other out: neither a new
// one, nor one with a key that is being worked on.
func TestStrangersKeepNobodyOut(t *testing.T) {
	t.Parallel()
	working, release := make(chan struct{}, 10), make(chan struct{})
	address, counts := listening(t, endpoint{name: "api", most: 3, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/known":
			known(r.Context())
		case "/continued": // what asks for the body is no begin of an answer
			_, _ = io.ReadAll(r.Body)
		case "/begun":
			_, _ = io.WriteString(w, "begun")
			_ = http.NewResponseController(w).Flush()
		}
		if r.URL.Path != "/" {
			working <- struct{}{}
			<-release
		}
		hello(w, r)
	})})
	eventuallyOpen(t, counts, 0)
	ask := func(path string) net.Conn {
		conn := dialed(t, address)
		body := ""
		if path == "/continued" {
			body = "Content-Length: 1\r\nExpect: 100-continue\r\n"
		}
		_, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: x\r\n"+body+"Connection: close\r\n\r\n")
		if body != "" {
			if _, err := io.ReadFull(conn, make([]byte, len("HTTP/1.1 100 Continue\r\n\r\n"))); err != nil {
				t.Error(err) // the server has not asked for the body
			}
			_, err = io.WriteString(conn, "x")
		}
		if err != nil {
			t.Error(err)
		}
		return conn
	}
	var kept []net.Conn
	for _, path := range []string{"/known", "/begun", "/continued"} {
		kept = append(kept, ask(path))
		<-working
	}
	for range 5 { // the stranger's, and then the one before
		r, err := http.ReadResponse(bufio.NewReader(ask("/")), nil)
		if err != nil || r.StatusCode != http.StatusOK {
			t.Fatalf("%+v, %v", r, err)
		}
		_ = r.Body.Close()
		eventuallyOpen(t, counts, 2)
		ask("/another")
		<-working
	}
	if n := value(t, counts.evicted.WithLabelValues("api")); n != 5 {
		t.Errorf("%v connections were replaced", n)
	}
	close(release)
	for _, conn := range kept[:2] {
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(r.Body); err != nil || !strings.HasSuffix(string(body), "hello") {
			t.Errorf("%s, %v", body, err)
		}
	}
}

// Beyond what a process can do, most requests without a key are answered all the same: each new
// one does not end the one that would be answered next.
func TestTooManyRequestsOfStrangersAreAnsweredInPart(t *testing.T) {
	t.Parallel()
	places := make(chan struct{}, 4)
	address, counts := listening(t, endpoint{name: "api", most: 40, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case places <- struct{}{}:
		case <-r.Context().Done():
			return
		}
		time.Sleep(50 * time.Millisecond)
		<-places
		hello(w, r)
	})})
	eventuallyOpen(t, counts, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	var answered atomic.Int64
	begun := time.Now()
	for ctx.Err() == nil { // twice as many as it can answer
		go func() {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
			r, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err == nil && r.StatusCode == http.StatusOK && time.Since(begun) > 2*time.Second { // all connections are in use
				answered.Add(1)
			}
		}()
		time.Sleep(6 * time.Millisecond)
	}
	if n := answered.Load(); n < 30 {
		t.Errorf("%d were answered, of about 160 that could be", n)
	}
}

// The work for a request ends when its connection is replaced, also while its body was not
// read: otherwise nothing would bound the requests that are worked on.
func TestTheWorkOfAReplacedStrangerEnds(t *testing.T) {
	t.Parallel()
	working, ended := make(chan struct{}, 10), make(chan struct{}, 10)
	address, counts := listening(t, endpoint{name: "api", most: 1, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stranger" {
			working <- struct{}{}
			<-r.Context().Done()
			ended <- struct{}{}
		}
		hello(w, r)
	})})
	eventuallyOpen(t, counts, 0)
	conn := dialed(t, address)
	if _, err := io.WriteString(conn, "POST /stranger HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-working
	dialed(t, address)
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("it goes on")
	}
}
