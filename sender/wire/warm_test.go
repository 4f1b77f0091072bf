package wire

import (
	"context"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"lemma/sender"
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

// A server may take fewer requests at a time from some moment on (RFC 9113, 6.5.2). A call that has
// capacity by the earlier number, and does not begin, is made over another connection in time to be
// answered.
func TestAServerThatTakesFewerRequestsAtATime(t *testing.T) {
	t.Parallel()
	u, _ := url.Parse(serveFrames(t, func(f *http2.Framer, n int, stream uint32) {
		if n == 2 {
			_ = f.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
		}
		answer(f, stream)
	}))
	c := overHTTP2(t)
	c.options.Timeout = 8 * time.Second
	post(t, c, u.String())
	server := c.pools[originOf(u)]
	var waiting []*capacity
	for range 3 {
		one, _, err := server.take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, one)
	}
	post(t, c, u.String())
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), c.options.Timeout)
	defer cancel()
	late := call{Client: c, server: server, caller: ctx, ctx: ctx, begun: begun,
		request: Request{URL: u, Header: http.Header{}, Body: []byte("x")}}
	if _, failure := late.send(waiting[0]); failure == nil || !failure.again || failure.Outcome != sender.NotAccepted {
		t.Errorf("%+v", failure)
	}
	if a, failure := late.try(); failure != nil || a.Status != http.StatusOK || time.Since(begun) > c.options.Timeout/2 {
		t.Errorf("%+v, %+v after %s", a, failure, time.Since(begun))
	}
}

// A call that has no connection until the server would have little time for its answer is not made.
func TestCallsLeaveTimeForTheAnswer(t *testing.T) {
	t.Parallel()
	server := serveHTTP2(t, func(http.ResponseWriter, *http.Request) { t.Error("a request was made") })
	c := overHTTP2(t)
	c.options.Timeout = 2 * time.Second
	u, _ := url.Parse(server)
	p, err := c.pool(originOf(u))
	if err != nil {
		t.Fatal(err)
	}
	p.rest = time.Now().Add(c.options.Timeout * 9 / 10)
	_, failure := c.Post(t.Context(), Request{URL: u, Header: http.Header{}, Body: []byte("x")})
	if failure == nil || failure.Outcome != sender.NotAccepted || failure.Reason != "timeout" || time.Now().After(p.rest) {
		t.Errorf("%+v", failure)
	}
}
