package wire

import (
	"errors"
	"net"
	"sync/atomic"
)

// meter is a connection that ends when the server sends more than answers need. HTTP/2 lets it
// send frames at any time, without end, each of which costs time: pings, settings, and frames of
// types that do not exist. Package net/http bounds answers, and nothing else.
type meter struct {
	net.Conn
	left atomic.Int64 // bytes that the server may send before the next request begins
}

// Bytes that a server may send: TLS, headers of HTTP/2 and frames, and an answer to each request.
const (
	mostFrames   = 256 << 10
	mostOfAnswer = 2 * mostAnswer
)

var errTooMuch = errors.New("the server sends too much beside its answers")

func newMeter(conn net.Conn) *meter {
	m := &meter{Conn: conn}
	m.allow(0)
	return m
}

// allow lets the server send answers to so many requests, of which one begins now.
func (m *meter) allow(requests int) { m.left.Store(mostFrames + int64(requests)*mostOfAnswer) }

// Read is part of net.Conn.
func (m *meter) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	if m.left.Add(-int64(n)) < 0 {
		_ = m.Close()
		return 0, errTooMuch
	}
	return n, err
}
