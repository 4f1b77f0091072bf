package suppression

import (
	"encoding/binary"
	"math/bits"

	"github.com/google/uuid"
)

// pair is an entry of a list: a key, and for those that have unsubscribed from a topic the topic.
type pair struct{ topic, key uuid.UUID }

// bloom has the pairs of the lists of a workspace, as a blocked Bloom filter: a pair that it
// has not is certain, a pair that it has may be another (Putze, Sanders, Singler: Cache-,
// Hash- and Space-Efficient Bloom Filters, 2007). With 16 bits for a pair about one of 300
// others is taken for it.
type bloom struct {
	blocks   [][blockWords]uint64
	pairs    int // that were added
	capacity int // pairs up to which the filter is exact enough
}

const (
	blockWords  = 8 // a cache line
	blockBytes  = blockWords * 8
	bitsPerPair = 16
	probes      = 6

	// mostBytes is the size of a filter at most. Beyond it the filter of a longer list is less exact.
	mostBytes = 128 << 20
)

// newBloom makes a filter for a number of pairs, and a quarter and spare more.
func newBloom(pairs, spare int) *bloom {
	capacity := pairs + pairs/4 + spare
	return &bloom{blocks: make([][blockWords]uint64, 1+min(capacity*bitsPerPair/8, mostBytes-blockBytes)/blockBytes), capacity: capacity}
}

func (b *bloom) size() int { return len(b.blocks) * blockBytes }

// place returns the block of a pair, and the bits of its probes, nine each. Keys are parts
// of a SHA-256 and therefore even. It is a part of bloomForm.
func (b *bloom) place(p pair) (block *[blockWords]uint64, probe uint64) {
	choice := binary.BigEndian.Uint64(p.key[8:]) ^ binary.BigEndian.Uint64(p.topic[8:])
	at, _ := bits.Mul64(choice, uint64(len(b.blocks)))
	return &b.blocks[at], binary.BigEndian.Uint64(p.key[:8])
}

// add adds a pair. One that the filter seems to have needs no capacity.
func (b *bloom) add(p pair) {
	if b.has(p) {
		return
	}
	b.pairs++
	block, probe := b.place(p)
	for range probes {
		block[probe>>6&7] |= 1 << (probe & 63)
		probe >>= 9
	}
}

// isFull reports whether the filter has more pairs than it has capacity for.
func (b *bloom) isFull() bool { return b.pairs > b.capacity }

func (b *bloom) has(p pair) bool {
	block, probe := b.place(p)
	for range probes {
		if block[probe>>6&7]>>(probe&63)&1 == 0 {
			return false
		}
		probe >>= 9
	}
	return true
}

// bytes are the bits of a number of blocks from one on, at most.
func (b *bloom) bytes(from, blocks int) []byte {
	to := min(from+blocks, len(b.blocks))
	all := make([]byte, 0, (to-from)*blockBytes)
	for _, block := range b.blocks[from:to] {
		for _, word := range block {
			all = binary.LittleEndian.AppendUint64(all, word)
		}
	}
	return all
}

// appendBytes appends blocks.
func (b *bloom) appendBytes(all []byte) {
	for ; len(all) >= blockBytes; all = all[blockBytes:] {
		var block [blockWords]uint64
		for i := range block {
			block[i] = binary.LittleEndian.Uint64(all[i*8:])
		}
		b.blocks = append(b.blocks, block)
	}
}
