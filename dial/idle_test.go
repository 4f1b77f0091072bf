package dial_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"lemma/dial"
)

// kept are the connections that a test has added, and those that were evicted.
type kept struct {
	*dial.Idle
	workspaces map[byte]uuid.UUID
	conns      map[string]*dial.IdleConn
	evicted    []string
}

func keep(process, workspace int) *kept {
	return &kept{Idle: dial.NewIdle(process, workspace), workspaces: map[byte]uuid.UUID{}, conns: map[string]*dial.IdleConn{}}
}

// add adds a connection. The first character of its name is its workspace.
func (k *kept) add(names ...string) {
	for _, name := range names {
		if k.conns[name] == nil {
			if k.workspaces[name[0]] == uuid.Nil {
				k.workspaces[name[0]] = uuid.New()
			}
			k.conns[name] = &dial.IdleConn{Workspace: k.workspaces[name[0]], Close: func() { k.evicted = append(k.evicted, name) }}
		}
		k.Add(k.conns[name])()
	}
}

func (k *kept) want(t *testing.T, evicted string) {
	t.Helper()
	if got := strings.Join(k.evicted, " "); got != evicted {
		t.Errorf("evicted are %q, want %q", got, evicted)
	}
	k.evicted = nil
}

// Beyond the limit of a workspace its oldest connection is closed, and beyond that of the
// process the oldest of the workspace with the most.
func TestIdleConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	k := keep(5, 3)
	k.add("b1", "a1", "a2", "a3")
	k.want(t, "")
	k.add("a4")
	k.want(t, "a1")
	k.add("b2")
	k.want(t, "")
	k.add("c1")
	k.want(t, "a2")
	k.add("d1") // a and b have two each, and b has the oldest
	k.want(t, "b1")
	k.add("e1")
	k.want(t, "a3")
	k.add("f1") // each has one
	k.want(t, "a4")
}

// A connection that is used again does not count, and is the newest when it is idle again.
func TestUsedConnectionsAreNotIdle(t *testing.T) {
	t.Parallel()
	k := keep(3, 2)
	k.add("a1", "a2", "a1")
	k.Remove(k.conns["a1"])
	k.Remove(k.conns["a1"])
	k.add("b1", "a1")
	k.want(t, "")
	k.add("a3")
	k.want(t, "a2")
	k.Remove(k.conns["a2"]) // its pool finds it gone
	k.Remove(k.conns["b1"])
	k.add("c1")
	k.want(t, "")
	k.add("d1")
	k.want(t, "a1")
}

// Pools that use and keep connections together never have more than the limits.
func TestIdleConnectionsOfManyPools(t *testing.T) {
	t.Parallel()
	const process, workspace = 20, 8
	i := dial.NewIdle(process, workspace)
	var mutex sync.Mutex
	open := map[*dial.IdleConn]bool{}
	var all sync.WaitGroup
	for range 6 {
		of := uuid.New()
		for range 3 {
			all.Go(func() {
				for n := range 500 {
					c := &dial.IdleConn{Workspace: of}
					c.Close = func() {
						mutex.Lock()
						defer mutex.Unlock()
						delete(open, c)
					}
					mutex.Lock()
					open[c] = true
					evict := i.Add(c)
					mutex.Unlock()
					evict()
					if n%3 == 0 {
						i.Remove(c)
						c.Close()
					}
				}
			})
		}
	}
	all.Wait()
	byWorkspace := map[uuid.UUID]int{}
	for c := range open {
		byWorkspace[c.Workspace]++
	}
	if len(open) != process {
		t.Errorf("%d are idle, want %d", len(open), process)
	}
	for _, n := range byWorkspace {
		if n > workspace {
			t.Errorf("%d of a workspace are idle, want at most %d", n, workspace)
		}
	}
}
