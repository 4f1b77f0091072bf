package wire

import (
	"net/url"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/dial"
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

// A server that announces a second or less gets a connection for each request.
func TestServersThatKeepNoConnection(t *testing.T) {
	t.Parallel()
	server, client := count(t, false), shared(t, dial.NewIdle(10, 10), uuid.New())
	for range 3 {
		post(t, client, server.url+"/?keep=timeout%3D1")
	}
	if made := server.made.Load(); made != 3 {
		t.Errorf("%d connections", made)
	}
	server.want(t, 1)
}
