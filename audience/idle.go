package audience

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"lemma"
)

// Limits of idle connections for lookups. A connection runs one transaction at a
// time, and is outside a transaction while it is idle.
const (
	maxIdle     = 2                // per source
	idleFor     = 30 * time.Second // then it is closed
	longestLife = 5 * time.Minute  // also then, so that the role is probed again
	reviveTime  = 2 * time.Second  // for an idle connection to respond
	maxKnown    = 100              // queries that a connection has described and keeps
)

// connection is a session that outlives its transaction.
type connection struct {
	session
	source openedSource
	since  time.Time
	known  map[string]bool // queries that the source has described on it
	timer  *time.Timer     // closes it, while it is idle
}

func (c *connection) remember(text string) {
	if len(c.known) >= maxKnown {
		clear(c.known)
	}
	c.known[text] = true
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
	longer time.Duration // how long one is kept
	closed bool
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
	list := i.lists[c.source.sourceID]
	if n := slices.Index(list, c); n >= 0 {
		list = slices.Delete(list, n, n+1)
	}
	if i.lists[c.source.sourceID] = list; len(list) == 0 {
		delete(i.lists, c.source.sourceID)
	}
	return c
}

// put keeps a connection, or closes it if there are enough.
func (i *idle) put(c *connection) {
	if !i.keep(c) {
		c.close()
	}
}

func (i *idle) keep(c *connection) bool {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	list := i.lists[c.source.sourceID]
	if i.closed || len(list) >= maxIdle {
		return false
	}
	c.timer = time.AfterFunc(i.longer, func() { i.drop(c) })
	i.lists[c.source.sourceID] = append(list, c)
	return true
}

// drop closes a connection that is still idle.
func (i *idle) drop(c *connection) {
	i.mutex.Lock()
	waits := slices.Contains(i.lists[c.source.sourceID], c)
	if waits {
		i.remove(c)
	}
	i.mutex.Unlock()
	if waits {
		c.close()
	}
}

func (i *idle) close() {
	i.mutex.Lock()
	var all []*connection
	for _, list := range i.lists {
		all = append(all, list...)
	}
	clear(i.lists)
	i.closed = true
	i.mutex.Unlock()
	for _, c := range all {
		c.timer.Stop()
		c.close()
	}
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
	err := a.start(r, source.target)
	c.session = r.session
	return c, err
}
