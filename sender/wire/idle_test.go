package wire

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/dial"
	"lemma/pgtest"
	"lemma/sender"
)

// counted is a server that counts its open connections, and holds requests to /held until
// the test releases them. Its answers have the Keep-Alive of the query.
type counted struct {
	url  string
	open atomic.Int64
	made atomic.Int64

	held    chan struct{} // receives a token for each request that is held
	release chan struct{}
}

func count(t *testing.T, http2 bool) *counted {
	t.Helper()
	s := &counted{held: make(chan struct{}, 100), release: make(chan struct{})}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if keep := r.URL.Query().Get("keep"); keep != "" {
			w.Header().Set("Keep-Alive", keep)
		}
		if r.URL.Path == "/held" {
			s.held <- struct{}{}
			<-s.release
		}
	}))
	if http2 {
		server.Config.Protocols = new(http.Protocols)
		server.Config.Protocols.SetUnencryptedHTTP2(true)
	}
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			s.open.Add(1)
			s.made.Add(1)
		case http.StateClosed:
			s.open.Add(-1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *counted) want(t *testing.T, open int64) {
	t.Helper()
	pgtest.Eventually(t, 10*time.Second, "the server has the connections that it should", func() bool { return s.open.Load() == open })
}

// shared is a client of a workspace.
func shared(t *testing.T, idle *dial.Idle, workspace uuid.UUID) *Client {
	t.Helper()
	c := New(Options{Operator: Operator{AllowPrivate: true, Idle: idle}, Workspace: workspace})
	t.Cleanup(c.Close)
	return c
}

func post(t *testing.T, c *Client, to string) {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	a, failure := c.Post(context.Background(), Request{URL: u, Header: http.Header{}, Body: []byte("x")})
	if failure != nil || a.Status != 200 {
		t.Errorf("%+v, %+v", a, failure)
	}
}

// All clients of a workspace, and of a process, share a bound of idle connections. The one
// that was used least recently is closed, and is replaced when it is needed.
func TestClientsShareABoundOfIdleConnections(t *testing.T) {
	t.Parallel()
	idle, workspace := dial.NewIdle(3, 2), uuid.New()
	var clients []*Client
	var servers []*counted
	for n := range 5 {
		of := workspace
		if n == 0 || n == 4 {
			of = uuid.New()
		}
		clients, servers = append(clients, shared(t, idle, of)), append(servers, count(t, false))
	}
	for _, n := range []int{0, 1, 2, 1, 3} {
		post(t, clients[n], servers[n].url)
	}
	servers[2].want(t, 0)
	post(t, clients[4], servers[4].url)
	servers[1].want(t, 0)
	for _, n := range []int{0, 3, 4} {
		servers[n].want(t, 1)
	}
	post(t, clients[2], servers[2].url)
	if n := servers[2].made.Load(); n != 2 {
		t.Errorf("%d connections were opened, want 2", n)
	}
}

// Connections with requests, or for requests that wait, do not count and are not closed.
func TestUsedConnectionsAreNotClosed(t *testing.T) {
	t.Parallel()
	for name, http2 := range map[string]bool{"one request at a time": false, "many": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			idle, workspace := dial.NewIdle(1, 1), uuid.New()
			kept, keptServer := shared(t, idle, workspace), count(t, false)
			post(t, kept, keptServer.url)
			busy, busyServer := shared(t, idle, workspace), count(t, http2)
			if http2 {
				busy.transport.Protocols.SetHTTP1(false)
				busy.transport.Protocols.SetUnencryptedHTTP2(true)
			}
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() { post(t, busy, busyServer.url+"/held") })
			}
			for range 4 {
				<-busyServer.held
			}
			open := busyServer.open.Load()
			if http2 {
				post(t, busy, busyServer.url) // on the same connection, which is not idle after it
			}
			post(t, kept, keptServer.url)
			if n := keptServer.made.Load(); n != 1 {
				t.Errorf("the idle connection was closed: %d were opened", n)
			}
			other, otherServer := shared(t, idle, workspace), count(t, false)
			post(t, other, otherServer.url)
			keptServer.want(t, 0)
			busyServer.want(t, open)
			close(busyServer.release)
			all.Wait()
			otherServer.want(t, 0)
			busyServer.want(t, 1)
		})
	}
}

// A connection that a request has is not closed, although it was idle when that was decided.
func TestAUsedConnectionIsNotEvicted(t *testing.T) {
	t.Parallel()
	s := count(t, false)
	c := shared(t, dial.NewIdle(1, 1), uuid.New())
	post(t, c, s.url)
	u, _ := url.Parse(s.url)
	p := c.pools[originOf(u)]
	taken, _, err := p.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	taken.of.idle.Close()
	taken.Release()
	p.done(taken)
	post(t, c, s.url)
	if n := s.made.Load(); n != 1 {
		t.Errorf("%d connections were opened, want 1", n)
	}
}

// A connection that nothing waits for any more, when it is open at last, is idle.
func TestAConnectionThatIsTooLateIsIdle(t *testing.T) {
	t.Parallel()
	idle, workspace := dial.NewIdle(1, 1), uuid.New()
	kept, keptServer := shared(t, idle, workspace), count(t, false)
	post(t, kept, keptServer.url)
	late, s := shared(t, idle, workspace), count(t, false)
	post(t, late, s.url)
	keptServer.want(t, 0)
	post(t, kept, keptServer.url)
	s.want(t, 0)
	u, _ := url.Parse(s.url)
	late.pools[originOf(u)].mu.Lock()
	late.pools[originOf(u)].dialing++
	late.pools[originOf(u)].mu.Unlock()
	late.pools[originOf(u)].open()
	keptServer.want(t, 0)
	s.want(t, 1)
}

// A connection that was opened for a request, which then needed none, is idle when no other
// request waits.
func TestAConnectionThatWasNotNeededIsIdle(t *testing.T) {
	t.Parallel()
	idle, workspace, evicted := dial.NewIdle(1, 1), uuid.New(), false
	idle.Add(&dial.IdleConn{Workspace: workspace, Close: func() { evicted = true }})
	u, _ := url.Parse(count(t, false).url)
	p, err := shared(t, idle, workspace).pool(originOf(u))
	if err != nil {
		t.Fatal(err)
	}
	p.enter()
	p.enter()
	p.mu.Lock()
	p.dialing++
	p.mu.Unlock()
	p.open()
	if p.exit(); evicted {
		t.Error("a connection for a request that waits is idle")
	}
	if p.exit(); !evicted {
		t.Error("a connection that no request waits for is not idle")
	}
}

// Connections that are closed by time, by their server or with their client no longer count.
func TestClosedConnectionsDoNotCount(t *testing.T) {
	t.Parallel()
	idle, workspace := dial.NewIdle(2, 2), uuid.New()
	kept, keptServer := shared(t, idle, workspace), count(t, false)
	post(t, kept, keptServer.url)
	s := count(t, false)
	for range 3 {
		c := shared(t, idle, workspace)
		post(t, c, s.url)
		c.Close()
	}
	swept := shared(t, idle, workspace)
	post(t, swept, s.url)
	for _, p := range swept.pools {
		p.sweep(time.Now().Add(time.Hour))
	}
	post(t, shared(t, idle, workspace), s.url)
	keptServer.want(t, 1)
	s.want(t, 1)
}

// The client of an account counts its connections with those of its workspace.
func TestOptionsOfAnAccount(t *testing.T) {
	t.Parallel()
	a := sender.Account{WorkspaceID: uuid.New(), ProviderID: uuid.New()}
	o := Operator{Idle: dial.NewIdle(1, 1)}
	if got := o.Options(a, time.Second, 1); got.Workspace != a.WorkspaceID || got.Idle != o.Idle {
		t.Errorf("%+v", got)
	}
}
