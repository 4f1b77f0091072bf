package audience

import (
	"container/heap"
	"math"

	"github.com/cespare/xxhash/v2"
)

// mostLeast is how many hashes a distinct keeps. Its numbers above that are within some 5 %: the
// standard error is one divided by the root of mostLeast.
const mostLeast = 4096

// distinct counts different texts in little memory, by the smallest of their hashes (Bar-Yossef et al.
// 2002, algorithm 1): up to mostLeast exactly, and above with an error, which is the same each time.
type distinct struct {
	known map[uint64]bool
	least hashes
}

func newDistinct() *distinct { return &distinct{known: map[uint64]bool{}} }

func (d *distinct) add(text string) {
	h := xxhash.Sum64String(text)
	switch {
	case len(d.least) == mostLeast && h >= d.least[0], d.known[h]:
		return
	case len(d.least) == mostLeast:
		delete(d.known, d.least[0])
		d.known[h], d.least[0] = true, h
		heap.Fix(&d.least, 0)
		return
	}
	d.known[h] = true
	heap.Push(&d.least, h)
}

func (d *distinct) count() int64 {
	if len(d.least) < mostLeast {
		return int64(len(d.least))
	}
	return int64((mostLeast - 1) / (float64(d.least[0]) / math.MaxUint64))
}

// hashes is a heap with the largest first.
type hashes []uint64

func (h hashes) Len() int           { return len(h) }
func (h hashes) Less(i, j int) bool { return h[i] > h[j] }
func (h hashes) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push adds a hash.
func (h *hashes) Push(x any) { *h = append(*h, x.(uint64)) }

// Pop removes the last hash.
func (h *hashes) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
