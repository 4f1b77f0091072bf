package dial

import (
	"net"
	"sync"
	"time"
)

// Bounds of a write.
const (
	writeTime = 10 * time.Second // for the peer to receive the next writeSize bytes
	writeSize = 32 << 10
)

// timely is a connection each of whose writes ends in time. Package tls also writes while it
// reads: it answers each KeyUpdate of TLS 1.3 (RFC 8446, 4.6.3), under a lock that Close waits
// for. A peer that sends many and receives nothing would hold a call, and its Close, for ever.
type timely struct {
	net.Conn
	each time.Duration // for a write of writeSize

	mu    sync.Mutex
	until time.Time // the deadline of the caller; zero: none
}

// Write is part of net.Conn.
func (c *timely) Write(b []byte) (n int, err error) {
	for {
		if err := c.Conn.SetWriteDeadline(c.earliest(time.Now().Add(c.each))); err != nil {
			return n, err
		}
		part, err := c.Conn.Write(b[n:min(len(b), n+writeSize)])
		if n += part; err != nil || n == len(b) {
			return n, err
		}
	}
}

// SetDeadline is part of net.Conn.
func (c *timely) SetDeadline(t time.Time) error {
	c.keep(t)
	return c.Conn.SetDeadline(t)
}

// SetWriteDeadline is part of net.Conn.
func (c *timely) SetWriteDeadline(t time.Time) error {
	c.keep(t)
	return c.Conn.SetWriteDeadline(t)
}

func (c *timely) keep(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = t
}

// earliest is the earlier one of a deadline and that of the caller.
func (c *timely) earliest(t time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.until.IsZero() && c.until.Before(t) {
		return c.until
	}
	return t
}
