// Package wire sends the requests of carriers that speak HTTP. It guarantees that each
// call is at most one request that the provider processes, and that a receipt states
// only what the answer, or its absence, proves.
//
//   - No request is sent again by itself. The connections are http.ClientConn, which
//     have no retries, and the body of a request can be read only once.
//   - A request is put on another connection, once, when the first has provably not
//     processed it: no byte of its body was read for writing, so that a server cannot
//     have the whole request; or HTTP/2 reports that the stream was not processed
//     (REFUSED_STREAM, or GOAWAY with a lower last stream; RFC 9113, 8.7).
//   - A request begins in three quarters of the time of its call, or not at all.
//   - An idle connection of HTTP/1.1 gets no request while the server may be closing it.
//   - Redirects are answers. They are not followed.
//   - Package dial opens the connections, and TLS is 1.2 or later.
//   - Headers of answers are limited to 16 KiB, and bodies to 64 KiB.
//
// Outcomes without an answer follow. Each carrier adds a table of its answers.
//
//	what happened                               outcome        provider  reason
//	no connection                               not accepted   yes       connect_failed
//	no TLS, or no HTTP/2 where it is required   not accepted   yes       tls_failed
//	an address that may not be dialled          not accepted   yes       forbidden_address; definite
//	lost before the body, or not processed      not accepted   yes       connection_lost
//	no free connection or stream in time        not accepted   yes       timeout
//	one of these a moment ago, so none was tried not called    yes       the same
//	a server of recipients was slow before       not called     no        server_slow, with a time
//	lost since the body's first byte            unknown        no        connection_lost
//	no answer in time since then                unknown        no        timeout
//	an invalid answer since then                unknown        no        protocol_error
//	ctx ended since then                        unknown        no        call_ended
//	ctx ended before, or StartBy passed         not called     no        call_ended
//	cannot be written as a request              rejected       no        message_invalid
//
// Errors of the network are shown as sentences of a closed list (dial.Cause). The log
// has the full text.
package wire

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"lemma/dial"
	"lemma/sender"
	"lemma/sender/redact"
	"lemma/sender/trace"
)

// Operator has the settings of the operator for all accounts of a kind.
type Operator struct {
	AllowPrivate bool           // also connect to loopback and private addresses: for development, and the operator's own network
	AllowStrange bool           // the same for servers that recipients choose (Options.Strange): for tests and lemma dev only
	Roots        *x509.CertPool // certificate authorities; nil: the machine's
	PublicURL    func() string  // under which carriers reach this Lemma, without a slash at its end; nil or empty: they cannot
	ShowPrivate  bool           // receipts, and tests of providers, show what servers at such addresses answer
	Log          *slog.Logger   // for the full errors of connections; nil: none
	Idle         *dial.Idle     // bounds the idle connections of all clients; nil: each has a bound of its own
}

// Options are the settings of a client.
type Options struct {
	Operator
	Workspace uuid.UUID       // whose idle connections are bounded
	Provider  uuid.UUID       // for the log
	Timeout   time.Duration   // of a call; a connection has half of it. 30 s
	Most      int             // requests at a time of this client; 64
	Window    int             // of these, requests of one call to Each; 32. 1: in order
	OnlyH2    bool            // refuse servers without HTTP/2
	Strange   bool            // recipients choose the servers: slow ones are called less often
	Trace     *trace.Trace    // of the account: records the conversation of a test; nil: none
	Redact    *redact.Secrets // of the account; nil: none
}

// Times and sizes of all clients.
const (
	DefaultTimeout = 30 * time.Second
	DefaultMost    = 64

	defaultWindow = 32
	mostServers   = 128 // with connections; at the bound those that are not in use are closed, since strangers may choose servers
	mostAnswer    = 64 << 10
	mostHeader    = 16 << 10         // of an answer: short fields take sixteen times as much memory
	idleFor       = 10 * time.Second // then an unused connection is closed, before most servers close it
)

// Client sends requests over its own connections. It is safe for concurrent use.
type Client struct {
	options   Options
	recorder  *recorder
	transport *http.Transport
	calls     chan struct{} // bounds the requests at a time
	lateCalls chan struct{} // of these, those of windows to slow servers only
	slow      *slowServers

	mu      sync.Mutex
	pools   map[origin]*pool
	sweeper *time.Timer
	closed  bool
}

// origin is a server, as RFC 6454 defines it.
type origin struct{ scheme, address string }

// New makes a client. It does not connect.
func New(o Options) *Client {
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Most <= 0 {
		o.Most = DefaultMost
	}
	if o.Window <= 0 {
		o.Window = defaultWindow
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Idle == nil {
		o.Idle = dial.NewIdle(sender.MostIdle, sender.MostIdleOfWorkspace)
	}
	log := &recorder{trace: o.Trace, showPrivate: o.ShowPrivate}
	c := &Client{options: o, recorder: log, transport: newTransport(o, log), calls: make(chan struct{}, o.Most),
		lateCalls: make(chan struct{}, max(1, o.Most/4)), pools: map[origin]*pool{}}
	if o.Strange {
		c.slow = newSlowServers(o.Timeout)
	}
	return c
}

var errNoHTTP2 = dial.Sentence("the server does not speak HTTP/2")

// newTransport returns what makes connections. Its own pool, which sends requests
// again, is not used.
func newTransport(o Options, log *recorder) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	protocols.SetHTTP1(!o.OnlyH2)
	dialer := dial.Dialer{AllowPrivate: o.AllowPrivate}
	if o.Strange {
		dialer.AllowPrivate = o.AllowStrange // a relay in the operator's network opens it to no recipient
	}
	connect := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, dialError{err}
		}
		log.connected(address, conn)
		metered := newMeter(conn)
		if d, ok := ctx.Value(dialKey{}).(*dialled); ok {
			d.conn = metered
			if !o.ShowPrivate && dial.IsPrivate(conn) {
				d.of.private.Store(true)
			}
		}
		return metered, nil
	}
	return &http.Transport{
		Proxy:       nil, // a proxy would resolve the name itself, unchecked
		DialContext: connect,
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := connect(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return secure(ctx, conn, address, o, log)
		},
		Protocols:              &protocols,
		DisableCompression:     true,
		MaxResponseHeaderBytes: mostHeader,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: o.Timeout / 2, PingTimeout: o.Timeout / 2, WriteByteTimeout: o.Timeout,
			MaxReceiveBufferPerStream: mostAnswer, // more of a large answer would count as a flood: see meter
		},
	}
}

// secure begins TLS.
func secure(ctx context.Context, conn net.Conn, address string, o Options, log *recorder) (net.Conn, error) {
	host, _, _ := net.SplitHostPort(address)
	config := dial.TLS(o.Workspace, host, o.Roots)
	config.NextProtos = []string{"h2", "http/1.1"}
	if o.OnlyH2 {
		config.NextProtos = []string{"h2"}
	}
	client, err := dial.Secure(ctx, conn, config, o.Timeout/2)
	if err != nil {
		return nil, err
	}
	s := client.ConnectionState()
	log.secured(s)
	if o.OnlyH2 && s.NegotiatedProtocol != "h2" {
		_ = conn.Close()
		return nil, errNoHTTP2
	}
	return client, nil
}

// dialKey is the key of what a pool has dialled.
type dialKey struct{}

// dialled is the connection beneath TLS and HTTP.
type dialled struct {
	of   *pool
	conn *meter
}

// dialError distinguishes errors before TLS from those of TLS.
type dialError struct{ error }

func (e dialError) Unwrap() error { return e.error }

var errClosed = errors.New("the client is closed")

// Close closes all connections.
func (c *Client) Close() {
	var all sync.WaitGroup
	for _, p := range c.empty() {
		all.Go(p.close)
	}
	all.Wait()
}

func (c *Client) empty() (pools []*pool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.sweeper != nil {
		c.sweeper.Stop()
	}
	pools = slices.Collect(maps.Values(c.pools))
	clear(c.pools)
	return pools
}

// pool returns the pool of a server.
func (c *Client) pool(o origin) (*pool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	p := c.pools[o]
	if p == nil {
		if len(c.pools) >= mostServers {
			c.closeUnused()
		}
		p = newPool(c.options.Idle, c.options.Workspace, func(ctx context.Context) (*http.ClientConn, *meter, error) {
			d := &dialled{of: p}
			ctx, cancel := context.WithTimeout(context.WithValue(ctx, dialKey{}, d), c.options.Timeout/2)
			defer cancel()
			conn, err := c.transport.NewClientConn(ctx, o.scheme, o.address)
			if err != nil {
				return nil, nil, err
			}
			return conn, d.conn, nil
		})
		c.pools[o] = p
	}
	p.users++
	if c.sweeper == nil {
		c.sweeper = time.AfterFunc(idleFor, c.sweep)
	}
	return p, nil
}

func (c *Client) leave(p *pool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.users--
}

// closeUnused closes the connections to servers without a request, and removes them. The
// caller holds the lock.
func (c *Client) closeUnused() {
	for o, p := range c.pools {
		if p.users == 0 {
			go p.close() // a server that does not read delays it
			delete(c.pools, o)
		}
	}
}

// sweep closes connections that were idle for long, and removes servers without
// connections. It runs again while there are servers.
func (c *Client) sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for o, p := range c.pools {
		if left := p.sweep(now.Add(-idleFor)); !left && p.users == 0 {
			delete(c.pools, o)
		}
	}
	c.sweeper = nil
	if len(c.pools) > 0 && !c.closed {
		c.sweeper = time.AfterFunc(idleFor/2, c.sweep)
	}
}
