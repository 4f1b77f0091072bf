package sendertest

import (
	"crypto/x509"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lemma/sender/trace"
)

// Reply is what a server does with a request. The zero value answers 200 without a
// body.
type Reply struct {
	Status int
	Header map[string]string
	Body   string

	Hang  bool // answers nothing until the client gives up
	Drop  bool // ends the stream (HTTP/2) or the connection (HTTP/1.1) without an answer
	Break bool // does that after the body's first half

	Endless bool // writes a body until the client gives up
	Trickle bool // the same, a byte at a time
}

// Received is a request as a server has received it.
type Received struct {
	Path, Query string
	Host, Proto string
	Header      http.Header
	Body        []byte
}

// HTTPServer is a provider's server over TLS, for carriers on package wire. It keeps
// all requests.
type HTTPServer struct {
	URL   string
	Roots *x509.CertPool // trusts the server
	Trace *trace.Trace   // of the accounts at the server; nil: none
	Hides bool           // accounts at the server are opened without Operator.ShowPrivate

	written atomic.Int64 // bytes of endless bodies

	mu       sync.Mutex
	received []Received
	done     chan struct{}
	server   *httptest.Server
	ended    sync.Once
}

// ServeHTTPS starts a server that replies to each request as script wants.
func ServeHTTPS(t *testing.T, http2 bool, script func(Received) Reply) *HTTPServer {
	t.Helper()
	s := &HTTPServer{done: make(chan struct{})}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client gave up: no whole request
		}
		one := Received{Path: r.URL.EscapedPath(), Query: r.URL.RawQuery, Host: r.Host, Proto: r.Proto,
			Header: maps.Clone(r.Header), Body: body}
		s.mu.Lock()
		s.received = append(s.received, one)
		s.mu.Unlock()
		s.reply(w, r, script(one))
	}))
	server.EnableHTTP2 = http2
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	s.server = server
	t.Cleanup(s.Stop)
	s.URL, s.Roots = server.URL, x509.NewCertPool()
	s.Roots.AddCert(server.Certificate())
	return s
}

func (s *HTTPServer) reply(w http.ResponseWriter, r *http.Request, reply Reply) {
	if reply.Hang {
		select {
		case <-r.Context().Done():
		case <-s.done:
		case <-time.After(time.Minute):
		}
	}
	if reply.Hang || reply.Drop {
		panic(http.ErrAbortHandler)
	}
	for name, value := range reply.Header {
		w.Header().Set(name, value)
	}
	if reply.Status != 0 {
		w.WriteHeader(reply.Status)
	}
	if reply.Endless || reply.Trickle {
		s.writeOn(w, r, reply.Trickle)
		return
	}
	if reply.Break {
		_, _ = io.WriteString(w, reply.Body[:len(reply.Body)/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = io.WriteString(w, reply.Body)
}

// writeOn writes a body until the client gives up.
func (s *HTTPServer) writeOn(w http.ResponseWriter, r *http.Request, slowly bool) {
	part, pause := make([]byte, 4<<10), time.Duration(0)
	if slowly {
		part, pause = part[:1], 50*time.Millisecond
	}
	for {
		n, err := w.Write(part)
		s.written.Add(int64(n))
		if err != nil || http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-s.done:
			return
		case <-time.After(pause):
		}
	}
}

// Certificate is that of the server.
func (s *HTTPServer) Certificate() *x509.Certificate { return s.server.Certificate() }

// Stop ends the server, with the requests that hang.
func (s *HTTPServer) Stop() {
	s.ended.Do(func() {
		close(s.done)
		s.server.Close()
	})
}

// Received returns the requests for which match is true.
func (s *HTTPServer) Received(match func(Received) bool) (all []Received) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.received {
		if match(r) {
			all = append(all, r)
		}
	}
	return all
}
