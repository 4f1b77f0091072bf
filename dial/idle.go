package dial

import (
	"slices"
	"sync"

	"github.com/google/uuid"
)

// Idle bounds the connections that are idle: those of the process, and of these the ones
// of one workspace. Each has a file descriptor and buffers, and a workspace decides how
// many servers it has. It is safe for concurrent use.
type Idle struct {
	process, workspace int

	mutex      sync.Mutex
	count      int
	added      uint64
	workspaces map[uuid.UUID][]*IdleConn // the oldest first; none is empty
}

// IdleConn is a connection as Idle counts it.
type IdleConn struct {
	Workspace uuid.UUID
	Close     func() // closes the connection if it is still idle, without waiting for its server

	added uint64 // 0: it is not counted
}

// NewIdle returns a bound under which no connection is idle yet. Both limits are positive.
func NewIdle(process, workspace int) *Idle {
	return &Idle{process: process, workspace: workspace, workspaces: map[uuid.UUID][]*IdleConn{}}
}

// Add counts a connection that became idle. Beyond a limit it removes the one that has been
// idle for longest, and evict closes that: of the workspace, or else of the workspace with
// the most. Pools call Add and Remove under their lock, and evict without it, since Close
// takes the lock of a pool.
func (i *Idle) Add(c *IdleConn) (evict func()) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if c.added > 0 {
		return func() {}
	}
	i.count++
	i.added++
	c.added = i.added
	i.workspaces[c.Workspace] = append(i.workspaces[c.Workspace], c)
	own := i.workspaces[c.Workspace]
	switch {
	case len(own) > i.workspace:
		return i.evict(own[0])
	case i.count > i.process:
		return i.evict(i.longest()[0])
	}
	return func() {}
}

// Remove counts a connection no more. One that is not counted stays so.
func (i *Idle) Remove(c *IdleConn) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if c.added > 0 {
		i.remove(c)
	}
}

func (i *Idle) evict(c *IdleConn) func() {
	i.remove(c)
	return c.Close
}

// remove removes a connection that is counted; i is locked.
func (i *Idle) remove(c *IdleConn) {
	own := i.workspaces[c.Workspace]
	n := slices.Index(own, c)
	own = slices.Delete(own, n, n+1)
	if i.workspaces[c.Workspace] = own; len(own) == 0 {
		delete(i.workspaces, c.Workspace)
	}
	c.added = 0
	i.count--
}

// longest returns the connections of the workspace with the most, and of several the one
// with the oldest. There are no more workspaces than connections.
func (i *Idle) longest() (most []*IdleConn) {
	for _, own := range i.workspaces {
		if len(own) > len(most) || len(own) == len(most) && own[0].added < most[0].added {
			most = own
		}
	}
	return most
}
