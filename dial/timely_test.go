package dial

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

// A write to a peer that receives nothing ends in time, or by the caller's deadline if that is
// earlier; one that is received in parts goes on.
func TestWritesEndInTime(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	connect := func() (*timely, net.Conn) {
		t.Helper()
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		peer, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = conn.Close(), peer.Close() })
		return &timely{Conn: conn, each: 300 * time.Millisecond}, peer
	}
	much := make([]byte, 64<<20)
	for name, c := range map[string]struct {
		set   func(c *timely) error
		least time.Duration
	}{
		"no deadline":       {func(*timely) error { return nil }, 300 * time.Millisecond},
		"a later deadline":  {func(c *timely) error { return c.SetDeadline(time.Now().Add(time.Hour)) }, 300 * time.Millisecond},
		"one that has been": {func(c *timely) error { return c.SetWriteDeadline(time.Now().Add(-time.Second)) }, 0},
		"an earlier one":    {func(c *timely) error { return c.SetDeadline(time.Now().Add(50 * time.Millisecond)) }, 50 * time.Millisecond},
	} {
		conn, _ := connect()
		if err := c.set(conn); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if _, err := conn.Write(much); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) < c.least {
			t.Errorf("%s: %v after %v", name, err, time.Since(begun))
		}
	}
	conn, peer := connect()
	go func() {
		for part := make([]byte, 1<<20); ; {
			if _, err := peer.Read(part); err != nil {
				return
			}
		}
	}()
	if n, err := conn.Write(much); n != len(much) || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}
