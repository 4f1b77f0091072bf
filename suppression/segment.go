package suppression

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/google/uuid"
)

// pair is an entry of a list: a key, and in the list of topics a topic before it.
type pair struct{ topic, key uuid.UUID }

func (p pair) compare(q pair) int {
	if c := bytes.Compare(p.topic[:], q.topic[:]); c != 0 {
		return c
	}
	return bytes.Compare(p.key[:], q.key[:])
}

// segment has the pairs of a list between the last one of the segment before it and its
// own last one, as a blocked Bloom filter: a pair that it has not is certain, a pair that
// it has may be another (Putze, Sanders, Singler: Cache-, Hash- and Space-Efficient Bloom
// Filters, 2007). With 24 bits for a pair about one of 2,000 others is taken for it.
type segment struct {
	last   pair
	blocks [][blockWords]uint64
	free   int // pairs that may be added while the filter stays as exact
}

const (
	blockWords  = 8 // a cache line
	bitsPerPair = 24
	probes      = 6
)

// newSegment makes the segment of a page that follows a pair. The page is the next pairs
// of the list in any order.
func newSegment(page []pair, after pair) *segment {
	capacity := len(page) + len(page)/4 + 1000
	s := &segment{last: after, blocks: make([][blockWords]uint64, 1+capacity*bitsPerPair/(64*blockWords)), free: capacity}
	for _, p := range page {
		s.add(p)
		if s.last.compare(p) < 0 {
			s.last = p
		}
	}
	return s
}

func (s *segment) size() int { return len(s.blocks) * blockWords * 8 }

// place returns the block of a pair, and the bits of its probes, nine each. Keys are parts
// of a SHA-256 and therefore even. The first bits of a key are equal in a segment, so that
// they are not used.
func (s *segment) place(p pair) (block *[blockWords]uint64, probe uint64) {
	choice := binary.BigEndian.Uint64(p.key[8:]) ^ binary.BigEndian.Uint64(p.topic[8:])
	at, _ := bits.Mul64(choice, uint64(len(s.blocks)))
	return &s.blocks[at], binary.BigEndian.Uint64(p.key[:8])
}

func (s *segment) add(p pair) {
	block, probe := s.place(p)
	for range probes {
		block[probe>>6&7] |= 1 << (probe & 63)
		probe >>= 9
	}
	s.free--
}

func (s *segment) has(p pair) bool {
	block, probe := s.place(p)
	for range probes {
		if block[probe>>6&7]>>(probe&63)&1 == 0 {
			return false
		}
		probe >>= 9
	}
	return true
}

// pairs is what a process has read of a list: the segments from its beginning on.
type pairs struct {
	segments []*segment
	whole    bool // the list is read to its end
}

// of returns the segment to which a pair belongs, and nil if that is not read yet.
func (l *pairs) of(p pair) *segment {
	at, _ := slices.BinarySearchFunc(l.segments, p, func(s *segment, p pair) int { return s.last.compare(p) })
	switch {
	case at < len(l.segments):
		return l.segments[at]
	case l.whole:
		return l.segments[len(l.segments)-1]
	}
	return nil
}

// may reports whether the list may have a pair.
func (l *pairs) may(p pair) bool {
	s := l.of(p)
	return s == nil || s.has(p)
}

// add adds pairs to the segments to which they belong. It reports whether their filters have capacity left.
func (l *pairs) add(added []pair) bool {
	for _, p := range added {
		s := l.of(p)
		if s == nil || s.has(p) {
			continue
		}
		if s.free == 0 {
			return false
		}
		s.add(p)
	}
	return true
}

// end is the last pair that was read.
func (l *pairs) end() pair {
	if len(l.segments) == 0 {
		return pair{}
	}
	return l.segments[len(l.segments)-1].last
}
