package wire

import (
	"errors"
	"io"
	"sync"
)

var errEnded = errors.New("the call has ended")

// body is the body of a request. It records whether reading has begun: before, no
// server can have the whole request. After end nothing is read, although net/http may
// still have a goroutine that tries to.
type body struct {
	mu           sync.Mutex
	rest         []byte
	begun, ended bool
	late         bool // it had not begun in time
}

func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return 0, errEnded
	}
	b.begun = true
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	if len(b.rest) == 0 {
		return n, io.EOF
	}
	return n, nil
}

// Close does nothing: end is called for every body.
func (b *body) Close() error { return nil }

// isLate ends the body if reading has not begun, and reports whether it did so.
func (b *body) isLate() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.begun && !b.ended {
		b.ended, b.late = true, true
	}
	return b.late
}

// end reports whether reading had begun, and prevents that it goes on.
func (b *body) end() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	return b.begun
}
