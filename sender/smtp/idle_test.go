package smtp

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"lemma/dial"
	"lemma/pgtest"
	"lemma/sender"
)

// openShared opens a carrier of a workspace for a server of its own.
func openShared(t *testing.T, idle *dial.Idle, workspace uuid.UUID) (*carrier, *server) {
	t.Helper()
	s := serve(t, &server{offers: "PIPELINING"})
	host, port, _ := net.SplitHostPort(s.address)
	opened, err := Kind(Options{AllowPrivate: true, Idle: idle}).Open(sender.Account{WorkspaceID: workspace,
		Config: fmt.Appendf(nil, `{"host":%q,"port":%s,"tls":"none"}`, host, port)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(opened.Close)
	return opened.(*carrier), s
}

func mustSend(t *testing.T, c *carrier) {
	t.Helper()
	if r := c.Send(t.Context(), messages(1)); r[0].Outcome != sender.Accepted {
		t.Fatalf("%+v", r[0])
	}
}

// All carriers of a workspace, and of a process, share a bound of idle connections. The one
// that was used least recently is closed, with QUIT, and is replaced when it is needed.
func TestCarriersShareABoundOfIdleConnections(t *testing.T) {
	t.Parallel()
	idle, workspace := dial.NewIdle(3, 2), uuid.New()
	wantClosed := func(s *server, what string) {
		t.Helper()
		pgtest.Eventually(t, 10*time.Second, what+" is closed", func() bool { return s.receiptFor("QUIT") == 1 })
	}
	first, firstServer := openShared(t, idle, workspace)
	second, secondServer := openShared(t, idle, workspace)
	third, thirdServer := openShared(t, idle, workspace)
	other, otherServer := openShared(t, idle, uuid.New())
	mustSend(t, other)
	mustSend(t, first)
	mustSend(t, second)
	mustSend(t, first)
	mustSend(t, third)
	wantClosed(secondServer, "the oldest of the workspace")
	last, lastServer := openShared(t, idle, uuid.New())
	mustSend(t, last)
	wantClosed(firstServer, "the oldest of the workspace with the most")
	for _, s := range []*server{thirdServer, otherServer, lastServer} {
		if s.receiptFor("QUIT") != 0 {
			t.Error("another connection is closed")
		}
	}
	mustSend(t, second)
	if n := secondServer.connections(); n != 2 {
		t.Errorf("the carrier has opened %d connections, want 2", n)
	}
}

// Lines that are closed by time, or with their carrier, no longer count.
func TestClosedLinesDoNotCount(t *testing.T) {
	t.Parallel()
	idle, workspace := dial.NewIdle(2, 2), uuid.New()
	kept, keptServer := openShared(t, idle, workspace)
	mustSend(t, kept)
	for range 2 {
		closed, _ := openShared(t, idle, workspace)
		mustSend(t, closed)
		closed.Close()
	}
	swept, _ := openShared(t, idle, workspace)
	mustSend(t, swept)
	swept.pool.sweep(time.Now().Add(idleFor + time.Second))
	used, _ := openShared(t, idle, workspace)
	mustSend(t, used)
	l := used.pool.take(t.Context())
	last, _ := openShared(t, idle, workspace)
	mustSend(t, last)
	last.Close()
	used.pool.give(l)
	if len(kept.pool.resting) != 1 || keptServer.receiptFor("QUIT") != 0 {
		t.Error("a connection was closed for others that are not idle")
	}
}

// A line that is used again is not closed, although it was idle when that was decided.
func TestAUsedLineIsNotDismissed(t *testing.T) {
	t.Parallel()
	c, s := openShared(t, dial.NewIdle(1, 1), uuid.New())
	mustSend(t, c)
	l := c.pool.take(t.Context())
	l.idle.Close()
	c.pool.give(l)
	mustSend(t, c)
	if s.connections() != 1 {
		t.Errorf("%d connections, want 1", s.connections())
	}
}

// A connection that is closed does not wait for a server that reads nothing: that may be of another
// workspace, and TLS would wait 5 s.
func TestClosingDoesNotWait(t *testing.T) {
	t.Parallel()
	now := time.Now() // certificates are of the time outside of the bubble
	offered, roots := certificate(t)
	offered.SessionTicketsDisabled = true // the server would wait until they are read
	for name, c := range map[string]struct {
		end  func(*pool, *line)
		want time.Duration
	}{
		"for another one": {func(_ *pool, l *line) { l.idle.Close() }, dismissTime},
		"for good":        {func(p *pool, _ *line) { p.close() }, quitTime},
		"after a failure": {func(_ *pool, l *line) { l.hangUp() }, 0},
	} {
		for _, secure := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				defer far.Close()
				s := &session{conn: near}
				if secure {
					server := make(chan error)
					go func() { server <- tls.Server(far, offered).Handshake() }()
					client := tls.Client(near, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", Time: func() time.Time { return now }})
					if err := errors.Join(client.Handshake(), <-server); err != nil {
						t.Fatal(err)
					}
					s.conn = client
				}
				s.src = s.conn
				p := newPool(1, dial.NewIdle(1, 1))
				l := p.take(t.Context())
				l.conn = s
				p.give(l)
				begun := time.Now()
				c.end(p, l)
				if took := time.Since(begun); took != c.want {
					t.Errorf("%s, with TLS %v: it took %s, want %s", name, secure, took, c.want)
				}
			})
		}
	}
}

// A server that reads is not waited for when its connection is closed for another one.
func TestDismissingSendsQuit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		got := make(chan string)
		go func() { text, _ := io.ReadAll(far); got <- string(text) }()
		p := newPool(1, dial.NewIdle(1, 1))
		l := p.take(t.Context())
		l.conn = &session{conn: near}
		l.conn.src = near
		p.give(l)
		begun := time.Now()
		l.idle.Close()
		if took, text := time.Since(begun), <-got; took != 0 || text != "QUIT\r\n" {
			t.Errorf("it took %s, and sent %q", took, text)
		}
	})
}

// An idle line keeps no large message.
func TestIdleLinesAreSmall(t *testing.T) {
	t.Parallel()
	c := carrierTo(t, serve(t, &server{offers: "PIPELINING"}), "")
	all := messages(3)
	all[0].HTML = strings.Repeat("x", 2*mostDraft)
	c.Send(t.Context(), all)
	drafts := c.pool.resting[0].drafts
	if cap(drafts[0].mail) > mostDraft || cap(drafts[1].mail) > mostDraft {
		t.Errorf("the buffers have %d and %d bytes", cap(drafts[0].mail), cap(drafts[1].mail))
	}
	if cap(drafts[0].mail)+cap(drafts[1].mail) == 0 {
		t.Error("small buffers are not kept")
	}
}
