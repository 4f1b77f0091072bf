package lmtp

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/emersion/go-smtp"
)

// conns are the open connections of a server.
type conns struct {
	mu    sync.Mutex
	all   map[*conn]struct{}
	ended bool
}

// end ends the connections, each before its next command. While one receives a mail, it waits
// for that.
func (s *conns) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for c := range s.all {
		if !c.busy {
			_ = c.Conn.SetReadDeadline(longAgo)
		}
	}
}

// close closes the connections, whatever they do.
func (s *conns) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.all {
		_ = c.Conn.Close()
	}
}

var longAgo = time.Unix(1, 0) // as a deadline: its reads fail

// listener limits the lines of its connections.
type listener struct {
	net.Listener
	conns *conns
}

// Accept is part of net.Listener.
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	limited := &conn{Conn: c, of: l.conns}
	limited.limit.Store(mostLine)
	l.conns.add(limited)
	return limited, nil
}

func (s *conns) add(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*conn]struct{}{}
	}
	s.all[c] = struct{}{}
}

// conn is a connection whose lines are limited. The limit of smtp.Server holds for the
// lines of mails too: a mail with a longer one would be refused as a connection that
// breaks, and its sender would try again for days.
type conn struct {
	net.Conn
	limit atomic.Int64
	line  int64 // bytes of the current line
	of    *conns
	busy  bool // it receives a mail, or the mail is being handled and answered; guarded by of
}

// SetReadDeadline is part of net.Conn. The server calls it before each command.
func (c *conn) SetReadDeadline(at time.Time) error {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.of.ended && !c.busy {
		at = longAgo
	}
	return c.Conn.SetReadDeadline(at)
}

// Close is part of net.Conn.
func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.all, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func (c *conn) setBusy(busy bool) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.busy = busy
}

// Read fails with smtp.ErrTooLongLine in a line that is longer than the limit.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	for rest := p[:n]; len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			c.line += int64(len(rest))
		} else {
			c.line += int64(end)
		}
		if c.line > c.limit.Load() {
			return 0, smtp.ErrTooLongLine
		}
		if end < 0 {
			break
		}
		c.line, rest = 0, rest[end+1:]
	}
	return n, err
}
