package audience

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/dial"
)

// Limits of idle connections for lookups. A connection runs one transaction at a
// time, and is outside a transaction while it is idle.
const (
	maxIdle            = 2                      // per source
	maxIdleOfWorkspace = 16                     // of all sources of a workspace
	maxIdleOfProcess   = 64                     // of all sources
	idleFor            = 30 * time.Second       // then it is closed
	longestLife        = 5 * time.Minute        // also then, so that the role is probed again
	reviveTime         = 2 * time.Second        // for an idle connection to respond
	evictTime          = 100 * time.Millisecond // to close one for another
	maxKnown           = 100                    // queries that a connection has described and keeps
	maxKnownBytes      = 64 << 10               // of all but the last of them
)

// connection is a session that outlives its transaction.
type connection struct {
	session
	source openedSource
	since  time.Time
	known  map[string]bool // queries that the source has described on it
	bytes  int             // of these
	timer  *time.Timer     // closes it, while it is idle
	idle   dial.IdleConn
}

func (c *connection) remember(text string) {
	if len(c.known) >= maxKnown || c.bytes >= maxKnownBytes {
		clear(c.known)
		c.bytes = 0
	}
	c.known[text] = true
	c.bytes += len(text)
}

// revive opens a transaction on an idle connection. It closes a dead one.
func (c *connection) revive(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, reviveTime)
	defer cancel()
	defer c.wire().BoundTo(ctx)()
	if err := lemma.Recovered(func() error { return c.again(ctx) }); err != nil {
		c.close()
		return false
	}
	return true
}

// close recovers a panic of a driver, since timers call it.
func (c *connection) close() {
	_ = lemma.Recovered(func() error { c.session.close(); return nil })
}

// idle has the idle connections by source.
type idle struct {
	mutex  sync.Mutex
	lists  map[sourceID][]*connection
	bound  *dial.Idle    // of all of them
	longer time.Duration // how long one is kept
	closed bool
}

func newIdle() idle {
	return idle{lists: map[sourceID][]*connection{}, bound: dial.NewIdle(maxIdleOfProcess, maxIdleOfWorkspace), longer: idleFor}
}

type sourceID struct{ workspace, id uuid.UUID }

// get returns the connection that was used last, and closes those to an earlier
// version of the source.
func (i *idle) get(source openedSource) *connection {
	c, old := i.sort(source)
	for _, o := range old {
		o.close()
	}
	return c
}

func (i *idle) sort(source openedSource) (c *connection, old []*connection) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	list := i.lists[source.sourceID]
	for _, one := range slices.Backward(list) {
		switch fits := one.source == source && time.Since(one.since) < longestLife; {
		case !fits:
			old = append(old, i.remove(one))
		case c == nil:
			c = i.remove(one)
		}
	}
	return c, old
}

// remove removes c from its list; i is locked.
func (i *idle) remove(c *connection) *connection {
	c.timer.Stop()
	i.bound.Remove(&c.idle)
	list := i.lists[c.source.sourceID]
	if n := slices.Index(list, c); n >= 0 {
		list = slices.Delete(list, n, n+1)
	}
	if i.lists[c.source.sourceID] = list; len(list) == 0 {
		delete(i.lists, c.source.sourceID)
	}
	return c
}

// put keeps a connection, and closes another one for it, or itself, if there are enough.
func (i *idle) put(c *connection) { i.keep(c)() }

// keep returns what closes the one that is too many. It is called without the lock.
func (i *idle) keep(c *connection) (evict func()) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	list := i.lists[c.source.sourceID]
	if i.closed || len(list) >= maxIdle {
		return c.close
	}
	c.timer = time.AfterFunc(i.longer, func() { i.drop(c) })
	i.lists[c.source.sourceID] = append(list, c)
	return i.bound.Add(&c.idle)
}

// drop closes a connection that is still idle.
func (i *idle) drop(c *connection) {
	if i.take(c) {
		c.close()
	}
}

// evict is drop by a lookup that keeps another connection. That may be of another workspace,
// so it does not wait for a source that does not read: then what is beneath TLS is closed, since
// closing a TLS connection sends an alert, for which it waits 5 s.
func (i *idle) evict(c *connection) {
	if i.take(c) {
		defer time.AfterFunc(evictTime, func() { _ = c.wire().Close() }).Stop()
		c.close()
	}
}

// take removes a connection if it is still idle.
func (i *idle) take(c *connection) bool {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	waits := slices.Contains(i.lists[c.source.sourceID], c)
	if waits {
		i.remove(c)
	}
	return waits
}

func (i *idle) close() {
	i.mutex.Lock()
	var all []*connection
	for _, list := range i.lists {
		all = append(all, list...)
	}
	for _, c := range all {
		i.remove(c)
	}
	i.closed = true
	i.mutex.Unlock()
	var closing sync.WaitGroup
	for _, c := range all {
		closing.Go(c.close)
	}
	closing.Wait()
}

// Close closes the idle connections of lookups. Running lookups continue.
func (a *Audiences) Close() { a.idle.close() }

// withConnection runs work in a transaction, on an idle connection if one is alive
// and on a new one otherwise. The connection is kept if there was no error.
func (a *Audiences) withConnection(ctx context.Context, source openedSource, work func(*run, *connection) error) error {
	leave, err := a.enter(ctx, a.lookups, source.sourceID)
	if err != nil {
		return err
	}
	defer leave()
	r := a.newRun(ctx, a.lookupSpan())
	defer r.stop()
	var c *connection
	complete := false // the result is complete; a later error does not change it
	err = r.safely(func() (err error) {
		if c, err = a.connection(r, source); err != nil {
			return err
		}
		if err := work(r, c); err != nil {
			return err
		}
		complete = true
		return c.end(r.ctx)
	})
	switch {
	case err == nil && r.release():
		a.idle.put(c)
		return nil
	case complete:
		err = nil
	}
	r.closeSession()
	return r.explain(ctx, err)
}

// connection returns an idle connection that is alive, or a new one. The run closes
// it, also after an error.
func (a *Audiences) connection(r *run, source openedSource) (*connection, error) {
	for c := a.idle.get(source); c != nil; c = a.idle.get(source) {
		if c.revive(r.ctx) {
			r.session = c.session
			r.allow(r.span.bytes, textsFor(r.ctx))
			r.bind()
			return c, nil
		}
	}
	c := &connection{source: source, since: time.Now(), known: map[string]bool{}}
	c.idle = dial.IdleConn{Workspace: source.workspace, Close: func() { a.idle.evict(c) }}
	err := a.start(r, source.target)
	c.session = r.session
	return c, err
}
