package cache

import (
	"testing"

	"github.com/google/uuid"
)

const kib = 1 << 10

func TestTheBytesOfACacheAreBounded(t *testing.T) {
	t.Parallel()
	c := New[int, string](100*kib, 100*kib)
	for n := range 1000 {
		c.Put(0, uuid.UUID{byte(n)}, n, "x", 20*kib)
		if c.Bytes() > 100*kib || len(c.entries) > 4 || c.used.Len() != len(c.entries) {
			t.Fatalf("%d entries have %d bytes", len(c.entries), c.Bytes())
		}
	}
	if _, ok := c.Get(999); !ok {
		t.Error("the last value is not kept")
	}
	if len(c.workspaces) != len(c.entries) {
		t.Errorf("%d workspaces are remembered for %d entries", len(c.workspaces), len(c.entries))
	}
}

func TestTheNumberOfSmallValuesIsBounded(t *testing.T) {
	t.Parallel()
	c := New[int, string](100*kib, 100*kib)
	for n := range 1000 {
		c.Put(0, uuid.Nil, n, "x", 0)
	}
	if len(c.entries) > 25 {
		t.Errorf("%d entries are kept", len(c.entries))
	}
}

func TestAWorkspaceEvictsItsOwnValuesBeyondItsShare(t *testing.T) {
	t.Parallel()
	c := New[string, string](100*kib, 40*kib)
	one, other := uuid.New(), uuid.New()
	c.Put(0, other, "of another", "x", 10*kib)
	for n := range 100 {
		c.Put(0, one, string(rune('A'+n)), "x", 10*kib)
	}
	if _, ok := c.Get("of another"); !ok {
		t.Error("the value of another workspace is evicted")
	}
	if c.workspaces[one] > 40*kib {
		t.Errorf("it has %d bytes of a share of %d", c.workspaces[one], 40*kib)
	}
	c.Put(0, one, "too large", "x", 40*kib)
	if _, ok := c.Get("too large"); ok {
		t.Error("a value that is larger than the share is kept")
	}
}

func TestTheValueThatWasUsedLastIsKept(t *testing.T) {
	t.Parallel()
	c := New[int, string](32*kib, 32*kib)
	for n := range 3 {
		c.Put(0, uuid.Nil, n, "x", 4*kib)
	}
	c.Get(0)
	for n := 3; n < 6; n++ {
		c.Put(0, uuid.Nil, n, "x", 4*kib)
	}
	if _, ok := c.Get(0); !ok {
		t.Error("the value that was used last is evicted")
	}
	if _, ok := c.Get(1); ok {
		t.Error("a value that was not used is kept")
	}
}

func TestAValueThatIsPutTwiceCountsOnce(t *testing.T) {
	t.Parallel()
	c := New[int, string](32*kib, 32*kib)
	c.Put(0, uuid.Nil, 1, "x", 4*kib)
	c.Put(0, uuid.Nil, 1, "y", 8*kib)
	if v, _ := c.Get(1); v != "y" || c.Bytes() != 12*kib {
		t.Errorf("%q has %d bytes", v, c.Bytes())
	}
}

// What was read before another server answered is not returned, also if it is put afterwards.
func TestAnotherServerHasOtherValues(t *testing.T) {
	t.Parallel()
	var h History
	c := New[int, string](100*kib, 100*kib)
	c.Follow(&h)
	has := func(key int, want bool) {
		t.Helper()
		if _, ok := c.Get(key); ok != want {
			t.Errorf("the cache has %d: %v", key, ok)
		}
	}
	h.Continue("a")
	before := c.Now()
	c.Put(before, uuid.Nil, 1, "of a", kib)
	h.Continue("a")
	has(1, true)
	if !h.IsOf("a") || h.IsOf("b") {
		t.Error("a answered last")
	}
	h.Continue("b")
	has(1, false)
	c.Put(before, uuid.Nil, 2, "read from a", kib)
	has(2, false)
	c.Put(c.Now(), uuid.Nil, 2, "of b", kib)
	has(2, true)
	h.Continue("a")
	has(1, false)
	has(2, false)
}

func TestUnusedValuesAreEvicted(t *testing.T) {
	t.Parallel()
	c := New[int, int](100*kib, 100*kib)
	for n := range 4 {
		c.Put(0, uuid.Nil, n, n, 0)
	}
	c.Get(0)
	c.EvictUnused(func(n int) bool { return n < 2 })
	for n, want := range []bool{true, false, true, true} { // 0 was used after 2
		if _, ok := c.Get(n); ok != want {
			t.Errorf("the value %d is kept: %v", n, ok)
		}
	}
	c.EvictUnused(func(int) bool { return true })
	if len(c.entries) != 0 || c.Bytes() != 0 {
		t.Errorf("%d entries have %d bytes", len(c.entries), c.Bytes())
	}
}
