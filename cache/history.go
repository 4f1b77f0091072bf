package cache

import "sync"

// History separates values that were read before another server, or another database, answered
// from those that were read afterwards: after a failover to a standby that lacks the last
// commits, or a restore, the former may never have been stored. Its zero value is ready, and a
// nil one never changes. It is safe for concurrent use.
type History struct {
	mu     sync.Mutex
	server string // the one that answered last
	moment Moment
}

// Moment is the time of a read in the history of a database. The caller takes it before it
// reads: a value of an earlier moment is not kept.
type Moment int

// Now is the present moment.
func (h *History) Now() Moment {
	if h == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.moment
}

// IsOf reports whether a server answered last, or is the first one. server is text that no
// other server or database has.
func (h *History) IsOf(server string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.server == "" || h.server == server
}

// Continue reports which server answers. If it is not the one that answered last, a new moment
// begins, and nothing that was read before is kept.
func (h *History) Continue(server string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.server != "" && h.server != server {
		h.moment++
	}
	h.server = server
}
