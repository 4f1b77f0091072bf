package audience

import (
	"context"
	"hash/maphash"
	"math/bits"

	"github.com/google/uuid"

	"lemma"
	"lemma/address"
)

// Counts has the rows of an audience by outcome. Each row is counted in exactly one
// of the fields after Rows.
type Counts struct {
	Rows             int64 // with different profiles or addresses; of push one for each token
	Sendable         int64
	Profiles         int64 // of the sendable ones; an estimate from some thousands on
	MissingAddress   int64
	InvalidAddress   int64
	DuplicateAddress int64
	TooManyAddresses int64
	RowTooLarge      int64
	Unsubscribed     int64
	InvalidKey       int64
	Holdout          int64 // by Sampling.Holdout
	Truncated        bool  // after Options.MaxDistinct different addresses, repeated ones may count as sendable
}

// Count reads the audience and counts its rows by outcome in a channel, in bounded
// memory. Without a channel it is the first that the audience has addresses for.
func (a *Audiences) Count(ctx context.Context, ws, id uuid.UUID, channel lemma.Channel) (Counts, error) {
	c, _, err := a.Sample(ctx, ws, id, channel, Sampling{})
	return c, err
}

// Sampling is what Sample takes of an audience.
type Sampling struct {
	Columns []string              // of the payload
	Size    int                   // sendable rows
	Holdout func(key string) bool // profiles that an experiment sends nothing to; nil: none
}

// Sample is Count with a random sample of sendable rows, each with the same probability,
// in the order of the source. The sample has at most sampleBytes, so large rows make it
// smaller. A sampled row has one address.
func (a *Audiences) Sample(ctx context.Context, ws, id uuid.UUID, channel lemma.Channel, of Sampling) (Counts, []Row, error) {
	x, err := a.Get(ctx, ws, id)
	if err != nil {
		return Counts{}, nil, err
	}
	if channel == "" {
		channel = x.Channels()[0]
	}
	if x.AddressColumn(channel) == "" {
		return Counts{}, nil, lemma.Fault("?channel", "wrong_channel", "the audience has no addresses for %s", channel)
	}
	leave, err := a.counts.Enter(ctx, sourceID{ws, x.DataSourceID}.slot())
	if err != nil {
		return Counts{}, nil, err
	}
	defer leave()
	var c Counts
	known, profiles := newKnown(a.options.MaxDistinct), newDistinct()
	sample := reservoir{size: of.Size, most: sampleBytes}
	var one [1]address.Address
	_, err = a.Stream(ctx, ws, id, of.Columns, func(r Row) error {
		held := of.Holdout != nil && of.Holdout(r.Key)
		for _, to := range r.Addresses(one[:0], channel) {
			if c.add(r, to, held, known) {
				profiles.add(r.Key)
				sample.offer(r.at(channel, to.Text))
			}
		}
		return nil
	})
	if err != nil {
		return Counts{}, nil, err
	}
	c.Profiles = min(profiles.count(), c.Sendable)
	c.Truncated = known.rows.full || known.addresses.full || known.optedOut.full || known.skipped.full
	return c, sample.rows(), nil
}

// known is what the rows before had.
type known struct {
	rows      *seen // profile and address
	addresses *seen // in the canonical form, of rows that are sendable or opted out
	optedOut  *seen // profiles
	skipped   *seen // profile and address
}

func newKnown(limit int) known {
	return known{newSeen(limit), newSeen(limit), newSeen(limit), newSeen(limit)}
}

// at is the row with one address.
func (r Row) at(channel lemma.Channel, text string) Row {
	switch channel {
	case lemma.SMS:
		r.Phone = text
	case lemma.Push:
		r.Push = address.List(text)
	default:
		r.Email = text
	}
	return r
}

// add checks in the order in which a campaign checks, so that both count alike: a row
// with the profile and the address of another is the same recipient. It reports
// whether the row is sendable. Rows that are opted out come first: no other row of
// their profile or address is sendable. held is whether the profile is in the holdout.
func (c *Counts) add(r Row, to address.Address, held bool, k known) bool {
	text := to.Canonical
	if to.Fault == address.Invalid {
		text = "\x00" + to.Text // is no canonical form
	}
	recipient := r.Key + "\x00" + text
	if r.TooLarge && !r.OptedOut && IsKey(r.Key) { // another row of the recipient may be sendable
		if !k.skipped.before(recipient) {
			c.Rows++
			c.RowTooLarge++
		}
		return false
	}
	if k.rows.before(recipient) {
		return false
	}
	before := *c
	c.Rows++
	if c.count(r, to, held, k) {
		return true
	}
	if k.skipped.before(recipient) { // as a row that is too large
		*c = before
	}
	return false
}

// count counts a recipient, and reports whether it is sendable. One of the holdout leaves its
// address to other profiles.
func (c *Counts) count(r Row, to address.Address, held bool, k known) bool {
	if r.OptedOut {
		k.optedOut.before(r.Key)
		if to.Canonical != "" {
			k.addresses.before(to.Canonical)
		}
	}
	switch {
	case !IsKey(r.Key):
		c.InvalidKey++
	case r.OptedOut:
		c.Unsubscribed++
	case to.Fault == address.Missing:
		c.MissingAddress++
	case to.Fault == address.Invalid:
		c.InvalidAddress++
	case to.Fault == address.TooMany:
		c.TooManyAddresses++
	case held:
		c.Holdout++
	case k.optedOut.has(r.Key):
		c.Unsubscribed++
	case k.addresses.before(to.Canonical):
		c.DuplicateAddress++
	default:
		c.Sendable++
		return true
	}
	return false
}

// seen is a set of 64-bit hashes with open addressing: among 2 million addresses a
// collision has a probability of one in ten million. The seed is random, so
// collisions cannot be constructed. The table is at most three quarters full and
// grows by half: 11 bytes for each address, and 18 while it grows.
type seen struct {
	seed  maphash.Seed
	slots []uint64 // 0 is free
	count int
	max   int
	full  bool
}

func newSeen(limit int) *seen {
	return &seen{seed: maphash.MakeSeed(), slots: make([]uint64, 1024), max: limit}
}

// before reports whether s was added before, and adds it while the limit allows.
func (s *seen) before(text string) bool {
	h := maphash.String(s.seed, text) | 1
	slot := s.find(h)
	if s.slots[slot] == h {
		return true
	}
	if s.count == s.max {
		s.full = true
		return false
	}
	s.slots[slot] = h
	s.count++
	if 4*s.count > 3*len(s.slots) {
		s.grow()
	}
	return false
}

func (s *seen) has(text string) bool {
	h := maphash.String(s.seed, text) | 1
	return s.slots[s.find(h)] == h
}

// find returns the slot of h, or the free slot for it.
func (s *seen) find(h uint64) int {
	high, _ := bits.Mul64(h, uint64(len(s.slots)))
	i := int(high)
	for s.slots[i] != 0 && s.slots[i] != h {
		if i++; i == len(s.slots) {
			i = 0
		}
	}
	return i
}

func (s *seen) grow() {
	old := s.slots
	s.slots = make([]uint64, min(len(old)*3/2, max(len(old), s.max*4/3)+2))
	for _, h := range old {
		if h != 0 {
			s.slots[s.find(h)] = h
		}
	}
}
