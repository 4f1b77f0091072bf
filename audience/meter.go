package audience

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
)

// readAhead is how much of the rows to come drivers may have read beyond the
// row that is looked at.
const readAhead = 256 << 10

// meter is a connection that ends when the source sends more than limit bytes
// between two calls of progress, or more than budget bytes in a run. Drivers
// read a row into memory before we see it, so this bounds a single one; and
// they accept messages that are no rows at any time, so this bounds all.
type meter struct {
	net.Conn
	limit  int64
	texts  texts        // which messages of the source may be shown
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

// fail ends the connection and keeps the reason: what a driver makes of the
// error is not what happened.
func (m *meter) fail(err error) error {
	m.broken.CompareAndSwap(nil, &err)
	m.Conn.Close()
	return err
}

// why is the reason for which fail ended the connection, or nil.
func (m *meter) why() error {
	if err := m.broken.Load(); err != nil {
		return *err
	}
	return nil
}

// progress says that what came so far has been dealt with.
func (m *meter) progress() { m.since.Store(0) }

// allow begins a run that may read so many bytes, and whose errors may show so much.
func (m *meter) allow(budget int64, t texts) {
	m.budget.Store(budget)
	m.texts = t
}

// boundTo closes the connection when ctx ends. Drivers read without a deadline
// in places: the rest of a result when a cursor is closed, an answer to a
// login. release takes the bound away and answers false when ctx had ended.
func (m *meter) boundTo(ctx context.Context) (release func() bool) {
	return context.AfterFunc(ctx, func() { m.Conn.Close() })
}
