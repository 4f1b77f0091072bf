// Package dial reaches addresses that somebody else has written down: a
// customer's database, a customer's webhook. It promises that no connection is
// made to an address of one's own network, of the machine itself or of the
// cloud's metadata service, whatever the name resolved to a moment ago.
//
// Which ports are fit, and what is said over the connection, is the affair of
// whoever dials.
package dial

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"
)

// ErrForbidden is the answer for an address that may not be dialled. It names
// no address: what a name resolves to inside is nobody's business who asks.
var ErrForbidden = errors.New("the host is at an address that may not be dialled")

// private are networks that only AllowPrivate opens.
var private = prefixes(
	"127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", // RFC 1122, RFC 1918
	"100.64.0.0/10",       // RFC 6598, shared address space
	"::1/128", "fc00::/7", // RFC 4291, RFC 4193
)

// never are networks that hold nothing of a customer's: what is special by
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

// Dialer dials what may be dialled.
type Dialer struct {
	AllowPrivate bool // loopback, private and shared (CGNAT) addresses too

	// Resolve finds the addresses of a name; nil: as the machine does.
	Resolve func(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Allowed tells whether ip may be dialled.
func (d Dialer) Allowed(ip netip.Addr) bool {
	ip = ip.WithZone("").Unmap()
	if within(never, ip) && ip != netip.IPv6Loopback() {
		return false
	}
	return d.AllowPrivate || !within(private, ip)
}

// Dial makes a TCP connection. The name is resolved once, all its addresses
// are checked, and one of those is dialled: a name that answers differently a
// moment later gains nothing.
func (d Dialer) Dial(ctx context.Context, host string, port uint16) (net.Conn, error) {
	addresses, err := d.lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	for _, ip := range addresses {
		if !d.Allowed(ip) {
			return nil, ErrForbidden
		}
	}
	return first(ctx, addresses, port)
}

func (d Dialer) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, nil
	}
	resolve := d.Resolve
	if resolve == nil {
		resolve = net.DefaultResolver.LookupNetIP
	}
	addresses, err := resolve(ctx, "ip", host)
	if err == nil && len(addresses) == 0 {
		err = &net.DNSError{Err: "no address", Name: host, IsNotFound: true}
	}
	return addresses, err
}

// first answers with the first address that takes the connection. Each has its
// share of the time that is left, so that a silent one does not use it all up.
func first(ctx context.Context, addresses []netip.Addr, port uint16) (conn net.Conn, err error) {
	for i, ip := range addresses {
		d := net.Dialer{Deadline: share(ctx, len(addresses)-i)}
		conn, err = d.DialContext(ctx, "tcp", netip.AddrPortFrom(ip.Unmap(), port).String())
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
	}
	return nil, err
}

// share is the deadline of one of n addresses; zero when there is none.
func share(ctx context.Context, n int) time.Time {
	end, ok := ctx.Deadline()
	if !ok {
		return time.Time{}
	}
	now := time.Now()
	return now.Add(end.Sub(now) / time.Duration(n))
}
