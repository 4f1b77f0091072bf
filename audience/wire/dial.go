// Package wire connects to a customer's database. It guarantees:
//
//   - Only the address in the DSN is dialled, by package dial, and only if Rules allow it. Of
//     a DSN only the address and the login are used.
//   - A driver reads nothing from a server that it does not check itself: a MySQL or Postgres
//     connection checks the form of each message first, and ends with ErrMalformed.
//   - A server cannot make a process keep more than bounded memory: a Meter ends a connection
//     that sends too many bytes for a row or for a run.
//
// Package audience logs in by the drivers, and decides what the errors are for callers.
package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"lemma/dial"
)

// Rules decide which addresses are dialled. Resolve finds the addresses of a host.
type Rules struct {
	AllowPrivate bool // loopback, private and shared (CGNAT) addresses
	AllowUnix    bool // unix sockets
	Resolve      func(ctx context.Context, network, host string) ([]netip.Addr, error)
}

func (r Rules) dialer() dial.Dialer {
	return dial.Dialer{AllowPrivate: r.AllowPrivate, Resolve: r.Resolve}
}

const forbidden = Refusal("the source's host is at an address that may not be dialled")

// lowestPort excludes mail, web and other system services; databases use higher
// ports.
const lowestPort = 1024

// dialHost checks each address of the host before it connects to it.
func (r Rules) dialHost(ctx context.Context, host string, port uint16) (net.Conn, error) {
	if port < lowestPort {
		return nil, Refusal(fmt.Sprintf("the source's port is below %d and may not be dialled", lowestPort))
	}
	conn, err := r.dialer().Dial(ctx, host, port)
	if errors.Is(err, dial.ErrForbidden) {
		return nil, forbidden
	}
	return conn, err
}

// Dial connects to the target over TCP or its unix socket. What it forbids is a refusal.
func (r Rules) Dial(ctx context.Context, t Target) (net.Conn, error) {
	if t.Socket == "" {
		return r.dialHost(ctx, t.Host, t.Port)
	}
	if !r.AllowUnix {
		return nil, Refusal("unix sockets may not be dialled")
	}
	return dial.Unix(ctx, t.socketFile())
}
