package dial_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"lemma/dial"
)

func TestAddresses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]bool{ // without and with AllowPrivate
		"8.8.8.8": {true, true}, "2a00:1450::1": {true, true}, "100.128.0.1": {true, true}, "::ffff:8.8.8.8": {true, true},
		"127.0.0.1": {false, true}, "::1": {false, true}, "10.1.2.3": {false, true},
		"172.31.255.255": {false, true}, "192.168.1.1": {false, true},
		"100.64.0.1": {false, true}, "fd00::1": {false, true}, "::ffff:10.0.0.1": {false, true}, "::ffff:127.0.0.1": {false, true},
		"169.254.169.254": {}, "::ffff:169.254.169.254": {}, "fe80::1%eth0": {}, "100.100.100.200": {}, "fd00:ec2::254": {},
		"0.0.0.0": {}, "::": {}, "224.0.0.1": {}, "ff02::1": {}, "255.255.255.255": {}, "64:ff9b::7f00:1": {},
		"2002:7f00:1::": {}, "::127.0.0.1": {},
		"::ffff:0:127.0.0.1": {}, "64:ff9b:1::a00:1": {}, "2001:0:7f00:1::1": {}, // SIIT, local NAT64, Teredo
		"168.63.129.16": {}, "fd20:ce::254": {}, "fd00:42::42": {}, // metadata of Azure, Google, Scaleway
		"192.0.0.192": {}, "198.19.255.255": {}, "240.0.0.1": {}, "192.31.196.1": {}, "192.52.193.1": {}, "192.175.48.1": {},
		"2001:2::1": {}, "2001:20::1": {}, "2001:db8::1": {}, "3fff::1": {}, "5f00::1": {}, "100::1": {},
		"100:0:0:1::1": {}, "fec0::1": {}, "4000::1": {},
		"2620:4f:8000::1": {}, "2606:4700::1": {true, true}, "168.63.129.17": {true, true},
	} {
		ip := netip.MustParseAddr(text)
		got := [2]bool{dial.Dialer{}.Allowed(ip), dial.Dialer{AllowPrivate: true}.Allowed(ip)}
		if got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

// The machine's own public addresses are refused as its loopback is.
func TestOwnAddresses(t *testing.T) {
	t.Parallel()
	own := netip.MustParseAddr("8.8.4.4")
	d := dial.Dialer{Own: func() ([]netip.Addr, error) { return []netip.Addr{own}, nil }}
	for text, want := range map[string]bool{"8.8.4.4": false, "::ffff:8.8.4.4": false, "8.8.8.8": true} {
		if got := d.Allowed(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	d.AllowPrivate = true
	if !d.Allowed(own) {
		t.Error("refused with AllowPrivate")
	}
	unreadable := dial.Dialer{Own: func() ([]netip.Addr, error) { return nil, errors.New("no netlink") }}
	if unreadable.Allowed(netip.MustParseAddr("8.8.8.8")) {
		t.Error("allowed although the machine's own addresses are unknown")
	}
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range interfaces {
		if ip := netip.MustParsePrefix(a.String()).Addr(); (dial.Dialer{}).Allowed(ip) {
			t.Errorf("the interface's address %s may be dialled", ip)
		}
	}
}

// listen counts the connections that are made to a port of this machine.
func listen(t *testing.T) (port uint16, reached chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	reached = make(chan struct{}, 10)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			reached <- struct{}{}
			c.Close()
		}
	}()
	return uint16(l.Addr().(*net.TCPAddr).Port), reached
}

// answers is a resolver that returns one answer after the other, and then the last one.
func answers(all ...[]string) func(context.Context, string, string) ([]netip.Addr, error) {
	return func(context.Context, string, string) (list []netip.Addr, err error) {
		for _, text := range all[0] {
			list = append(list, netip.MustParseAddr(text))
		}
		if len(all) > 1 {
			all = all[1:]
		}
		return list, nil
	}
}

func TestNamesAreCheckedWhenDialled(t *testing.T) {
	t.Parallel()
	port, reached := listen(t)
	for name, d := range map[string]dial.Dialer{
		"inside":                       {Resolve: answers([]string{"127.0.0.1"})},
		"one of several":               {Resolve: answers([]string{"8.8.8.8", "127.0.0.1"})},
		"metadata":                     {Resolve: answers([]string{"169.254.169.254"}), AllowPrivate: true},
		"another answer the next time": {Resolve: answers([]string{"::ffff:127.0.0.1"}, []string{"8.8.8.8"})},
	} {
		if _, err := d.Dial(t.Context(), "name.example.com", port); !errors.Is(err, dial.ErrForbidden) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(reached) != 0 {
		t.Errorf("%d connections were made", len(reached))
	}
	conn, err := (dial.Dialer{AllowPrivate: true}).Dial(t.Context(), "127.0.0.1", port)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func TestNameWithoutAddress(t *testing.T) {
	t.Parallel()
	var unknown *net.DNSError
	if _, err := (dial.Dialer{Resolve: answers(nil)}).Dial(t.Context(), "name.example.com", 443); !errors.As(err, &unknown) {
		t.Error(err)
	}
}

// The first address refuses.
func TestTheNextAddressIsTried(t *testing.T) {
	t.Parallel()
	port, _ := listen(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	d := dial.Dialer{AllowPrivate: true, Resolve: answers([]string{"127.0.0.2", "127.0.0.1"})} // the first refuses
	conn, err := d.Dial(ctx, "name.example.com", port)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}
