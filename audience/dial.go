package audience

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
)

// private are networks that only AllowPrivate opens.
var private = prefixes(
	"127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", // RFC 1122, RFC 1918
	"100.64.0.0/10",       // RFC 6598, shared address space
	"::1/128", "fc00::/7", // RFC 4291, RFC 4193
)

// never are networks that hold no customer's database: what is special by
// RFC 6890, and what carries an IPv4 address inside that the checks would not see.
var never = prefixes(
	"0.0.0.0/8", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"169.254.0.0/16", "fe80::/10", "fec0::/10", // link-local: the metadata services of most clouds
	"100.100.100.200/32", "fd00:ec2::/32", // the metadata services that are not link-local
	"224.0.0.0/4", "240.0.0.0/4", "ff00::/8", // multicast, reserved, broadcast
	"::/128", "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", // unspecified, compatible, NAT64, 6to4, Teredo
	"100::/64", "2001:db8::/32",
)

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

func within(list []netip.Prefix, ip netip.Addr) bool {
	for _, p := range list {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

// checkAddress says whether ip may be dialled.
func (o Options) checkAddress(ip netip.Addr) error {
	ip = ip.WithZone("").Unmap()
	inside := within(private, ip)
	if within(never, ip) && ip != netip.IPv6Loopback() || inside && !o.AllowPrivate {
		return refused(nil, "the source's host is at an address that may not be dialled")
	}
	return nil
}

// lowestPort keeps a DSN from being used to knock at mail, web and other
// system services; databases live above.
const lowestPort = 1024

// checkedDial is how every connection to a source begins. The name is resolved
// once, all its addresses are checked, and one of those is dialled: a name that
// answers differently a moment later gains nothing.
func (a *Audiences) checkedDial(ctx context.Context, host string, port uint16) (net.Conn, error) {
	if port < lowestPort {
		return nil, refused(nil, "the source's port is below %d and may not be dialled", lowestPort)
	}
	addresses, err := a.lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	for _, ip := range addresses {
		if err := a.options.checkAddress(ip); err != nil {
			return nil, err
		}
	}
	return dialFirst(ctx, addresses, port)
}

func (a *Audiences) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, nil
	}
	addresses, err := a.resolve(ctx, "ip", host)
	if err == nil && len(addresses) == 0 {
		err = &net.DNSError{Err: "no address", Name: host, IsNotFound: true}
	}
	return addresses, err
}

func dialFirst(ctx context.Context, addresses []netip.Addr, port uint16) (conn net.Conn, err error) {
	for _, ip := range addresses {
		var d net.Dialer
		conn, err = d.DialContext(ctx, "tcp", netip.AddrPortFrom(ip.Unmap(), port).String())
		if err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// dial reaches the target over TCP or its unix socket, and meters what it sends.
func (a *Audiences) dial(ctx context.Context, t target) (*meter, error) {
	conn, err := a.dialTarget(ctx, t)
	if err != nil {
		return nil, err
	}
	return &meter{Conn: conn, limit: a.options.MaxRowBytes + readAhead}, nil
}

func (a *Audiences) dialTarget(ctx context.Context, t target) (net.Conn, error) {
	if t.socket == "" {
		return a.checkedDial(ctx, t.host, t.port)
	}
	if !a.options.AllowUnix {
		return nil, refused(nil, "unix sockets may not be dialled")
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", t.socketFile())
}

// readAhead is how much of the rows to come drivers may have read beyond the
// row that is looked at.
const readAhead = 256 << 10

// meter is a connection that ends when the source sends more than limit bytes
// between two calls of progress. Drivers read a row into memory before we see
// it, so this is what bounds a single one.
type meter struct {
	net.Conn
	limit int64
	since atomic.Int64
	over  atomic.Bool
}

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.Conn.Read(p)
	if m.since.Add(int64(n)) > m.limit {
		m.over.Store(true)
		m.Conn.Close()
		return n, fmt.Errorf("the source sent more than %s bytes for one row", strconv.FormatInt(m.limit, 10))
	}
	return n, err
}

// progress says that what came so far has been dealt with.
func (m *meter) progress() { m.since.Store(0) }
