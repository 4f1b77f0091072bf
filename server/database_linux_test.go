package server

import (
	"net"
	"syscall"
	"testing"

	"lemma/pgtest"
)

// The connections of a pool have these bounds.
func TestConnectionsOfThePoolHaveBounds(t *testing.T) {
	t.Parallel()
	const tcpUserTimeout = 0x12
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	pool, err := OpenPool(t.Context(), Config{DatabaseURL: pgtest.DSN(pgtest.DB(t))})
	must(t, err)
	defer pool.Close()
	if got := pool.Config().ConnConfig.ConnectTimeout; got != connectFor {
		t.Errorf("a try to connect takes up to %s", got)
	}
	c, err := pool.Config().ConnConfig.DialFunc(t.Context(), "tcp", l.Addr().String())
	must(t, err)
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	must(t, err)
	for option, want := range map[int]int{tcpUserTimeout: 30_000, syscall.TCP_KEEPIDLE: 15, syscall.TCP_KEEPINTVL: 5, syscall.TCP_KEEPCNT: 3} {
		var got int
		must(t, raw.Control(func(fd uintptr) { got, err = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, option) }))
		if err != nil || got != want {
			t.Errorf("TCP option %d is %d, want %d: %v", option, got, want, err)
		}
	}
}
