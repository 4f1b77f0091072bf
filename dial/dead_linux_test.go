package dial_test

import (
	"net"
	"testing"
	"time"

	"lemma/dial"
)

// Writes to a peer that accepts no more data fail within the bound, and not after 15
// minutes.
func TestWritesToADeadPeerFail(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := make(chan net.Conn, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			taken <- c // and never reads
		}
	}()
	c, err := dial.Bounded(time.Second, time.Minute)(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	defer func() { (<-taken).Close() }()
	failed := make(chan error, 1)
	go func() {
		for some := make([]byte, 1<<20); ; {
			if _, err := c.Write(some); err != nil {
				failed <- err
				return
			}
		}
	}()
	select {
	case err := <-failed:
		t.Log(err)
	case <-time.After(20 * time.Second):
		t.Error("after 20 s a write to a dead peer is still waiting")
	}
}
