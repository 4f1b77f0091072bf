// Package dial opens every connection to an address that a customer has entered: a data
// source, a webhook endpoint, a mail server. It guarantees that no connection is made to
// the operator's own network, the machine itself or a cloud's metadata service, whatever
// a name resolved to before. No other package of the server opens such connections; the
// architecture test checks that.
//
// The caller decides which ports and protocols are allowed. Pools of such connections count
// those that are idle with Idle, so that a process has few of them.
package dial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrForbidden is returned for an address that may not be dialled. It contains no
// address, since a customer must not learn what a name resolves to inside the network.
var ErrForbidden = errors.New("the host is at an address that may not be dialled")

// private are networks that only AllowPrivate opens.
var private = prefixes(
	"127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", // RFC 1122, RFC 1918
	"100.64.0.0/10",       // RFC 6598, shared address space
	"::1/128", "fc00::/7", // RFC 4291, RFC 4193
)

// never are networks that hold no server of a customer: the rest of the IANA
// special-purpose address registries (RFC 6890), metadata services, and what
// carries an IPv4 address inside that the checks would not see. IPv6 addresses
// outside of 2000::/3 are refused as a whole, see Allowed: among them are
// IPv4-translated (SIIT, ::ffff:0:0:0/96), IPv4-compatible (::/96), NAT64
// (64:ff9b::/96, 64:ff9b:1::/48), discard-only (100::/64), SRv6 (5f00::/16),
// link-local, site-local and multicast addresses.
var never = prefixes(
	"0.0.0.0/8", "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.175.48.0/24",
	"198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"169.254.0.0/16",             // link-local: the metadata services of most clouds
	"224.0.0.0/4", "240.0.0.0/4", // multicast, reserved, broadcast
	"100.100.100.200/32", "168.63.129.16/32", // metadata services at other addresses: Alibaba, Azure
	"fd00:ec2::/32", "fd20:ce::/32", "fd00:42::/32", // AWS, Google, Scaleway
	"2001::/23",                                       // IETF protocol assignments: Teredo, benchmarking, ORCHID
	"2002::/16",                                       // 6to4
	"2001:db8::/32", "3fff::/20", "2620:4f:8000::/48", // documentation, AS112
)

// unicast is what IANA has given out as global unicast addresses of IPv6.
var unicast = netip.MustParsePrefix("2000::/3")

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

// Dialer dials allowed addresses.
type Dialer struct {
	AllowPrivate bool // loopback, private and shared (CGNAT) addresses and the machine's own too

	// Resolve finds the addresses of a name; nil: the machine's resolver.
	Resolve func(ctx context.Context, network, host string) ([]netip.Addr, error)
	// Own lists the machine's own addresses; nil: those of its interfaces.
	Own func() ([]netip.Addr, error)
}

// Allowed reports whether ip may be dialled.
func (d Dialer) Allowed(ip netip.Addr) bool { return d.check(ip) == nil }

// Plausible reports whether a host could be dialled, without resolving it, for early
// errors. A host that is an address is checked as Dial does, and localhost (RFC 6761,
// 6.3) is loopback.
func (d Dialer) Plausible(host string) bool {
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return d.AllowPrivate
	}
	ip, err := netip.ParseAddr(host)
	return err != nil || d.Allowed(ip)
}

// IsPrivate reports whether a connection leads to an address that only AllowPrivate
// opens. What such a server sends may be about the operator's network.
func IsPrivate(conn net.Conn) bool {
	remote, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	return err != nil || !Dialer{}.Allowed(remote.Addr())
}

func (d Dialer) check(ip netip.Addr) error {
	ip = ip.WithZone("").Unmap()
	local := within(private, ip)
	switch {
	case !ip.IsValid(), within(never, ip), ip.Is6() && !local && !unicast.Contains(ip):
		return ErrForbidden
	case d.AllowPrivate:
		return nil
	case local:
		return ErrForbidden
	}
	return d.checkOwn(ip)
}

// checkOwn refuses public addresses of this machine: behind them are services
// that expect the machine itself, such as those bound to all interfaces.
func (d Dialer) checkOwn(ip netip.Addr) error {
	own := d.Own
	if own == nil {
		own = interfaceAddresses
	}
	addresses, err := own()
	switch {
	case err != nil:
		return fmt.Errorf("read the machine's own addresses: %w", err)
	case slices.Contains(addresses, ip):
		return ErrForbidden
	}
	return nil
}

// interfaceAddresses is called for each connection, since addresses change while a
// process runs.
func interfaceAddresses() ([]netip.Addr, error) {
	found, err := net.InterfaceAddrs()
	var list []netip.Addr
	for _, a := range found {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			list = append(list, p.Addr().WithZone("").Unmap())
		}
	}
	return list, err
}

// mostAddresses are those of a name that are checked and dialled, of IPv4 and of IPv6. A name may
// have thousands, each of which would cost the process time, and somebody else a connection.
const mostAddresses = 4

// Dial opens a TCP connection. It resolves the name once, checks its first 4 addresses of IPv4
// and of IPv6, and dials one after the other until one accepts, so a name that resolves
// differently later has no effect.
func (d Dialer) Dial(ctx context.Context, host string, port uint16) (net.Conn, error) {
	addresses, err := d.lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	addresses = firstOfEach(addresses)
	if d.Own == nil {
		d.Own = sync.OnceValues(interfaceAddresses)
	}
	for _, ip := range addresses {
		if err := d.check(ip); err != nil {
			return nil, err
		}
	}
	return first(ctx, addresses, port)
}

// firstOfEach returns the first addresses of each version, in their order.
func firstOfEach(all []netip.Addr) (some []netip.Addr) {
	var of [2]int
	for _, ip := range all {
		version := 0
		if ip.Unmap().Is4() {
			version = 1
		}
		if of[version]++; of[version] <= mostAddresses {
			some = append(some, ip)
		}
	}
	return some
}

// DialContext is Dial in the form that http.Transport needs, which sets no deadlines. Each
// write on the connection has 10 s for the next 32 KiB.
func (d Dialer) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return nil, err
	}
	conn, err := d.Dial(ctx, host, uint16(port))
	if err != nil {
		return nil, err
	}
	return &timely{Conn: conn, each: writeTime}, nil
}

// Unix connects to a unix socket. The caller decides whether a customer may name one.
func Unix(ctx context.Context, file string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", file)
}

func (d Dialer) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, nil
	}
	resolve := d.Resolve
	if resolve == nil {
		resolve = Resolver.LookupNetIP
	}
	addresses, err := resolve(ctx, "ip", host)
	if err == nil && len(addresses) == 0 {
		err = &net.DNSError{Err: "no address", Name: host, IsNotFound: true}
	}
	return addresses, err
}

// first connects to the first address that accepts. Each address gets an equal part of
// the time that is left, so that one without an answer does not use all of it.
func first(ctx context.Context, addresses []netip.Addr, port uint16) (conn net.Conn, err error) {
	for i, ip := range addresses {
		d := net.Dialer{Deadline: deadlineOf(ctx, len(addresses)-i)}
		conn, err = d.DialContext(ctx, "tcp", netip.AddrPortFrom(ip.Unmap(), port).String())
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
	}
	return nil, err
}

// deadlineOf is the deadline of the first of n addresses; zero without a deadline.
func deadlineOf(ctx context.Context, n int) time.Time {
	end, ok := ctx.Deadline()
	if !ok {
		return time.Time{}
	}
	now := time.Now()
	return now.Add(end.Sub(now) / time.Duration(n))
}
