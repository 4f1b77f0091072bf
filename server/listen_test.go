package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lemma/pgtest"
)

// brief are limits that a test can wait for.
var brief = timeLimits{header: 300 * time.Millisecond, request: 600 * time.Millisecond, total: 3 * time.Second,
	idle: 300 * time.Millisecond}

// listening serves an endpoint until the test ends, and returns its address.
func listening(t *testing.T, e endpoint) (address string, counts *connectionMetrics) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.address, e.opened = l.Addr().String(), l
	ctx, stop := context.WithCancel(context.Background())
	counts = newConnectionMetrics(prometheus.NewRegistry())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, slog.New(slog.DiscardHandler), counts, e) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
	return e.address, counts
}

func hello(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }

// dialed is a connection with a deadline for the whole test.
func dialed(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// A connection on which no byte arrives, or a byte at a time, is closed.
func TestSlowConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	address, counts := listening(t, endpoint{name: "api", handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			http.Error(w, "the body did not come", http.StatusBadRequest)
			return
		}
		hello(w, r)
	}), most: 100, limits: brief})
	for what, text := range map[string]string{
		"nothing":       "",
		"half a header": "GET / HTTP/1.1\r\nHost: x\r\nX-",
		"half a body":   "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf",
		"idle":          "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			conn := dialed(t, address)
			if _, err := io.WriteString(conn, text); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, conn); err != nil && !strings.Contains(err.Error(), "reset") {
				t.Errorf("it was still open: %v", err)
			}
		})
	}
	t.Cleanup(func() { // after the subtests
		if n := value(t, counts.open.WithLabelValues("api")); n != 0 {
			t.Errorf("%v connections are counted as open", n)
		}
	})
}

// The connection of a client that does not read the response is closed.
func TestUnreadResponsesEnd(t *testing.T) {
	t.Parallel()
	failed := make(chan error, 1)
	limits := brief
	limits.total, limits.answer = time.Minute, time.Second
	address, _ := listening(t, endpoint{name: "api", handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := w.Write(bytes.Repeat([]byte("x"), 64<<20))
		failed <- err
	}), most: 100, limits: limits})
	if _, err := io.WriteString(dialed(t, address), "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-failed:
		if err == nil {
			t.Error("64 MiB went to a caller that reads nothing")
		}
	case <-time.After(20 * time.Second):
		t.Error("the answer is still being written")
	}
}

// Beyond the bound a connection is answered with 503; when one ends, another is taken.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	working, release := make(chan struct{}, 10), make(chan struct{})
	address, counts := listening(t, endpoint{name: "api", most: 2, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/long" {
			known(r.Context())
			working <- struct{}{}
			<-release
		}
		hello(w, r)
	})})
	eventuallyOpen(t, counts, 0)
	ask := func(conn net.Conn, path string) {
		if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Error(err)
		}
	}
	answer := func(conn net.Conn) *http.Response {
		t.Helper()
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		return r
	}
	first, second := dialed(t, address), dialed(t, address)
	ask(first, "/long")
	ask(second, "/long")
	<-working
	<-working

	third := dialed(t, address)
	ask(third, "/")
	got := answer(third)
	body, _ := io.ReadAll(got.Body)
	if got.StatusCode != http.StatusServiceUnavailable || got.Header.Get("Retry-After") == "" ||
		got.Header.Get("Content-Type") != "application/problem+json" ||
		!bytes.Contains(body, []byte(`"too_many_connections"`)) {
		t.Errorf("%d %v %s", got.StatusCode, got.Header, body)
	}
	if n := value(t, counts.refused.WithLabelValues("api")); n != 1 {
		t.Errorf("%v refused", n)
	}
	close(release)
	answer(first)
	answer(second) // both are idle now, or about to be

	pgtest.Eventually(t, 10*time.Second, "an idle connection is replaced", func() bool {
		// the server sets the state idle just after its response
		fourth := dialed(t, address)
		ask(fourth, "/")
		return answer(fourth).StatusCode == http.StatusOK
	})
	if n := value(t, counts.evicted.WithLabelValues("api")); n != 1 {
		t.Errorf("%v connections were replaced", n)
	}
}

func eventuallyOpen(t *testing.T, counts *connectionMetrics, want float64) {
	t.Helper()
	pgtest.Eventually(t, 20*time.Second, "so many connections are open", func() bool {
		return value(t, counts.open.WithLabelValues("api")) == want
	})
}

// A slow body is refused in time. A handler may take longer than a request may take to
// arrive.
func TestDeadlinesOfTheAPI(t *testing.T) {
	t.Parallel()
	s := newServer(t, pgtest.DB(t), Config{})
	token := adminKey(t, s)
	address, _ := listening(t, endpoint{name: "api", handler: s.API, most: 100, limits: timeLimits{request: 700 * time.Millisecond}})

	slow := dialed(t, address)
	if _, err := io.WriteString(slow,
		"POST /v1/templates HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+token+"\r\nContent-Type: application/json\r\nContent-Length: "+
			"1000\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	got, err := http.ReadResponse(bufio.NewReader(slow), nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, _ := io.ReadAll(got.Body); got.StatusCode != http.StatusBadRequest || !bytes.Contains(body, []byte("did not arrive in time")) ||
		!got.Close {
		t.Errorf("%d %s", got.StatusCode, body)
	}

	tx, err := s.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `lock table templates in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	for _, request := range []string{"GET /v1/templates HTTP/1.1\r\n",
		"POST /v1/templates HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 46\r\n"} {
		long := dialed(t, address)
		if _, err := io.WriteString(long, request+"Host: x\r\nAuthorization: Bearer "+token+"\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(request, "POST") {
			_, _ = io.WriteString(long, `{"name":"a", "subject":"b", "html":"<p>c</p>"}`)
		}
		defer func() {
			got, err := http.ReadResponse(bufio.NewReader(long), nil)
			if err != nil {
				t.Fatal(err)
			}
			if body, _ := io.ReadAll(got.Body); got.StatusCode >= 300 {
				t.Errorf("%s: %d %s", request, got.StatusCode, body)
			}
		}()
	}
	time.Sleep(1500 * time.Millisecond) // longer than a request may take to arrive
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The listener of the API does not serve the metrics.
func TestMetricsHaveTheirOwnListener(t *testing.T) {
	t.Parallel()
	status := func(h http.Handler) int {
		w := &recorded{header: http.Header{}}
		r, _ := http.NewRequest(http.MethodGet, "/metrics", nil)
		h.ServeHTTP(w, r)
		return max(w.status, 200)
	}
	for what, c := range map[string]struct {
		listen, metrics string
		listeners       int
		onAPI           int
	}{
		"by default":      {"0.0.0.0:8080", "127.0.0.1:9464", 2, 404},
		"nowhere":         {"127.0.0.1:8080", "", 1, 404},
		"as the API does": {"127.0.0.1:8080", "127.0.0.1:8080", 1, 200},
	} {
		all := newServer(t, pgtest.DB(t), Config{Listen: c.listen, MetricsListen: c.metrics}).apiEndpoints()
		if len(all) != c.listeners || status(all[0].handler) != c.onAPI {
			t.Errorf("%s: %d listeners, /metrics of the API answers %d", what, len(all), status(all[0].handler))
		}
		if len(all) == 2 && (status(all[1].handler) != 200 || !strings.HasPrefix(all[1].address, "127.0.0.1:")) {
			t.Errorf("%s: %s answers %d", what, all[1].address, status(all[1].handler))
		}
	}
}

// value returns the value of a gauge or counter.
func value(t *testing.T, c prometheus.Collector) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	if err := r.Register(c); err != nil {
		t.Fatal(err)
	}
	found, err := r.Gather()
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	m := found[0].GetMetric()[0]
	return m.GetGauge().GetValue() + m.GetCounter().GetValue()
}

type recorded struct {
	header http.Header
	status int
}

func (r *recorded) Header() http.Header { return r.header }

func (r *recorded) Write(b []byte) (int, error) { return len(b), nil }

func (r *recorded) WriteHeader(status int) { r.status = status }

// A response that needs no body is sent although the body does not arrive. The connection
// is then closed, so that no client holds it with an unread body.
func TestUnreadBodiesAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	address, _ := listening(t,
		endpoint{name: "api", most: 100, handler: http.HandlerFunc(hello), limits: timeLimits{request: time.Hour, unread: 50 * time.Millisecond}})
	for what, header := range map[string]string{"length": "Content-Length: 1000", "chunks": "Transfer-Encoding: chunked"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			conn := dialed(t, address)
			_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\n"+header+"\r\n\r\n1\r\nh\r\n")
			got, err := io.ReadAll(conn)
			if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 200 OK") {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// A connection stays open after a request whose body was read.
func TestReadBodiesKeepTheConnection(t *testing.T) {
	t.Parallel()
	address, _ := listening(t,
		endpoint{name: "api", most: 100, limits: timeLimits{unread: time.Millisecond},
			handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				hello(w, r)
			})})
	conn := dialed(t, address)
	in := bufio.NewReader(conn)
	for range 3 {
		_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody")
		answer, err := http.ReadResponse(in, nil)
		if err != nil || answer.Close {
			t.Fatalf("%+v, %v", answer, err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		time.Sleep(5 * time.Millisecond)
	}
}
