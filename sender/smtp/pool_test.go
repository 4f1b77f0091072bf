package smtp

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"lemma/dial"
	"lemma/pgtest"
	"lemma/sender"
)

type counting struct {
	net.Conn
	writes *int
}

func (c *counting) Write(b []byte) (int, error) {
	*c.writes++
	return c.Conn.Write(b)
}

// Many callers share few connections, and each message gets its own answer.
func TestSharesConnections(t *testing.T) {
	t.Parallel()
	s := serve(t, &server{offers: "PIPELINING"})
	c := carrierTo(t, s, `"max_connections":3`)
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			for _, r := range c.Send(t.Context(), []sender.Message{message(10 * i), message(10*i + 1)}) {
				if r.Outcome != sender.Accepted {
					t.Errorf("%+v", r)
				}
			}
		})
	}
	all.Wait()
	if s.connections() > 3 {
		t.Errorf("%d connections, want at most 3", s.connections())
	}
	for id, n := range s.copies() {
		if n != 1 {
			t.Errorf("%s arrived %d times", id, n)
		}
	}
	if n := len(s.copies()); n != 24 {
		t.Errorf("%d messages, want 24", n)
	}
}

func TestWaitsForASlotOnlyAsLongAsCtx(t *testing.T) {
	t.Parallel()
	s := serve(t, &server{offers: "PIPELINING"})
	c := carrierTo(t, s, `"max_connections":1`)
	l := c.pool.take(t.Context())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if r := c.Send(ctx, messages(1)); r[0].Outcome != sender.NotCalled {
		t.Errorf("%+v", r)
	}
	c.pool.give(l)
}

func TestIdleConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	s := serve(t, &server{offers: "PIPELINING"})
	c := carrierTo(t, s, "")
	c.Send(t.Context(), messages(1))
	c.pool.sweep(time.Now().Add(idleFor - time.Second))
	if s.receiptFor("QUIT") != 0 {
		t.Error("a connection was closed too early")
	}
	c.pool.sweep(time.Now().Add(idleFor + time.Second))
	if s.receiptFor("QUIT") != 1 {
		t.Error("a connection that rested for long is still open")
	}
	c.Send(t.Context(), messages(1))
	c.Close()
	if s.receiptFor("QUIT") != 2 {
		t.Error("Close does not send QUIT")
	}
}

// The pause after a failed dial doubles up to a bound, and a success ends it.
func TestBackoff(t *testing.T) {
	t.Parallel()
	p := newPool(1, dial.NewIdle(1, 1))
	for range 20 {
		p.dialed(p.until, &refusal{reason: "connect_failed"})
	}
	if wait := time.Until(p.until); wait < mostBackoff/2 || wait > mostBackoff {
		t.Errorf("the pause is %v, want about %v", wait, mostBackoff)
	}
	failures := p.failures
	p.dialed(time.Now(), &refusal{reason: "tls_failed"}) // began before the pause: one of a wave
	if p.failures != failures || p.backoff(time.Now()).reason != "connect_failed" {
		t.Error("one wave of dials counts more than once")
	}
	p.dialed(time.Now(), nil)
	if p.backoff(time.Now()) != nil {
		t.Error("the pause outlives a success")
	}
}

// connected is a session whose other end a test holds.
func connected(t *testing.T) (*session, net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	near, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = near.Close()
		_ = far.Close()
	})
	s := &session{conn: near, timeout: time.Minute}
	s.src = near
	return s, far
}

// An answer that has arrived counts, even if the time was over before it was read.
func TestAnAnswerThatHasArrivedCounts(t *testing.T) {
	t.Parallel()
	s, far := connected(t)
	if _, err := far.Write([]byte("250 ok\r\n")); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, 10*time.Second, "the answer has arrived", func() bool { return !s.alive() })
	s.interrupt()
	if a, err := s.answer(); err != nil || a.code != 250 {
		t.Errorf("%d, %v", a.code, err)
	}
}

// Once ctx has ended, no new deadline brings a connection back.
func TestInterruptLasts(t *testing.T) {
	t.Parallel()
	s, _ := connected(t)
	s.interrupt()
	s.arm()
	if n, err := s.conn.Write([]byte("x")); n != 0 || err == nil {
		t.Errorf("%d bytes left after the end: %v", n, err)
	}
}

// failing accepts some bytes of a body and then breaks.
type failing struct {
	net.Conn
	accepts int
}

func (f *failing) Write(b []byte) (int, error) {
	if len(b) > 300 { // a body, not an envelope
		_ = f.Close()
		return f.accepts, net.ErrClosed
	}
	return f.Conn.Write(b)
}

// The first byte of the body divides what is known from what is not.
func TestFirstByteOfTheBody(t *testing.T) {
	t.Parallel()
	for accepts, want := range map[int]result{
		0: {sender.NotAccepted, true, 0, "connection_lost"},
		1: {sender.Unknown, false, 0, "connection_lost"},
	} {
		s := serve(t, &server{offers: "PIPELINING"})
		c := carrierTo(t, s, "")
		conn, refusal := c.dial(t.Context())
		if refusal != nil {
			t.Fatal(refusal)
		}
		conn.conn = &failing{Conn: conn.conn, accepts: accepts}
		l := c.pool.take(t.Context())
		l.conn = conn
		c.pool.give(l)
		got := results(c.Send(t.Context(), messages(2)))
		if got[0] != want || got[1].Outcome != sender.Accepted {
			t.Errorf("%d bytes accepted: %+v, want %+v and accepted", accepts, got, want)
		}
	}
}

// What is on its way is not written over, whatever is skipped behind it.
func TestDraftOnItsWayIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := serve(t, &server{offers: "PIPELINING"})
	all := messages(40)
	for i := range all {
		if i%7 == 3 || i%5 == 2 {
			all[i].Subject = "broken\n"
		}
	}
	for i, r := range carrierTo(t, s, "").Send(t.Context(), all) {
		if want := all[i].Subject != "broken\n"; (r.Outcome == sender.Accepted) != want {
			t.Errorf("message %d: %+v", i, r)
		}
	}
	for id, n := range s.copies() {
		if n != 1 {
			t.Errorf("%s arrived %d times", id, n)
		}
	}
}
