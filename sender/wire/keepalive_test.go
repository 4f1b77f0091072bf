package wire

import (
	"context"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/dial"
	"lemma/pgtest"
)

// A connection that was idle gets no request while its server may be closing it.
func TestIdleConnectionsAreNotUsedForLong(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		header string
		http2  bool
		keep   time.Duration
	}{
		{"", false, 1500 * time.Millisecond},
		{"timeout=5", false, 4 * time.Second},
		{"max=9, Timeout=3", false, 2 * time.Second},
		{"timeout=72, max=1000", false, idleFor},
		{"timeout=1", false, 500 * time.Millisecond},
		{"timeout=soon", false, 1500 * time.Millisecond},
		{"timeout=5", true, idleFor},
	} {
		t.Run(c.header, func(t *testing.T) {
			t.Parallel()
			server := count(t, c.http2)
			client := overHTTP2(t)
			if !c.http2 {
				client = shared(t, dial.NewIdle(10, 10), uuid.New())
			}
			to, _ := url.Parse(server.url + "/?keep=" + url.QueryEscape(c.header))
			for _, step := range []struct {
				idle time.Duration
				made int64
			}{{0, 1}, {c.keep - 500*time.Millisecond, 1}, {c.keep, 2}} {
				if p := client.pools[originOf(to)]; p != nil {
					p.conns[0].since = p.conns[0].since.Add(-step.idle)
				}
				post(t, client, to.String())
				if made := server.made.Load(); made != step.made {
					t.Errorf("%d connections after %s", made, step.idle)
				}
			}
		})
	}
}

// A server that announces no time gets a connection for each request.
func TestServersThatKeepNoConnection(t *testing.T) {
	t.Parallel()
	server, client := count(t, false), shared(t, dial.NewIdle(10, 10), uuid.New())
	for range 3 {
		post(t, client, server.url+"/?keep=timeout%3D0")
	}
	if made := server.made.Load(); made != 3 {
		t.Errorf("%d connections", made)
	}
	server.want(t, 0)
}

// A connection that was opened for a request that no longer waited is idle since then.
func TestConnectionsThatWereNotUsed(t *testing.T) {
	t.Parallel()
	p := poolTo(t, func(int) error { return nil })
	p.mu.Lock()
	p.dialing++
	p.mu.Unlock()
	p.open()
	first := p.conns[0]
	c, _, err := p.take(t.Context())
	if err != nil || c.of != first {
		t.Fatalf("%+v, %v", c, err)
	}
	c.Release()
	p.done(c)
	if !first.fresh || first.ended != 0 {
		t.Error("a request counts that was not sent")
	}
	first.since = first.since.Add(-keepUnknown)
	if c, _, err = p.take(t.Context()); err != nil || c.of == first || p.brief {
		t.Errorf("%+v, %v", c, err)
	}
}

// A call without an answer says nothing of a connection of HTTP/2 on which others are in progress.
func TestUnansweredCallsKeepTheirConnection(t *testing.T) {
	t.Parallel()
	hangs := make(chan struct{})
	server := serveHTTP2(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hangs" {
			hangs <- struct{}{}
			<-r.Context().Done()
		}
	})
	c := overHTTP2(t)
	post(t, c, server)
	u, _ := url.Parse(server)
	p := c.pools[originOf(u)]
	first := p.conns[0]
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-hangs
		p.mu.Lock()
		first.since = first.since.Add(-time.Hour) // it was the only call for long
		p.mu.Unlock()
		<-hangs
		cancel()
	}()
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			_, _ = c.Post(ctx, Request{URL: u.JoinPath("hangs"), Header: http.Header{}, Body: []byte("x")})
		})
	}
	all.Wait()
	post(t, c, server)
	if len(p.conns) != 1 || p.conns[0] != first {
		t.Error("it was replaced")
	}
}

// Connections are closed when they may no longer be used, not when others are opened in their place: a
// server that takes only so many is not asked for more.
func TestOldConnectionsAreClosedInTime(t *testing.T) {
	t.Parallel()
	server, client := count(t, false), shared(t, dial.NewIdle(10, 10), uuid.New())
	post(t, client, server.url+"/?keep=timeout%3D3")
	pgtest.Eventually(t, idleFor/2, "it is closed", func() bool { return server.open.Load() == 0 })
	if made := server.made.Load(); made != 1 {
		t.Errorf("%d connections", made)
	}
}
