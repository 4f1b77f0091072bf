package audience

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"

	"lemma/dial"
)

// checkAddress says whether ip may be dialled.
func (o Options) checkAddress(ip netip.Addr) error {
	if !(dial.Dialer{AllowPrivate: o.AllowPrivate}).Allowed(ip) {
		return forbidden()
	}
	return nil
}

func forbidden() error {
	return refused(nil, "the source's host is at an address that may not be dialled")
}

// lowestPort keeps a DSN from being used to knock at mail, web and other
// system services; databases live above.
const lowestPort = 1024

// checkedDial is how every connection to a source begins.
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
	return dial.Unix(ctx, t.socketFile())
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
