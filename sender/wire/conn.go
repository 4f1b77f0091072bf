package wire

import (
	"net/http"
	"time"

	"lemma/dial"
)

// conn is a connection of a pool.
type conn struct {
	*http.ClientConn
	meter *meter
	fresh bool // no request was sent on it
	used  time.Time
	calls int // that have capacity on it
	idle  dial.IdleConn

	warm      bool          // it takes several requests at a time: see warmUp
	ended     int           // how many requests have ended on it
	since     time.Time     // the end of the last one, or when it was opened
	keep      time.Duration // it gets no request later than that after since
	expiry    *time.Timer   // closes it then; nil: sweep does
	isWarming bool          // it becomes warm after warmTime
	spent     bool          // it gets no more requests: see meter
	isFlood   bool          // it was counted as one
}

// capacity is that of a connection for one request.
type capacity struct {
	*http.ClientConn
	fresh bool // the request is the first
	of    *conn

	answer int64         // its bytes
	keep   time.Duration // how long the connection may be idle after its answer; 0: there was none
	unused bool          // no request was sent
}

// Release ends the reservation without a request.
func (c *capacity) Release() {
	c.unused = true
	c.ClientConn.Release()
}

// settles reports that the last request of a connection has ended a moment ago, and that net/http
// still counts it: the connection has not ended, and will have capacity. While this is asked, net/http
// may stop counting it, so that only a later call of Available says that the connection has none.
func (c *conn) settles() bool {
	return c.calls == 0 && c.Err() == nil && c.InFlight() > 0 && time.Since(c.since) < warmTime
}

// isOld reports that an idle connection may be closed by the server at any time.
func (c *conn) isOld() bool { return time.Since(c.since) >= c.keep }

// finish follows the end of a request.
func (c *conn) finish(served *capacity) {
	if served.unused {
		c.fresh = c.ended == 0 && c.calls == 0
		return
	}
	c.warm, c.ended, c.since = true, c.ended+1, time.Now()
	if served.keep > 0 {
		c.keep = served.keep
	}
}
