package webhooks

import "math/bits"

// An endpoint has 20 subscriptions, and an event 1,000 direct notifications with metadata of their own. So they
// are not compared one by one: each entry of metadata has a set of the notifications that have it.

// itemSet is a set of items of an event, by their places.
type itemSet []uint64

func newItemSet(n int) itemSet { return make(itemSet, (n+63)/64) }

func (b itemSet) add(i int)      { b[i/64] |= 1 << (i % 64) }
func (b itemSet) has(i int) bool { return i/64 < len(b) && b[i/64]&(1<<(i%64)) != 0 }

func (b itemSet) count() (n int) {
	for _, word := range b {
		n += bits.OnesCount64(word)
	}
	return n
}

// or is the union of two sets of one event; nil is the empty one.
func (b itemSet) or(other itemSet) itemSet {
	if b == nil {
		return other
	}
	for i, word := range other {
		b[i] |= word
	}
	return b
}

// index are the items of an event by the entries of their metadata.
type index struct {
	items int
	of    map[int]itemSet
}

// index is empty for an event whose items have no metadata of their own.
func (e *waiting) index() index {
	x := index{len(e.ofItems), map[int]itemSet{}}
	for i, entries := range e.ofItems {
		for _, entry := range entries {
			if x.of[entry] == nil {
				x.of[entry] = newItemSet(x.items)
			}
			x.of[entry].add(i)
		}
	}
	return x
}

// all are the items that have all of some entries, in a set of their own.
func (x index) all(entries []int) itemSet {
	found := newItemSet(x.items)
	for i := range found {
		found[i] = ^uint64(0) >> max(0, 64*(i+1)-x.items)
	}
	for _, entry := range entries {
		of := x.of[entry]
		if of == nil {
			return newItemSet(x.items)
		}
		for i := range found {
			found[i] &= of[i]
		}
	}
	return found
}
