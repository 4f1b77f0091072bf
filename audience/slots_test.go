package audience

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/slots"
)

// silentSource accepts connections, reports each, and never responds.
func (b bundle) silentSource(t *testing.T) (source uuid.UUID, accepted <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	reports := make(chan struct{}, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			reports <- struct{}{}
		}
	}()
	return b.addSource(t, Postgres, "postgres://u@"+l.Addr().String()+"/x?sslmode=disable"), reports
}

// TestReadsForCallersAreBounded takes the slots of a source by reads that
// wait: the next is refused soon, one of another workspace is not, and a caller
// that cancels releases its slot at once.
func TestReadsForCallersAreBounded(t *testing.T) {
	t.Parallel()
	o := dev
	o.ConnectTimeout = time.Minute
	b := setup(t, o)
	slow, accepted := b.silentSource(t)
	ctx, closeConnections := context.WithCancel(ForCaller(t.Context(), true))
	var all sync.WaitGroup
	for range limitsOfReads.Resource {
		all.Go(func() { b.Schema(ctx, b.Workspace, slow) })
	}
	for range limitsOfReads.Resource {
		<-accepted
	}
	begun := time.Now()
	_, err := b.TestSource(ForCaller(t.Context(), true), b.Workspace, slow)
	if codeOf(err) != CodeOverloaded || lemma.KindOf(err) != lemma.Unavailable || time.Since(begun) > slots.Wait+20*time.Second {
		t.Errorf("got %v after %s", err, time.Since(begun))
	}
	if s, err := b.GetSource(t.Context(), b.Workspace, slow); err != nil || s.Status != "untested" {
		t.Errorf("a test that did not run is stored as %+v, %v", s, err)
	}
	if _, err := b.Schema(ForCaller(t.Context(), true), b.Workspace, b.source); err != nil {
		t.Errorf("another source: %v", err)
	}
	begun = time.Now()
	closeConnections()
	all.Wait()
	if d := time.Since(begun); d > 20*time.Second {
		t.Errorf("cancelled callers were blocked for %s", d)
	}
	if n := b.takenOf(slow); n != 0 {
		t.Errorf("%d slots are still taken", n)
	}
}

// TestLookupsForCallersAreBounded takes the slots for lookups of a source: the next is
// refused soon, and other reads of the source and the lookups of workers are not.
func TestLookupsForCallersAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, dev)
	x := b.addAudience(t, "select id, email from customers where pg_sleep(0.01) is not null")
	lookup := func(ctx context.Context, yield func(Row) error) error {
		return b.LookupEach(ctx, b.Workspace, x.ID, nil, []string{"1"}, yield)
	}
	caller := ForCaller(t.Context(), true)
	t.Cleanup(b.Close)
	reading, free := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	for range limitsOfReads.Resource {
		all.Go(func() {
			if err := lookup(caller, func(Row) error { reading <- struct{}{}; <-free; return nil }); err != nil {
				t.Error(err)
			}
		})
		<-reading
	}
	none := func(Row) error { return nil }
	if err := lookup(caller, none); codeOf(err) != CodeOverloaded || lemma.KindOf(err) != lemma.Unavailable {
		t.Errorf("a lookup: %v", err)
	}
	if _, err := b.Matching(caller, b.Workspace, b.source, "select profile_key from people", people("1")); codeOf(err) != CodeOverloaded {
		t.Errorf("a matching: %v", err)
	}
	if err := lookup(t.Context(), none); err != nil {
		t.Errorf("a lookup of a worker: %v", err)
	}
	if _, err := b.Schema(caller, b.Workspace, b.source); err != nil {
		t.Errorf("another read: %v", err)
	}
	close(free)
	all.Wait()
	if err := lookup(caller, none); err != nil || b.lookups.Taken(sourceID{b.Workspace, b.source}.slot()) != 0 {
		t.Errorf("later: %v", err)
	}
}

func (b bundle) takenOf(source uuid.UUID) int {
	return b.reads.Taken(sourceID{b.Workspace, source}.slot())
}

// TestCountsTakeLittleMemory measures the memory of a count per address. It is
// not parallel, since it measures allocations.
func TestCountsTakeLittleMemory(t *testing.T) {
	const people = 2_000_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s := newSeen(people)
	for i := range people + 1000 {
		if s.before(fmt.Sprintf("person%d@example.com", i)) {
			t.Fatalf("address %d is mistaken for another", i)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := float64(after.HeapAlloc-before.HeapAlloc) / people; each > 12 || !s.full {
		t.Errorf("%.1f bytes for each address, full: %t", each, s.full)
	}
	if !s.before("person7@example.com") {
		t.Error("person 7 is forgotten")
	}
}
