package audience

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"lemma/dial"
)

// checkAddress returns an error if ip must not be dialled.
func (o Options) checkAddress(ip netip.Addr) error {
	if !(dial.Dialer{AllowPrivate: o.AllowPrivate}).Allowed(ip) {
		return forbidden()
	}
	return nil
}

func forbidden() error {
	return refused(nil, "the source's host is at an address that may not be dialled")
}

// lowestPort excludes mail, web and other system services; databases use higher
// ports.
const lowestPort = 1024

// checkedDial opens every connection to a source.
func (a *Audiences) checkedDial(ctx context.Context, host string, port uint16) (net.Conn, error) {
	if port < lowestPort {
		return nil, refused(nil, "the source's port is below %d and may not be dialled", lowestPort)
	}
	d := dial.Dialer{AllowPrivate: a.options.AllowPrivate, Resolve: a.resolve}
	conn, err := d.Dial(ctx, host, port)
	if errors.Is(err, dial.ErrForbidden) {
		return nil, forbidden()
	}
	return conn, err
}

// dial connects to the target over TCP or its unix socket, and meters what it sends.
func (a *Audiences) dial(ctx context.Context, t target, budget int64) (*meter, error) {
	conn, err := a.dialTarget(ctx, t)
	if err != nil {
		return nil, err
	}
	m := &meter{Conn: conn, limit: a.options.MaxRowBytes + readAhead}
	m.allow(budget, textsFor(ctx))
	return m, nil
}

func (a *Audiences) dialTarget(ctx context.Context, t target) (net.Conn, error) {
	if t.socket == "" {
		return a.checkedDial(ctx, t.host, t.port)
	}
	if !a.options.AllowUnix {
		return nil, refused(nil, "unix sockets may not be dialled")
	}
	return dial.Unix(ctx, t.socketFile())
}
