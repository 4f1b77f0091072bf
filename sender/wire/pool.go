package wire

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"lemma/dial"
)

// How long a failed connection prevents another one.
const (
	firstBackoff = 50 * time.Millisecond  // doubled for each failure that follows
	mostBackoff  = 400 * time.Millisecond // the circuit of package sender waits longer, on all processes
)

// mostRest is how long a flood prevents another connection at most. The first prevents it for
// mostBackoff.
const mostRest = 10 * time.Second

// mostDials bounds the connections that are opened at a time. One is opened while HTTP/2 is
// expected, since it has capacity for many requests.
const mostDials = 8

// pool has the connections to one server. One is opened while none has capacity for a
// request, so that there are at most as many as requests at a time.
type pool struct {
	dial      func(context.Context) (*http.ClientConn, *meter, error)
	idle      *dial.Idle // of all pools
	workspace uuid.UUID
	users     int // guarded by the client

	private atomic.Bool // a connection led to a private address, whose answers are not shown

	ctx  context.Context //nolint:containedctx // ends the dials of a closed pool
	stop context.CancelFunc

	mu       sync.Mutex
	conns    []*conn
	dialing  int
	waiting  int
	single   bool // connections have one request at a time, as in HTTP/1.1
	brief    bool // the server ends connections after their first answer: none is left to one request
	failures int  // dials in a row
	cause    error
	until    time.Time     // no dial before
	floods   int           // connections whose server has sent much beside its answers: see flooded
	rest     time.Time     // no dial before; requests wait
	changed  chan struct{} // contains a token when waiters should check again; a waiter that was served passes it on
}

func newPool(idle *dial.Idle, workspace uuid.UUID, connect func(context.Context) (*http.ClientConn, *meter, error)) *pool {
	p := &pool{dial: connect, idle: idle, workspace: workspace, changed: make(chan struct{}, 1)}
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p
}

// take reserves capacity for a request, which RoundTrip or Release ends, and done follows. The
// error is that of the last dial, or of ctx. If waited is false, that dial was an earlier one.
func (p *pool) take(ctx context.Context) (c *capacity, waited bool, err error) {
	p.enter()
	defer p.exit()
	for {
		c, err := p.reserve()
		if c != nil || err != nil {
			p.notify() // other waiters may have capacity, or the same error
			return c, waited, err
		}
		waited = true
		again := time.NewTimer(checkAgain)
		select {
		case <-p.changed:
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return nil, waited, ctx.Err()
		}
		again.Stop()
	}
}

func (p *pool) enter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting++
}

// exit follows enter. Connections that were opened for requests that no longer wait are idle.
func (p *pool) exit() {
	for _, evict := range p.leftOver() {
		evict()
	}
}

func (p *pool) leftOver() (evict []func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting--; p.waiting > 0 {
		return nil
	}
	for _, c := range p.conns {
		if c.fresh {
			evict = append(evict, p.idle.Add(&c.idle))
		}
	}
	return evict
}

// reserve returns capacity on a connection, the error of a dial a moment ago, or neither
// while a dial is under way or all connections are full.
func (p *pool) reserve() (*capacity, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(func(c *conn) bool {
		if c.Err() == nil && (c.calls > 0 || !c.isOld() && (c.settles() || c.Available() > 0)) { // in this order: see settles
			return false
		}
		p.ended(c)
		go c.Close() // it may only have announced its end
		return true
	})
	warming := false                             // a connection will have capacity in a moment
	for _, c := range slices.Backward(p.conns) { // the last is used first, so that the others can be closed
		if !c.warm && c.calls > 0 {
			if c.Available() > 0 {
				warming = true
				p.warmUp(c)
			}
			continue
		}
		if c.Reserve() == nil {
			reserved := &capacity{ClientConn: c.ClientConn, fresh: c.fresh, of: c}
			c.fresh, c.used = false, time.Now()
			c.calls++
			c.meter.begin()
			p.idle.Remove(&c.idle)
			return reserved, nil
		}
		warming = warming || c.settles()
	}
	if warming {
		return nil, nil
	}
	if p.ctx.Err() != nil {
		return nil, errClosed
	}
	if time.Now().Before(p.until) {
		if len(p.conns) == 0 && p.dialing == 0 {
			return nil, p.cause
		}
		return nil, nil
	}
	if time.Now().Before(p.rest) {
		return nil, nil
	}
	for p.dialing == 0 || p.single && p.dialing < min(p.waiting, mostDials) {
		p.dialing++
		go p.open()
	}
	return nil, nil
}

// checkAgain is how long a request waits before it looks for capacity again by itself. changed keeps
// one token, so that of several changes at one moment only one request may be woken.
const checkAgain = time.Second

// warmTime is how long the first request on a connection is alone on it.
const warmTime = time.Second

// warmUp ends the time in which a new connection is left to its first request, while others wait for
// it. How many requests a server of HTTP/2 takes at a time is not known before the first one ends;
// APNs takes one until it has seen a valid token. What exceeds it is refused, or waits until its time
// is over.
func (p *pool) warmUp(c *conn) {
	if c.isWarming {
		return
	}
	c.isWarming = true
	time.AfterFunc(warmTime-time.Since(c.used), func() {
		p.mu.Lock()
		c.warm = true
		p.mu.Unlock()
		p.notify()
	})
}

// remove removes connections from the pool, which is locked.
func (p *pool) remove(which func(*conn) bool) {
	p.conns = slices.DeleteFunc(p.conns, func(c *conn) bool {
		if !which(c) {
			return false
		}
		p.idle.Remove(&c.idle)
		return true
	})
}

// done follows the end of a request. Beyond the bound of idle connections another one is
// closed for its connection.
func (p *pool) done(c *capacity) {
	p.leave(c)()
	p.notify() // the connection may have become warm
}

func (p *pool) leave(served *capacity) (evict func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := served.of
	c.calls--
	c.finish(served)
	if !c.spent { // otherwise all that the server may still send is for the requests in progress
		c.meter.end(served.answer, c.calls)
		if c.spent = c.meter.spent(); c.spent {
			p.remove(func(one *conn) bool { return one == c })
			p.flooded(c)
		}
	}
	if c.calls > 0 {
		return func() {}
	}
	if !slices.Contains(p.conns, c) {
		p.ended(c)
		return func() { go c.Close() }
	}
	p.expireLater(c)
	return p.idle.Add(&c.idle)
}

// expireLater closes a connection that is idle before its server does: the next requests would close
// all such connections while they open others, and some servers take only so many.
func (p *pool) expireLater(c *conn) {
	if c.keep >= idleFor {
		return
	}
	left := max(c.keep-time.Since(c.since), 0)
	if c.expiry != nil {
		c.expiry.Reset(left)
		return
	}
	c.expiry = time.AfterFunc(left, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if c.calls == 0 && c.isOld() && slices.Contains(p.conns, c) {
			p.remove(func(one *conn) bool { return one == c })
			p.ended(c)
			go c.Close()
		}
	})
}

// ended follows the end of a connection, once its last request has ended.
func (p *pool) ended(c *conn) {
	if c.calls > 0 {
		return
	}
	if c.meter.flooded() {
		p.flooded(c)
	}
	p.brief = c.ended == 1 && time.Since(c.since) < warmTime
}

// flooded makes the next dial wait, since the server has sent much beside the answers of a connection:
// longer for each such connection, and less again with the time between them. Requests wait meanwhile.
func (p *pool) flooded(c *conn) {
	if c.isFlood {
		return
	}
	c.isFlood = true
	p.floods = max(0, p.floods-int(time.Since(p.rest)/mostRest))
	rest := min(mostBackoff<<min(p.floods, 20), mostRest)
	p.floods++
	p.rest = time.Now().Add(rest)
	time.AfterFunc(rest, p.notify)
}

// evict closes a connection that is still idle, for another one. That may be of another
// workspace, which does not wait: this pool may be locked, and TLS waits up to 10 s for a server
// that does not read.
func (p *pool) evict(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.calls == 0 && slices.Contains(p.conns, c) {
		p.remove(func(one *conn) bool { return one == c })
		go c.Close()
	}
}

// open adds a connection. It is idle if no request waits any more.
func (p *pool) open() {
	defer p.notify()
	c, beneath, err := p.dial(p.ctx)
	p.add(c, beneath, err)()
}

func (p *pool) add(c *http.ClientConn, beneath *meter, err error) (evict func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dialing--
	if err != nil {
		wait := min(firstBackoff<<min(p.failures, 20), mostBackoff)
		p.until, p.cause = time.Now().Add(wait), err
		p.failures++
		time.AfterFunc(wait, p.notify) // requests wait while there are other connections
		return func() {}
	}
	if p.ctx.Err() != nil {
		return func() { _ = c.Close() }
	}
	p.failures, p.until, p.cause = 0, time.Time{}, nil
	p.single = c.Available() == 1
	now := time.Now()
	made := &conn{ClientConn: c, meter: beneath, fresh: true, used: now, since: now, keep: idleFor, warm: p.brief}
	if p.single {
		made.keep = keepUnknown
		p.expireLater(made)
	}
	made.idle = dial.IdleConn{Workspace: p.workspace, Close: func() { go p.evict(made) }}
	p.conns = append(p.conns, made)
	c.SetStateHook(func(*http.ClientConn) { p.notify() })
	if p.waiting > 0 { // the connection is for a request, and none is closed for it; see exit
		return func() {}
	}
	return p.idle.Add(&made.idle)
}

func (p *pool) notify() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// sweep closes connections that were last used before a time. It reports whether there
// are others.
func (p *pool) sweep(before time.Time) (left bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(func(c *conn) bool {
		if c.Err() == nil && (c.InFlight() > 0 || c.used.After(before)) {
			return false
		}
		go c.Close()
		return true
	})
	return len(p.conns)+p.dialing > 0
}

// close closes all connections, at the same time: TLS waits for a server that does not read.
func (p *pool) close() {
	p.stop()
	var all sync.WaitGroup
	for _, c := range p.empty() {
		all.Go(func() { _ = c.Close() })
	}
	all.Wait()
}

func (p *pool) empty() (conns []*conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(func(c *conn) bool {
		conns = append(conns, c)
		return true
	})
	return conns
}
