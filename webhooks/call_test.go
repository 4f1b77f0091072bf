package webhooks

import (
	"context"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/dial"
)

func TestAnswers(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{
		200: "delivered", 201: "delivered", 204: "delivered", 299: "delivered",
		300: "failed", 301: "failed", 302: "failed", 304: "failed", 307: "failed", 308: "failed",
		400: "failed", 401: "failed", 404: "failed", 410: "failed", 422: "failed",
		408: "pending", 425: "pending", 429: "pending", 500: "pending", 502: "pending", 503: "pending", 599: "pending",
	} {
		v := classify(&http.Response{StatusCode: status})
		if v.state() != want || v.status != status {
			t.Errorf("%d: %s", status, v.state())
		}
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := "Wed, 21 Oct 2026 07:28:00 GMT"
	for text, want := range map[string]time.Duration{
		"": 0, "120": 2 * time.Minute, " 5 ": 5 * time.Second, "86400": time.Hour, "-1": 0, "soon": 0, "99999999999999999999": 0,
		"Wed, 21 Oct 2026 07:30:00 GMT": 2 * time.Minute, "Wed, 21 Oct 2026 07:00:00 GMT": 0, "Wed, 21 Oct 2037 07:00:00 GMT": time.Hour,
	} {
		if got := retryAfter(http.Header{"Retry-After": {text}, "Date": {now}}); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	b := setup(t, nil)
	b.written()
	b.receiver.answers(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "600")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	b.run(b.Webhooks, 1)
	if _, _, _, _, wait := b.row(); wait < 9*time.Minute {
		t.Errorf("due in %s", wait)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	elsewhere := newReceiver(t)
	for _, to := range []string{elsewhere.URL + "/stolen", "http://169.254.169.254/latest/meta-data/", "file:///etc/passwd", "/again"} {
		b.Exec(`delete from outbox`)
		b.written()
		b.receiver.answers(func(w http.ResponseWriter, q *http.Request) { http.Redirect(w, q, to, http.StatusTemporaryRedirect) })
		b.run(b.Webhooks, 1)
		if state, _, status, attempts, _ := b.row(); state != "failed" || status != 307 || attempts != 1 {
			t.Errorf("%s: %s with %d after %d", to, state, status, attempts)
		}
	}
	if len(elsewhere.all()) != 0 || len(b.receiver.all()) != 4 {
		t.Errorf("%d and %d calls", len(elsewhere.all()), len(b.receiver.all()))
	}
}

// Endpoints that offer HTTP/2 are called with HTTP/1.1.
func TestEndpointsAreCalledWithHTTP1(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	protocol := make(chan string, 1)
	endpoint := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) { protocol <- q.Proto }))
	endpoint.EnableHTTP2 = true
	endpoint.StartTLS()
	defer endpoint.Close()
	trusted := x509.NewCertPool()
	trusted.AddCert(endpoint.Certificate())
	b.client = newClient(dial.Dialer{AllowPrivate: true}, trusted, time.Minute, 1)
	e, _, err := b.Create(t.Context(), b.Workspace, NewEndpoint{ID: lemma.NewID(), Name: "modern", URL: endpoint.URL})
	b.Must(err)
	b.write(b.message(e))
	b.run(b.Webhooks, 1)
	if state, reason, _, _, _ := b.row(); state != "delivered" {
		t.Fatalf("%s, %s", state, reason)
	}
	if got := <-protocol; got != "HTTP/1.1" {
		t.Errorf("called with %s", got)
	}
}

// The addresses of a name are checked when they are dialled.
func TestNamesOfPrivateAddresses(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *Options) { o.AllowPrivate = false })
	_, port, err := net.SplitHostPort(b.receiver.Listener.Addr().String())
	b.Must(err)
	for name, address := range map[string]string{
		"loopback": "127.0.0.1", "mapped": "::ffff:127.0.0.1", "metadata": "169.254.169.254", "private": "10.0.0.1",
		"shared": "100.64.0.1", "local": "fe80::1",
	} {
		b.client = newClient(dial.Dialer{Resolve: func(context.Context, string, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr(address)}, nil
		}}, nil, time.Second, 1)
		e, _, err := b.Create(t.Context(), b.Workspace, NewEndpoint{ID: uuid.New(), Name: name, URL: "https://" + name + ".example.com:" + port})
		b.Must(err)
		b.Exec(`delete from outbox`)
		b.write(b.message(e))
		b.run(b.Webhooks, 1)
		if state, reason, status, _, _ := b.row(); state != "failed" || reason != ReasonForbidden || status != 0 {
			t.Errorf("%s: %s, %s, %d", name, state, reason, status)
		}
	}
	if len(b.receiver.all()) != 0 || len(b.settled.list()) != 6 {
		t.Errorf("%d calls, %d ends", len(b.receiver.all()), len(b.settled.list()))
	}
}

// The endpoint was created while private addresses were allowed.
func TestAddressThatIsNoLongerAllowed(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.written()
	b.run(b.another(b.Pool, Options{}), 1)
	if state, reason, _, _, _ := b.row(); state != "failed" || reason != ReasonURL || len(b.receiver.all()) != 0 {
		t.Errorf("%s, %s after %d calls", state, reason, len(b.receiver.all()))
	}
}

func TestCallsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		want   string
		answer func(w http.ResponseWriter, q *http.Request)
	}{
		"no answer": {ReasonTimeout, func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }},
		"closes":    {ReasonNetwork, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		"long head": {ReasonNetwork, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("x", strings.Repeat("x", 100<<10)) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, func(o *Options) {
				if o.Timeout = time.Minute; c.want == ReasonTimeout {
					o.Timeout = 300 * time.Millisecond
				}
			})
			b.written()
			b.receiver.answers(c.answer)
			b.run(b.Webhooks, 1)
			if state, reason, status, _, _ := b.row(); state != "pending" || reason != c.want || status != 0 {
				t.Errorf("%s, %s, %d", state, reason, status)
			}
		})
	}
}

// The status of an answer counts, even if its body never ends.
func TestEndlessAnswer(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *Options) { o.Timeout = time.Minute })
	b.written()
	b.receiver.answers(func(w http.ResponseWriter, q *http.Request) {
		for q.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	started := time.Now()
	b.run(b.Webhooks, 1)
	if state, _, _, _, _ := b.row(); state != "delivered" || time.Since(started) > 30*time.Second {
		t.Errorf("%s after %s", state, time.Since(started))
	}
}

// A connection whose TLS handshake is never answered is closed with its call.
func TestHandshakesEndWithTheirCalls(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *Options) { o.Timeout = 200 * time.Millisecond })
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	b.Must(err)
	defer silent.Close()
	e, _, err := b.Create(t.Context(), b.Workspace, NewEndpoint{ID: uuid.New(), Name: "silent", URL: "https://" + silent.Addr().String()})
	b.Must(err)
	b.write(b.message(e))
	closed := make(chan error, 1)
	go func() {
		conn, err := silent.Accept()
		if err == nil {
			_, err = io.Copy(io.Discard, conn)
		}
		closed <- err
	}()
	b.run(b.Webhooks, 1)
	select {
	case err := <-closed:
		b.Must(err)
	case <-time.After(20 * time.Second):
		t.Error("the connection is still open")
	}
	if status, reason, _, _, _ := b.row(); status != "pending" || reason != ReasonTimeout {
		t.Errorf("%s, %s", status, reason)
	}
}
