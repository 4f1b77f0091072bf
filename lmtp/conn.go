package lmtp

import (
	"bytes"
	"net"
	"sync/atomic"

	"github.com/emersion/go-smtp"
)

// listener limits the lines of its connections.
type listener struct{ net.Listener }

// Accept is part of net.Listener.
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	limited := &conn{Conn: c}
	limited.limit.Store(mostLine)
	return limited, nil
}

// conn is a connection whose lines are limited. The limit of smtp.Server holds for the
// lines of mails too: a mail with a longer one would be refused as a connection that
// breaks, and its sender would try again for days.
type conn struct {
	net.Conn
	limit atomic.Int64
	line  int64 // bytes of the current line
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
