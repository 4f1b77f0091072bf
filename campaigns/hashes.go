package campaigns

// hashes is a set of hashes: a table with open addressing, at most half full. Hashes
// are random, so their first bits are their place.
type hashes struct {
	slots []uint64
	n     int
	zero  bool
}

func newHashes() *hashes { return &hashes{slots: make([]uint64, 1<<10)} }

// add returns false if the hash was there already.
func (s *hashes) add(h uint64) bool {
	if h == 0 {
		was := s.zero
		s.zero = true
		return !was
	}
	at := s.find(h)
	if s.slots[at] == h {
		return false
	}
	s.slots[at] = h
	if s.n++; 2*s.n > len(s.slots) {
		old := s.slots
		s.slots = make([]uint64, 4*len(old))
		for _, one := range old {
			if one != 0 {
				s.slots[s.find(one)] = one
			}
		}
	}
	return true
}

func (s *hashes) has(h uint64) bool {
	if h == 0 {
		return s.zero
	}
	return s.slots[s.find(h)] == h
}

// find returns the slot of a hash, or the free slot where it would be.
func (s *hashes) find(h uint64) uint64 {
	mask := uint64(len(s.slots) - 1)
	at := h & mask
	for s.slots[at] != 0 && s.slots[at] != h {
		at = (at + 1) & mask
	}
	return at
}
