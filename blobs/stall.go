package blobs

import (
	"context"
	"net"
	"time"
)

// stallAfter is when a connection to a store fails, if no byte moves on it. It is longer than the client
// waits for the header of an answer. The client repeats the request up to ten times. Without it a store
// that takes a part of a body and then nothing would hold its caller for ever, and the lease of the
// attempt with it.
const stallAfter = 90 * time.Second

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// dialing makes the connections of a dialer fail when they stall.
func dialing(dial dialer, after time.Duration) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &moving{conn, after}, nil
	}
}

// moving is a connection whose reads and writes fail when neither have moved a byte for a time.
type moving struct {
	net.Conn
	after time.Duration
}

// Read is part of net.Conn.
func (m *moving) Read(b []byte) (int, error) {
	if err := m.SetDeadline(time.Now().Add(m.after)); err != nil {
		return 0, err
	}
	return m.Conn.Read(b)
}

// Write is part of net.Conn. It gives a read that waits for the answer as much time again.
func (m *moving) Write(b []byte) (int, error) {
	if err := m.SetDeadline(time.Now().Add(m.after)); err != nil {
		return 0, err
	}
	return m.Conn.Write(b)
}
