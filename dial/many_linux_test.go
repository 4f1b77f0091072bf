package dial_test

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"

	"lemma/dial"
)

// Of a name with thousands of addresses a few are dialled. Only Linux has all of 127.0.0.0/8.
func TestDialOfAFewAddresses(t *testing.T) {
	t.Parallel()
	many := []netip.Addr{}
	for i := range 4_000 {
		many = append(many, netip.AddrFrom4([4]byte{127, 9, byte(i >> 8), byte(i)}))
	}
	listen := func(ip netip.Addr) uint16 {
		l, err := net.Listen("tcp", netip.AddrPortFrom(ip, 0).String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return uint16(l.Addr().(*net.TCPAddr).Port)
	}
	all := append(slices.Repeat([]netip.Addr{netip.MustParseAddr("::1")}, 20), many...) // without a server
	d := dial.Dialer{AllowPrivate: true, Resolve: func(context.Context, string, string) ([]netip.Addr, error) { return all, nil }}
	if conn, err := d.Dial(t.Context(), "many.example", listen(many[3])); err != nil {
		t.Error(err)
	} else {
		_ = conn.Close()
	}
	if conn, err := d.Dial(t.Context(), "many.example", listen(many[4])); err == nil {
		_ = conn.Close()
		t.Error("too many addresses are dialled")
	}
}
