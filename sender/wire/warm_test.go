package wire

import (
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A burst on a new connection to a server that takes few requests at a time is answered, as by APNs,
// which takes one until it has seen a token.
func TestABurstToAServerOfFewStreams(t *testing.T) {
	t.Parallel()
	for _, streams := range []int{1, 3, 20} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		server.EnableHTTP2 = true
		server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: streams}
		server.StartTLS()
		defer server.Close()
		roots := x509.NewCertPool()
		roots.AddCert(server.Certificate())
		c := New(Options{Operator: Operator{AllowPrivate: true, Roots: roots}})
		defer c.Close()
		var all sync.WaitGroup
		for range 60 {
			all.Go(func() { post(t, c, server.URL) })
		}
		all.Wait()
	}
}

// A first request for which a server hangs delays the others on the connection for a moment.
func TestAFirstRequestThatHangs(t *testing.T) {
	t.Parallel()
	hanging, release := make(chan struct{}), make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hangs" {
			close(hanging)
			<-release
		}
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	c := overHTTP2(t)
	var hangs sync.WaitGroup
	hangs.Go(func() { post(t, c, server.URL+"/hangs") })
	<-hanging
	for i := range 10 {
		begun := time.Now()
		post(t, c, server.URL)
		if took := time.Since(begun); took > 10*warmTime || i > 0 && took > warmTime/2 {
			t.Errorf("request %d takes %s", i, took)
		}
	}
	close(release)
	hangs.Wait()
	u, _ := url.Parse(server.URL)
	if n := len(c.pools[originOf(u)].conns); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// A server that ends each connection after an answer takes as many requests at a time as others.
func TestAServerThatEndsItsConnections(t *testing.T) {
	t.Parallel()
	var at, most atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n := at.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer at.Add(-1)
		w.Header().Set("Connection", "close")
		time.Sleep(50 * time.Millisecond)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	c := New(Options{Operator: Operator{AllowPrivate: true, Roots: roots}})
	defer c.Close()
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() { post(t, c, server.URL) })
	}
	all.Wait()
	if n := most.Load(); n < 10 {
		t.Errorf("%d requests at a time", n)
	}
}
