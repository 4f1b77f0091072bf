package wire

import (
	"io"
	"net"
	"strings"
	"testing"
)

// TestEndlessRows has a connection that never ends a row.
func TestEndlessRows(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go io.Copy(theirs, endless{})
	m := NewMeter(ours, 100_000-ReadAhead, 1<<40)
	for range 50 {
		if _, err := io.CopyN(io.Discard, m, 50_000); err != nil {
			t.Fatalf("with progress: %v", err)
		}
		m.Progress()
	}
	if n, err := io.CopyN(io.Discard, m, 1<<30); err == nil || n > 200_000 || m.Why() != ErrRowTooBig {
		t.Errorf("read %d, %v", n, err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return copy(p, strings.Repeat("x", len(p))), nil }
