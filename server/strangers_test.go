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

// Connections without a known key keep no other out, whatever they wait for: neither a new one,
// nor one with a key that is being worked on.
func TestStrangersKeepNobodyOut(t *testing.T) {
	t.Parallel()
	working, release := make(chan struct{}, 10), make(chan struct{})
	address, counts := listening(t, endpoint{name: "api", most: 2, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/known":
			known(r.Context())
		case "/continued":
			_, _ = io.ReadAll(r.Body)
		case "/begun":
			_, _ = io.WriteString(w, "begun")
			_ = http.NewResponseController(w).Flush()
		case "/sent slowly":
			working <- struct{}{}
			_, _ = io.ReadAll(r.Body)
			return
		case "/received slowly":
			_, _ = w.Write(make([]byte, 8<<20))
			working <- struct{}{}
			_, _ = w.Write(make([]byte, 64<<20))
			return
		}
		if r.URL.Path != "/" {
			working <- struct{}{}
			<-release
		}
		hello(w, r)
	})})
	eventuallyOpen(t, counts, 0)
	ask := func(path, body string) net.Conn {
		conn := dialed(t, address)
		_, err := io.WriteString(conn, "GET "+strings.ReplaceAll(path, " ", "%20")+" HTTP/1.1\r\nHost: x\r\n"+body)
		must(t, err)
		return conn
	}
	const none, some = "Connection: close\r\n\r\n", "Content-Length: 2\r\n\r\nx"
	kept := ask("/known", none)
	<-working
	strangers := map[string]string{"/waiting": none, "/begun": none, "/continued": "Expect: 100-continue\r\n" + some + "x",
		"/sent slowly": some, "/received slowly": none}
	for path, body := range strangers {
		conn := ask(path, body)
		if path == "/received slowly" {
			_, err := io.ReadFull(conn, make([]byte, 8<<20)) // of 72 MiB
			must(t, err)
		}
		<-working
		r, err := http.ReadResponse(bufio.NewReader(ask("/", none)), nil)
		if err != nil || r.StatusCode != http.StatusOK {
			t.Fatalf("beside %s: %+v, %v", path, r, err)
		}
		_ = r.Body.Close()
		eventuallyOpen(t, counts, 1)
	}
	dialed(t, address) // without a request
	eventuallyOpen(t, counts, 2)
	if r, err := http.ReadResponse(bufio.NewReader(ask("/", none)), nil); err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("beside a silent one: %+v, %v", r, err)
	}
	if n := value(t, counts.evicted.WithLabelValues("api")); n != float64(len(strangers)+1) {
		t.Errorf("%v connections were replaced", n)
	}
	close(release)
	r, err := http.ReadResponse(bufio.NewReader(kept), nil)
	must(t, err)
	if body, err := io.ReadAll(r.Body); err != nil || string(body) != "hello" {
		t.Errorf("%s, %v", body, err)
	}
}

// A request with a key whose body comes slowly is not replaced while most connections are of
// strangers.
func TestStrangersDoNotReplaceASlowUpload(t *testing.T) {
	t.Parallel()
	arriving := make(chan struct{}, 10)
	address, counts := listening(t, endpoint{name: "api", most: 3, limits: timeLimits{silent: time.Nanosecond, body: time.Hour},
		handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/known":
				known(r.Context())
				_, _ = r.Body.Read(make([]byte, 1))
				arriving <- struct{}{}
				_, _ = io.ReadAll(r.Body)
			case "/waits":
				arriving <- struct{}{}
				<-r.Context().Done()
				return
			}
			hello(w, r)
		})})
	eventuallyOpen(t, counts, 0)
	upload := dialed(t, address)
	_, err := io.WriteString(upload, "POST /known HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\nx")
	must(t, err)
	<-arriving
	for range 5 {
		_, err := io.WriteString(dialed(t, address), "GET /waits HTTP/1.1\r\nHost: x\r\n\r\n")
		must(t, err)
		<-arriving
	}
	_, err = io.WriteString(upload, "x")
	must(t, err)
	r, err := http.ReadResponse(bufio.NewReader(upload), nil)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("%+v, %v", r, err)
	}
}

// Slow clients with keys keep no others out, whose connections have no known key at first.
func TestSlowClientsWithKeysKeepNobodyOut(t *testing.T) {
	t.Parallel()
	arriving, waiting, release := make(chan struct{}, 10), make(chan struct{}, 10), make(chan struct{})
	address, counts := listening(t, endpoint{name: "api", most: 4, limits: timeLimits{silent: time.Nanosecond, body: time.Hour},
		handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/known" {
				known(r.Context())
				_, _ = r.Body.Read(make([]byte, 1))
				arriving <- struct{}{}
				_, _ = io.ReadAll(r.Body)
				return
			}
			waiting <- struct{}{}
			<-release
			hello(w, r)
		})})
	eventuallyOpen(t, counts, 0)
	for range 3 {
		_, err := io.WriteString(dialed(t, address), "POST /known HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nx")
		must(t, err)
		<-arriving
	}
	var others []net.Conn
	for range 2 {
		conn := dialed(t, address)
		_, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		must(t, err)
		<-waiting
		others = append(others, conn)
	}
	close(release)
	for _, conn := range others {
		if r, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || r.StatusCode != http.StatusOK {
			t.Errorf("%+v, %v", r, err)
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
