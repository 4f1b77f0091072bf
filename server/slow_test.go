package server

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lemma/pgtest"
)

// connects opens connections until a request is answered.
func connects(t *testing.T, address string) {
	t.Helper()
	pgtest.Eventually(t, 20*time.Second, "a new connection is admitted", func() bool {
		conn := dialed(t, address)
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		return err == nil && answer.StatusCode == http.StatusOK
	})
}

// every calls do after each pause until it fails or the test ends.
func every(t *testing.T, pause time.Duration, do func() error) {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			case <-time.After(pause):
			}
			if do() != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-ended })
}

func readBody(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	hello(w, r)
}

// While all connections are in use by requests with a key, a new connection replaces the one
// whose body has been arriving for longest.
func TestSlowBodiesAreReplaced(t *testing.T) {
	t.Parallel()
	limits := timeLimits{request: time.Hour, body: time.Hour, silent: 50 * time.Millisecond}
	arriving := make(chan struct{}, 10)
	address, _ := listening(t, endpoint{name: "api", handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		known(r.Context())
		_, _ = r.Body.Read(make([]byte, 1))
		arriving <- struct{}{}
		readBody(w, r)
	}), most: 3, limits: limits})
	var slow []net.Conn
	for range 3 {
		conn := dialed(t, address)
		_, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
		must(t, err)
		slow = append(slow, conn)
		<-arriving // so that one is the first
	}
	connects(t, address)
	if _, err := slow[0].Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("the first slow body is still waited for: %v", err)
	}
}

// A body must arrive at bodyRate, and may then take longer than the limit for its first
// bytes.
func TestRateOfBodies(t *testing.T) {
	t.Parallel()
	address, _ := listening(t,
		endpoint{name: "api", handler: http.HandlerFunc(readBody), most: 100, limits: timeLimits{body: 400 * time.Millisecond}})
	send := func(part string, pause time.Duration, length string) (status int, took time.Duration) {
		conn := dialed(t, address)
		begun := time.Now()
		_, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: "+length+"\r\n\r\n")
		must(t, err)
		every(t, pause, func() error {
			_, err := io.WriteString(conn, part)
			return err
		})
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		must(t, err)
		return answer.StatusCode, time.Since(begun)
	}
	if status, took := send("x", 20*time.Millisecond, "1000000"); status != http.StatusBadRequest || took > 30*time.Second {
		t.Errorf("a byte at a time: %d after %s", status, took)
	}
	if status, took := send(strings.Repeat("x", 16<<10), 50*time.Millisecond, "327680"); status != http.StatusOK ||
		took < 400*time.Millisecond {
		t.Errorf("320 KiB in a second: %d after %s", status, took)
	}
}

// piped sends requests ahead of their responses, which read receives.
func piped(t *testing.T, address string, read func(net.Conn) error) net.Conn {
	t.Helper()
	conn := dialed(t, address)
	must(t, conn.(*net.TCPConn).SetReadBuffer(4<<10))
	go func() {
		many := []byte(strings.Repeat("GET /large HTTP/1.1\r\nHost: x\r\n\r\n", 1000))
		for {
			if _, err := conn.Write(many); err != nil {
				return
			}
		}
	}()
	every(t, 10*time.Millisecond, func() error { return read(conn) })
	return conn
}

func large(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/large" {
		_, _ = w.Write(bytes.Repeat([]byte("x"), 64<<10))
		return
	}
	hello(w, r)
}

// While all connections are in use, a new connection replaces one whose client sends
// requests ahead and receives each response slowly, and none whose client receives at
// once.
func TestPipelinedRequestsAreReplaced(t *testing.T) {
	t.Parallel()
	for pause, evicted := range map[time.Duration]bool{time.Second: true, time.Millisecond: false} {
		synctest.Test(t, func(t *testing.T) {
			g := newGate(nil, endpoint{most: 1}, newConnectionMetrics(prometheus.NewRegistry()))
			server, client := net.Pipe()
			var all sync.WaitGroup
			defer all.Wait()
			defer client.Close()
			conn := g.admit(server)
			defer conn.Close()
			all.Go(func() {
				for {
					time.Sleep(pause)
					if _, err := client.Read(make([]byte, 100)); err != nil {
						return
					}
				}
			})
			for range 20 {
				g.state(conn, http.StateIdle)
				g.state(conn, http.StateActive)
				conn.record(func(w *waiting) { w.known = true })
				_, err := conn.Write(make([]byte, 100))
				must(t, err)
				time.Sleep(10 * time.Millisecond) // work for the next request
			}
			all.Go(func() { _, _ = conn.Write(make([]byte, 100)) })
			synctest.Wait()
			if admitted := g.admit(nil) != nil; admitted != evicted {
				t.Errorf("responses in %s each: a new connection is admitted: %v", pause, admitted)
			}
		})
	}
}

// The connection of a client that receives nothing for writeTime is closed, although the
// deadline of its response is later.
func TestBlockedWritesEnd(t *testing.T) {
	t.Parallel()
	address, counts := listening(t,
		endpoint{name: "api", handler: http.HandlerFunc(large), most: 2,
			limits: timeLimits{write: 300 * time.Millisecond, answer: time.Hour, total: time.Hour}})
	piped(t, address, func(net.Conn) error { return nil })
	eventuallyOpen(t, counts, 1)
	eventuallyOpen(t, counts, 0)
}

// A client that receives slowly, but enough in writeTime, receives the whole response.
func TestSlowReadersReceive(t *testing.T) {
	t.Parallel()
	address, _ := listening(t, endpoint{name: "api", handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("x"), 16<<20))
	}), most: 2, limits: timeLimits{write: time.Second}})
	conn := dialed(t, address)
	_, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	must(t, err)
	total := 0
	for begun := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		n, err := conn.Read(make([]byte, 64<<10))
		if total += n; err == io.EOF {
			if total < 16<<20 || time.Since(begun) < time.Second {
				t.Errorf("%d bytes after %s", total, time.Since(begun))
			}
			return
		}
		must(t, err)
	}
}

// While all connections are in use, a new connection replaces one whose client does not
// receive its response, and none whose handler works.
func TestSlowReadersAreReplaced(t *testing.T) {
	t.Parallel()
	working, release := make(chan struct{}, 1), make(chan struct{})
	limits := timeLimits{total: time.Minute, answer: time.Minute, slow: 300 * time.Millisecond}
	address, counts := listening(t,
		endpoint{name: "api", most: 4, limits: limits, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/work":
				known(r.Context())
				working <- struct{}{}
				<-release
			case "/large":
				_, _ = w.Write(bytes.Repeat([]byte("x"), 64<<20))
				return
			}
			hello(w, r)
		})})
	send := func(path string) net.Conn {
		conn := dialed(t, address)
		_, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
		must(t, err)
		return conn
	}
	worker := send("/work")
	<-working
	for range 3 {
		reader := send("/large")
		every(t, 20*time.Millisecond, func() error { _, err := reader.Read(make([]byte, 1)); return err })
	}
	eventuallyOpen(t, counts, 4)
	pgtest.Eventually(t, 10*time.Second, "a new connection is served", func() bool {
		conn := send("/")
		defer conn.Close()
		r, err := http.ReadResponse(bufio.NewReader(conn), nil) // reset while no reader is slow yet
		return err == nil && r.StatusCode == http.StatusOK
	})
	close(release)
	if r, err := http.ReadResponse(bufio.NewReader(worker), nil); err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("the request in work ended with %v", err)
	}
}

// A new connection replaces the one that has waited longest without a request.
func TestSilentConnectionsAreReplaced(t *testing.T) {
	t.Parallel()
	address, counts := listening(t,
		endpoint{name: "api", most: 3, handler: http.HandlerFunc(hello), limits: timeLimits{silent: 50 * time.Millisecond}})
	eventuallyOpen(t, counts, 0)
	for _, text := range []string{"", "GET / HTTP/1.1\r\nHost: x\r\nX-", ""} {
		if _, err := io.WriteString(dialed(t, address), text); err != nil {
			t.Fatal(err)
		}
	}
	connects(t, address)
	if n := value(t, counts.evicted.WithLabelValues("api")); n == 0 {
		t.Error("no eviction was counted")
	}
}
