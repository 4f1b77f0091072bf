package audience

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
)

// readAhead is how much drivers may read beyond the current row.
const readAhead = 256 << 10

// meter is a connection that ends when the source sends more than limit bytes
// between two calls of progress, or more than budget bytes in a run. Drivers read a
// whole row into memory, which limit bounds. They also accept messages other than
// rows at any time, which budget bounds.
type meter struct {
	net.Conn
	limit  int64
	texts  texts        // which messages of the source can be shown
	since  atomic.Int64 // bytes since the last progress
	budget atomic.Int64 // bytes that the run may still read
	broken atomic.Pointer[error]
}

var (
	errRowTooBig    = errors.New("the source sent too many bytes for one row")
	errOverBudget   = errors.New("the source sent too many bytes")
	errMalformed    = errors.New("the source broke its protocol")
	errLoginTooLong = errors.New("the source sent too many bytes for a login")
)

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.Conn.Read(p)
	switch {
	case m.since.Add(int64(n)) > m.limit:
		return 0, m.fail(errRowTooBig)
	case m.budget.Add(-int64(n)) < 0:
		return 0, m.fail(errOverBudget)
	}
	return n, err
}

// fail ends the connection and keeps the reason, since drivers may replace the error.
func (m *meter) fail(err error) error {
	m.broken.CompareAndSwap(nil, &err)
	m.Close()
	return err
}

// why returns the reason of fail, or nil.
func (m *meter) why() error {
	if err := m.broken.Load(); err != nil {
		return *err
	}
	return nil
}

// progress restarts the count for limit.
func (m *meter) progress() { m.since.Store(0) }

// allow begins a run with a budget of bytes, and the messages that its errors can show.
func (m *meter) allow(budget int64, t texts) {
	m.budget.Store(budget)
	m.texts = t
}

// boundTo closes the connection when ctx ends, since drivers sometimes read without
// a deadline: the rest of a result, or the response to a login. release removes the
// bound, and returns false if ctx had ended.
func (m *meter) boundTo(ctx context.Context) (release func() bool) {
	return context.AfterFunc(ctx, func() { m.Close() })
}
