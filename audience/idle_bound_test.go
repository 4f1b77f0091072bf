package audience

import (
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"lemma/audience/wire"
	"lemma/dial"
	"lemma/pgtest"
)

// another adds a data source with an audience of its own.
func (b bundle) another(t *testing.T) (source sourceID, audience uuid.UUID) {
	t.Helper()
	b.source = b.addSource(t, Postgres, b.DSN)
	return sourceID{b.Workspace, b.source}, b.keyed(t, "select id::text as k, email from customers").ID
}

func (b bundle) mustLookup(t *testing.T, audience uuid.UUID) {
	t.Helper()
	if _, err := b.lookup(t, audience, nil, []string{"1"}); err != nil {
		t.Fatal(err)
	}
}

// wantIdle checks how many connections the sources have that are idle.
func (b bundle) wantIdle(t *testing.T, want ...int) func(sources ...sourceID) {
	t.Helper()
	return func(sources ...sourceID) {
		t.Helper()
		b.idle.mutex.Lock()
		defer b.idle.mutex.Unlock()
		for n, s := range sources {
			if got := len(b.idle.lists[s]); got != want[n] {
				t.Errorf("source %d has %d idle connections, want %d", n, got, want[n])
			}
		}
	}
}

// A workspace with many data sources has few idle connections: the one that was used least
// recently is closed for another one.
func TestIdleConnectionsOfAWorkspace(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	b.idle.longer = time.Hour
	var sources []sourceID
	var audiences []uuid.UUID
	for range maxIdleOfWorkspace + 2 {
		source, audience := b.another(t)
		sources, audiences = append(sources, source), append(audiences, audience)
	}
	b.waitForNoSessions(t)
	for _, audience := range audiences[:maxIdleOfWorkspace] {
		b.mustLookup(t, audience)
	}
	b.waitForBackends(t, maxIdleOfWorkspace)
	b.mustLookup(t, audiences[0]) // so that the second is the one to close
	for _, audience := range audiences[maxIdleOfWorkspace:] {
		b.mustLookup(t, audience)
	}
	b.waitForBackends(t, maxIdleOfWorkspace)
	b.wantIdle(t, 1, 0, 0, 1)(sources[:4]...)
	b.mustLookup(t, audiences[1])
	b.Close()
	b.waitForNoSessions(t)
}

// When a process has enough idle connections, the workspace with the most has one less.
func TestIdleConnectionsOfAProcess(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	b.idle.longer, b.idle.bound = time.Hour, dial.NewIdle(3, 2)
	other := b
	other.Workspace = pgtest.Workspace(t, b.Pool)
	first, firstPeople := other.another(t)
	second, secondPeople := b.another(t)
	third, thirdPeople := b.another(t)
	fourth, fourthPeople := other.another(t)
	b.waitForNoSessions(t)
	other.mustLookup(t, firstPeople)
	b.mustLookup(t, secondPeople)
	b.mustLookup(t, thirdPeople)
	other.Workspace = pgtest.Workspace(t, b.Pool)
	fifth, fifthPeople := other.another(t)
	other.waitForBackends(t, 3)
	other.mustLookup(t, fifthPeople)
	b.wantIdle(t, 1, 0, 1, 1)(first, second, third, fifth)
	other.Workspace = first.workspace
	other.mustLookup(t, fourthPeople)
	b.wantIdle(t, 0, 0, 1, 1, 1)(first, second, third, fourth, fifth)
	b.waitForBackends(t, 3)
}

// A connection that a lookup uses is not closed for another one, although it was idle when
// that was decided. One that is closed twice counts once.
func TestAUsedConnectionIsNotClosedForAnother(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	b.idle.longer, b.idle.bound = time.Hour, dial.NewIdle(1, 1)
	source, audience := b.another(t)
	b.waitForNoSessions(t)
	b.mustLookup(t, audience)
	c := b.idle.get(b.idle.lists[source][0].source)
	if c == nil {
		t.Fatal("no connection is idle")
	}
	c.idle.Close()
	if !c.revive(t.Context()) {
		t.Fatal("the connection is closed")
	}
	b.Must(c.end(t.Context()))
	b.idle.put(c)
	b.wantIdle(t, 1)(source)
	_, other := b.another(t)
	b.mustLookup(t, other)
	c.idle.Close()
	b.wantIdle(t, 0)(source)
	b.waitForBackends(t, 1)
}

// unread is a session with a source that reads nothing.
type unread struct {
	session
	meter *wire.Meter
}

func (u unread) wire() *wire.Meter { return u.meter }

// close is that of a TLS connection, which sets a deadline of its own.
func (u unread) close() {
	_ = u.meter.SetWriteDeadline(time.Now().Add(5 * time.Second))
	_, _ = u.meter.Write([]byte("the end"))
	_ = u.meter.Close()
}

// The source of one workspace does not delay the lookup of another one, for which its
// connection is closed.
func TestClosingForAnotherDoesNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		i := newIdle()
		i.longer = time.Hour
		c := &connection{session: unread{meter: wire.NewMeter(near, 1, 1)}}
		i.put(c)
		begun := time.Now()
		i.evict(c)
		if took := time.Since(begun); took != evictTime {
			t.Errorf("it took %s, want %s", took, evictTime)
		}
	})
}

// What a connection remembers of its queries has few bytes.
func TestDescribedQueriesAreBounded(t *testing.T) {
	t.Parallel()
	c := &connection{known: map[string]bool{}}
	bytes := func() (n int) {
		for text := range c.known {
			n += len(text)
		}
		return n
	}
	for n := range 300 {
		c.remember(strings.Repeat(string(rune('a'+n%26)), 1000+n))
		if bytes() >= maxKnownBytes+2000 || len(c.known) == 0 {
			t.Fatalf("%d queries with %d bytes after %d", len(c.known), bytes(), n)
		}
	}
	for n := range 300 {
		if c.remember(string(rune(0x400 + n))); len(c.known) > maxKnown {
			t.Fatalf("%d queries", len(c.known))
		}
	}
}
