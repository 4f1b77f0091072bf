package intake

import (
	"hash/maphash"
	"math/bits"
)

// firsts tells the first row of each profile from further ones, in little memory, by Bloom filters
// (Bloom 1970). It takes a first row for a further one in some ten of a million cases, and more often the
// more profiles an audience has beyond 8 million. The seed is random: it will be another in the next poll.
type firsts struct {
	seed    maphash.Seed
	filters []filter // each is twice as large as the one before; the last has room, or is the largest
}

const (
	leastFilter  = 128 << 10 // bytes
	mostFilters  = 8         // 32 MiB in all
	bitsOfOne    = 32        // of a filter, for each profile
	hashesOfOne  = 11
	bitsOfAWord  = 64
	bytesOfAWord = 8
)

type filter struct {
	words []uint64
	free  int // profiles for which there is room
}

func newFirsts() *firsts { return &firsts{seed: maphash.MakeSeed()} }

// add reports whether a row is the first of its profile.
func (f *firsts) add(profile string) bool {
	h := maphash.String(f.seed, profile)
	for _, one := range f.filters {
		if one.has(h) {
			return false
		}
	}
	n := len(f.filters)
	if n == 0 || f.filters[n-1].free <= 0 && n < mostFilters {
		words := leastFilter << n / bytesOfAWord
		f.filters = append(f.filters, filter{make([]uint64, words), words * bitsOfAWord / bitsOfOne})
		n++
	}
	f.filters[n-1].set(h)
	return true
}

func (f *filter) has(h uint64) bool {
	for i := range hashesOfOne {
		if word, bit := f.place(h, i); f.words[word]&bit == 0 {
			return false
		}
	}
	return true
}

func (f *filter) set(h uint64) {
	for i := range hashesOfOne {
		word, bit := f.place(h, i)
		f.words[word] |= bit
	}
	f.free--
}

// place derives hash i from two halves (Kirsch and Mitzenmacher 2006).
func (f *filter) place(h uint64, i int) (word int, bit uint64) {
	at := h + uint64(i)*(bits.RotateLeft64(h, 32)|1)
	at ^= at >> 29
	n := uint64(len(f.words) * bitsOfAWord)
	return int(at % n / bitsOfAWord), 1 << (at % bitsOfAWord)
}
