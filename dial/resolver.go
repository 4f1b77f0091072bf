package dial

import (
	"context"
	"errors"
	"net"
	"strings"
)

// mostAnswer is the most bytes of an answer of DNS over TCP: some 250 addresses. Answers over UDP have at
// most 1,232. The resolver sorts all addresses of a name (RFC 6724), and opens a socket for each.
const mostAnswer = 4096

// Resolver resolves names of customers. It is Go's own, also where C's could be used.
var Resolver = newResolver(new(net.Dialer).DialContext)

func newResolver(dial func(ctx context.Context, network, address string) (net.Conn, error)) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil || !strings.HasPrefix(network, "tcp") {
			return conn, err
		}
		return &answer{Conn: conn, left: 2 + mostAnswer}, nil
	}}
}

// answer is a connection for one answer, which begins with its length.
type answer struct {
	net.Conn
	left int
}

var errLongAnswer = errors.New("the answer of DNS is too long")

func (a *answer) Read(p []byte) (int, error) {
	if len(p) > a.left { // the resolver asks for the whole answer
		return 0, errLongAnswer
	}
	n, err := a.Conn.Read(p)
	a.left -= n
	return n, err
}
