package wire

import (
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// TestEndlessRows has a connection that never ends a row.
func TestEndlessRows(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	m := NewMeter(ours, 100_000-ReadAhead, 1<<40)
	f := NewPostgres(endless{}, m)
	f.left = 1 << 40 // of a message that was begun
	for range 50 {
		if _, err := io.CopyN(io.Discard, f, 50_000); err != nil {
			t.Fatalf("with progress: %v", err)
		}
		m.Progress()
	}
	if n, err := io.CopyN(io.Discard, f, 1<<30); err == nil || n > 200_000 || m.Why() != ErrRowTooBig {
		t.Errorf("read %d, %v", n, err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return copy(p, strings.Repeat("x", len(p))), nil }

// What a driver reads while it writes is bounded: its reader waits until the driver has used what is
// there, or the connection is closed.
func TestReadingAheadIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		go io.Copy(theirs, endless{})
		m := NewMeter(ours, 1<<20, 1<<40)
		NewPostgres(m, m)
		var read atomic.Int64
		ended := make(chan error)
		go func() {
			for some := make([]byte, 8192); ; {
				n, err := m.Read(some)
				if read.Add(int64(n)); err != nil {
					ended <- err
					return
				}
			}
		}()
		for i := range int64(3) {
			synctest.Wait()
			if n := read.Load() - i*mostAhead; n <= mostAhead || n > mostAhead+3*8192 {
				t.Fatalf("%d bytes were read ahead, want about %d", n, mostAhead)
			}
			m.ahead.free(false)
		}
		synctest.Wait()
		m.Close()
		if err := <-ended; err == nil {
			t.Error("the reader goes on")
		}
		theirs.Close()
	})
}
