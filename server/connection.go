package server

import (
	"context"
	"net"
	"sync"
	"time"
)

// gated is a connection that its gate counts.
type gated struct {
	net.Conn
	gate   *gate
	cancel context.CancelFunc // of its requests; guarded by the gate

	mu    sync.Mutex
	until time.Time // deadline of the response
}

// Write writes a part at a time, each with a deadline of its own, and records how
// long the client takes to receive. The deadline of a response is no bound for a
// client that sends its requests ahead and receives the responses a byte at a time:
// each response has another.
func (c *gated) Write(b []byte) (n int, err error) {
	for {
		part, err := c.writePart(b[n:min(len(b), n+writeSize)])
		if n += part; err != nil || n == len(b) {
			return n, err
		}
	}
}

func (c *gated) writePart(b []byte) (int, error) {
	begun := time.Now()
	if err := c.Conn.SetWriteDeadline(c.earliest(begun.Add(c.gate.limits.write))); err != nil {
		return 0, err
	}
	c.record(func(w *waiting) { w.write(begun) })
	defer c.record(func(w *waiting) { w.written(time.Now()) })
	return c.Conn.Write(b)
}

// SetWriteDeadline sets the deadline of a response.
func (c *gated) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = t
	return c.Conn.SetWriteDeadline(t)
}

// earliest is the earlier one of a deadline and that of the response.
func (c *gated) earliest(t time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.until.IsZero() && c.until.Before(t) {
		return c.until
	}
	return t
}

// arrives records since when a body arrives, or with a zero time that none does.
func (c *gated) arrives(since time.Time) {
	if c != nil {
		c.record(func(w *waiting) { w.arriving = since })
	}
}

func (c *gated) record(change func(*waiting)) {
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	if w, open := c.gate.open[c]; open {
		change(&w)
		c.gate.open[c] = w
	}
}

// Close closes the connection and stops counting it.
func (c *gated) Close() error {
	c.gate.mu.Lock()
	c.gate.remove(c)
	c.gate.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite is called by http.Server before Close, so that the last response
// arrives although the request was not read completely.
func (c *gated) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// connectionOf is the key of a request's context for its connection.
type connectionOf struct{}

// withConnection is the ConnContext hook of http.Server. The context ends when the connection
// is replaced: net/http notices a closed one only if it is reading.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	c, ok := conn.(*gated)
	if !ok {
		return ctx
	}
	ctx, cancel := context.WithCancel(context.WithValue(ctx, connectionOf{}, c))
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	if _, open := c.gate.open[c]; !open {
		cancel()
	}
	c.cancel = cancel
	return ctx
}

// known records that the request of a context has a valid API key.
func known(ctx context.Context) {
	if c, ok := ctx.Value(connectionOf{}).(*gated); ok {
		c.record(func(w *waiting) { w.known = true })
	}
}
