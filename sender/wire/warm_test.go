package wire

import (
	"net/http"
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
		c, server := serveTLS(t, streams, func(http.ResponseWriter, *http.Request) {})
		var all sync.WaitGroup
		for range 60 {
			all.Go(func() { post(t, c, server) })
		}
		all.Wait()
	}
}

// A first request for which a server hangs delays the others on the connection for a moment.
func TestAFirstRequestThatHangs(t *testing.T) {
	t.Parallel()
	hanging, release := make(chan struct{}), make(chan struct{})
	server := serveHTTP2(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hangs" {
			close(hanging)
			<-release
		}
	})
	c := overHTTP2(t)
	var hangs sync.WaitGroup
	hangs.Go(func() { post(t, c, server+"/hangs") })
	<-hanging
	for i := range 10 {
		begun := time.Now()
		post(t, c, server)
		if took := time.Since(begun); took > 10*warmTime || i > 0 && took > warmTime/2 {
			t.Errorf("request %d takes %s", i, took)
		}
	}
	close(release)
	hangs.Wait()
	u, _ := url.Parse(server)
	if n := len(c.pools[originOf(u)].conns); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// A server that ends each connection after an answer takes as many requests at a time as others.
func TestAServerThatEndsItsConnections(t *testing.T) {
	t.Parallel()
	const together = 20 // requests after the first one, which are answered when all have come
	var come atomic.Int32
	all := make(chan struct{})
	c, server := serveTLS(t, 0, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		n := come.Add(1)
		if n == together+1 {
			close(all)
		}
		if n > 1 {
			select {
			case <-all:
			case <-r.Context().Done():
			}
		}
	})
	begun := time.Now()
	var sent sync.WaitGroup
	for range 1 + together {
		sent.Go(func() { post(t, c, server) })
	}
	sent.Wait()
	if took := time.Since(begun); took >= warmTime { // each connection was left to one request
		t.Errorf("they take %s", took)
	}
}
