package server

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
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
			time.Sleep(100 * time.Millisecond) // until the server asks for it
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
