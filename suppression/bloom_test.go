package suppression

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
)

func pairsFrom(from, to int) (all []pair) {
	for i := from; i < to; i++ {
		all = append(all, pair{key: KeyOf(lemma.Email, person(i))})
	}
	return all
}

// A filter has every pair that was added, and few others, up to its capacity. The pairs of a
// key in the list of suppressions and in those of topics are different.
func TestAFilterHasWhatWasAdded(t *testing.T) {
	t.Parallel()
	const n = 20_000
	b := newBloom(n, 0)
	topic := uuid.UUID{15: 1, 8: 77}
	for i, p := range pairsFrom(0, b.capacity) {
		if i%2 == 1 {
			p.topic = topic
		}
		b.add(p)
	}
	if b.isFull() || b.capacity != n+n/4 || b.pairs < b.capacity*99/100 {
		t.Errorf("it has %d pairs, with a capacity of %d", b.pairs, b.capacity)
	}
	others := 0
	for i, p := range pairsFrom(0, 2*b.capacity) {
		in, inTopic := b.has(p), b.has(pair{topic, p.key})
		switch {
		case i < b.capacity && i%2 == 0 && !in, i < b.capacity && i%2 == 1 && !inTopic:
			t.Fatalf("it has not pair %d", i)
		case i < b.capacity && i%2 == 1 && in, i < b.capacity && i%2 == 0 && inTopic, i >= b.capacity && in:
			others++
		}
	}
	if others > 2*b.capacity/150 {
		t.Errorf("%d of %d others are taken for one of the filter", others, 2*b.capacity)
	}
	for _, p := range pairsFrom(3*n, 3*n+n/4) {
		b.add(p)
	}
	if !b.isFull() {
		t.Error("it has capacity for twice as many")
	}
}

// The bits of a filter, in parts, are the filter again.
func TestBitsOfAFilter(t *testing.T) {
	t.Parallel()
	b := newBloom(1000, 0)
	for _, p := range pairsFrom(0, 1000) {
		b.add(p)
	}
	again := &bloom{}
	for from := 0; from < len(b.blocks); from += 7 {
		again.appendBytes(b.bytes(from, 7))
	}
	if again.size() != b.size() {
		t.Fatalf("%d bytes, want %d", again.size(), b.size())
	}
	for i, block := range again.blocks {
		if block != b.blocks[i] {
			t.Fatalf("block %d differs", i)
		}
	}
}

// Stored bits have a form. What changes the place of a pair or the key of an address changes
// bloomForm and this test.
func TestTheFormOfStoredBits(t *testing.T) {
	t.Parallel()
	b := newBloom(0, 64)
	b.add(pair{uuid.UUID{9: 5}, KeyOf(lemma.Email, "A@Shop.example")})
	var bits []int
	for i, block := range b.blocks {
		for bit := range blockBytes * 8 {
			if block[bit/64]>>(bit%64)&1 == 1 {
				bits = append(bits, i*blockBytes*8+bit)
			}
		}
	}
	if want := []int{554, 626, 674, 696, 764, 944}; bloomForm != 1 || !slices.Equal(bits, want) {
		t.Errorf("form %d has the bits %v", bloomForm, bits)
	}
}

// A list that is too long for the memory of a workspace has a filter that is less exact.
func TestTheLargestFilter(t *testing.T) {
	t.Parallel()
	if b := newBloom(1_000_000_000, 0); b.size() != mostBytes {
		t.Errorf("%d bytes", b.size())
	}
}

// The memory of workspaces that were not used for a while is taken for others; that of
// others stays.
func TestMemoryOfUnusedWorkspaces(t *testing.T) {
	t.Parallel()
	c := NewChecker(nil, nil, Config{Memory: 100})
	unused, used, next := c.lists(lemma.NewID()), c.lists(lemma.NewID()), c.lists(lemma.NewID())
	for _, l := range []*lists{unused, used} {
		if !c.reserve(l, 50) {
			t.Fatal("there is memory for two")
		}
	}
	if c.reserve(next, 50) {
		t.Error("the memory of a workspace in use is taken")
	}
	if !c.reserve(used, 40) || !c.reserve(used, 50) || c.memory != 100 {
		t.Errorf("a filter is loaded again, and %d bytes are taken", c.memory)
	}
	unused.used = time.Now().Add(-2 * unusedAfter)
	if !c.reserve(next, 50) || c.of[unused.workspace] != nil || c.of[used.workspace] == nil || c.memory != 100 {
		t.Errorf("%d filters in %d bytes", len(c.of), c.memory)
	}
	if c.free(used); c.reserve(unused, 50) {
		t.Error("memory is taken for a workspace that was dropped")
	}
	f := &filter{}
	if !c.reserve(used, 50) {
		t.Error("there is memory again")
	}
	c.keep(used, f)
	if c.forget(used, &filter{}); used.filter != f || c.memory != 100 {
		t.Error("another filter is given up")
	}
	if c.forget(used, f); used.filter != nil || c.memory != 50 {
		t.Errorf("a filter that is given up keeps %d bytes", c.memory-50)
	}
}
