package wire

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
)

// ReadAhead is how much drivers may read beyond the current row.
const ReadAhead = 256 << 10

// mostAhead is how much pgx may read while it writes. Its reader of the background runs as long as a
// write takes, also one that only waits for a processor, and would keep any number of rows.
const mostAhead = 4 << 20

// Meter is a connection that ends when the source sends more than limit bytes
// between two calls of Progress, or more than budget bytes in a run. Drivers read a
// whole row into memory, which limit bounds. They also accept messages other than
// rows at any time, which budget bounds.
type Meter struct {
	net.Conn
	limit  int64
	since  atomic.Int64 // bytes since the last progress
	budget atomic.Int64 // bytes that the run may still read
	broken atomic.Pointer[error]
	ahead  *ahead // nil: nothing is read ahead

	mark      []byte      // in place of the values that are left out of rows; nil: rows are not shortened
	shortened atomic.Bool // a row was
	leftOut   int         // bytes of rows; the driver reads and asks for it
}

// ahead bounds what is read of a connection, and not used yet.
type ahead struct {
	mu     sync.Mutex
	freed  sync.Cond
	bytes  int // since the driver has last read
	closed bool
}

func newAhead() *ahead {
	a := &ahead{}
	a.freed.L = &a.mu
	return a
}

// wait waits until the driver has read what is there, or the connection is closed.
func (a *ahead) wait() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.bytes > mostAhead && !a.closed {
		a.freed.Wait()
	}
}

func (a *ahead) add(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bytes += n
}

// free lets more be read.
func (a *ahead) free(closed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bytes, a.closed = 0, a.closed || closed
	a.freed.Broadcast()
}

// Why a connection has ended.
var (
	ErrRowTooBig    = errors.New("the source sent too many bytes for one row")
	ErrOverBudget   = errors.New("the source sent too many bytes")
	ErrMalformed    = errors.New("the source broke its protocol")
	errLoginTooLong = errors.New("the source sent too many bytes for a login")
)

// Refusal is why a connection is refused: by a rule of Lemma, and not by the server.
type Refusal string

func (r Refusal) Error() string { return string(r) }

// NewMeter returns a meter for rows of at most maxRow bytes, and a first run of budget bytes.
func NewMeter(conn net.Conn, maxRow, budget int64) *Meter {
	m := &Meter{Conn: conn, limit: maxRow + ReadAhead}
	m.Allow(budget)
	return m
}

// MaxRow is the most bytes that a row may have.
func (m *Meter) MaxRow() int64 { return m.limit - ReadAhead }

func (m *Meter) Read(p []byte) (int, error) {
	if m.ahead != nil {
		m.ahead.wait()
	}
	n, err := m.Conn.Read(p)
	if m.ahead != nil {
		m.ahead.add(n)
	}
	if m.budget.Add(-int64(n)) < 0 {
		return 0, m.Fail(ErrOverBudget)
	}
	return n, err
}

// use notes that what was read ahead is used.
func (m *Meter) use() {
	if m.ahead != nil {
		m.ahead.free(false)
	}
}

// pass counts bytes that the driver gets.
func (m *Meter) pass(n int) error {
	if m.since.Add(int64(n)) > m.limit {
		return m.Fail(ErrRowTooBig)
	}
	return nil
}

// Close closes the connection.
func (m *Meter) Close() error {
	if m.ahead != nil {
		m.ahead.free(true)
	}
	return m.Conn.Close()
}

// Fail ends the connection and keeps the reason, since drivers may replace the error.
func (m *Meter) Fail(err error) error {
	m.broken.CompareAndSwap(nil, &err)
	m.Close()
	return err
}

// Why returns the reason of Fail, or nil.
func (m *Meter) Why() error {
	if err := m.broken.Load(); err != nil {
		return *err
	}
	return nil
}

// Progress restarts the count for limit.
func (m *Meter) Progress() { m.since.Store(0) }

// Allow begins a run with a budget of bytes. Rows are not shortened in it.
func (m *Meter) Allow(budget int64) {
	m.budget.Store(budget)
	m.mark, m.leftOut = nil, 0
	m.shortened.Store(false)
}

// BoundTo closes the connection when ctx ends, since drivers sometimes read without
// a deadline: the rest of a result, or the response to a login. release removes the
// bound, and returns false if ctx had ended.
func (m *Meter) BoundTo(ctx context.Context) (release func() bool) {
	return context.AfterFunc(ctx, func() { m.Close() })
}
