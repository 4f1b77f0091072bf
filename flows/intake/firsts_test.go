package intake

import (
	"strconv"
	"testing"
)

// A further row is found each time, and a first one is rarely taken for it.
func TestFirsts(t *testing.T) {
	t.Parallel()
	const n = 300_000 // more than the first four filters have room for
	f, wrong := newFirsts(), 0
	for i := range n {
		if !f.add("first" + strconv.Itoa(i)) {
			wrong++
		}
	}
	if wrong > 5 {
		t.Errorf("%d of %d first rows count as further ones", wrong, n)
	}
	for i := range n {
		if f.add("first" + strconv.Itoa(i)) {
			t.Fatalf("row %d is the first twice", i)
		}
	}
	if len(f.filters) < 4 || len(f.filters) > mostFilters {
		t.Errorf("%d filters", len(f.filters))
	}
}

func BenchmarkFirsts(b *testing.B) {
	f := newFirsts()
	for i := 0; b.Loop(); i++ {
		f.add(strconv.Itoa(i % 5_000_000))
	}
}
