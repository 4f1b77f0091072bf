package campaigns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
)

// maxMembers bounds the memory of a measurement: 245 MB. An audience has as many rows.
const maxMembers = 20_000_000

// members are the different profiles of a sample and its holdout, with 12.2 bytes each: a
// table of hashes with open addressing, two thirds full. Its size is known beforehand.
// Hashes are random, so their first bits are their place.
type members struct {
	slots     []uint64 // a hash without its last bits, which are the ordinal + 2; 0: free
	converted []uint32 // a bit for each slot
	n         atomic.Int64
	several   atomic.Bool                   // a profile has several notifications
	sizes     [MaxVariants + 1]atomic.Int64 // by ordinal + 1
}

func newMembers(most int) *members {
	size := most + most/2 + 1
	return &members{slots: make([]uint64, size), converted: make([]uint32, (size+31)/32)}
}

// ordinalBits are the bits of a slot that have the ordinal of its profile.
const ordinalBits = 1<<4 - 1

func ordinalOf(slot uint64) int { return int(slot&ordinalBits) - 2 }

// together is how many hashes are added or converted together: their slots are loaded first.
const together = 64

// load reads the slots of hashes, all at once, into the processor's cache: the table is larger,
// and one after another each would wait for the memory. The result only keeps the reads.
func (m *members) load(hashes []uint64) (sum uint64) {
	for _, h := range hashes {
		sum ^= atomic.LoadUint64(&m.slots[m.place(h)])
	}
	return sum
}

// addAll adds profiles of a variant, 8 bytes each. It may run in several goroutines. It
// returns false if there may be no place.
func (m *members) addAll(profiles []byte, ordinal int) bool {
	n := int64(len(profiles) / 8)
	if m.n.Add(n) >= int64(len(m.slots)) {
		return false
	}
	var hashes [together]uint64
	added := int64(0)
	for some := range slices.Chunk(profiles, 8*together) {
		loaded := hashes[:len(some)/8]
		for i := range loaded {
			loaded[i] = binary.LittleEndian.Uint64(some[8*i:])
		}
		runtime.KeepAlive(m.load(loaded))
		for _, h := range loaded {
			if m.add(h, ordinal) {
				added++
			}
		}
	}
	m.sizes[ordinal+1].Add(added)
	if added < n {
		m.n.Add(added - n)
		m.several.Store(true)
	}
	return true
}

// add returns false if the profile is there. Its first ordinal stays.
func (m *members) add(h uint64, ordinal int) bool {
	for {
		at, found := m.find(h)
		if found {
			return false
		}
		if atomic.CompareAndSwapUint64(&m.slots[at], 0, h&^ordinalBits|uint64(ordinal+2)) {
			return true
		}
	}
}

func (m *members) has(h uint64) bool {
	_, found := m.find(h)
	return found
}

// convertAll records that profiles have converted, if they are members. It may run in
// several goroutines.
func (m *members) convertAll(hashes []uint64) {
	for some := range slices.Chunk(hashes, together) {
		runtime.KeepAlive(m.load(some))
		for _, h := range some {
			if at, found := m.find(h); found {
				atomic.OrUint32(&m.converted[at/32], 1<<(at%32))
			}
		}
	}
}

// place is where the slot of a hash is looked for first.
func (m *members) place(h uint64) uint64 {
	at, _ := bits.Mul64(h&^ordinalBits, uint64(len(m.slots)))
	return at
}

// find returns the slot of a hash, or the free slot where it would be.
func (m *members) find(h uint64) (at uint64, found bool) {
	size := uint64(len(m.slots))
	for at = m.place(h); ; {
		slot := atomic.LoadUint64(&m.slots[at])
		if slot == 0 || (slot^h) <= ordinalBits {
			return at, slot != 0
		}
		if at++; at == size {
			at = 0
		}
	}
}

// count counts the profiles of each variant and those that have converted. The last of all
// is the holdout.
func (m *members) count(all []Tally) {
	var converted [MaxVariants + 1]int64
	for word, bit := range m.converted {
		for ; bit != 0; bit &= bit - 1 {
			converted[ordinalOf(m.slots[32*word+bits.TrailingZeros32(bit)])+1]++
		}
	}
	for i := range all {
		at := i + 1
		if i == len(all)-1 {
			at = holdout + 1
		}
		all[i].Recipients, all[i].Converted = m.sizes[at].Load(), &converted[at]
	}
}

// membersPerPart is how many rows of iteration_members are read together, of up to a
// megabyte or two.
const membersPerPart = 64

// readMembers reads the members of an iteration. A profile is one, however many addresses
// it has. Rows do not change, so those of one time are read in several transactions.
func (c *Campaigns) readMembers(ctx context.Context, it Iteration) (*members, error) {
	m, err := c.readMost(ctx, it, maxMembers)
	return m, lemma.Wrap(err, "read members of iteration %s", it.ID)
}

func (c *Campaigns) readMost(ctx context.Context, it Iteration, most int) (*members, error) {
	var n int
	var ids []uuid.UUID
	err := c.pool.QueryRow(ctx, `
		select coalesce(sum(octet_length(profiles)), 0) / 8, coalesce(array_agg(id order by ordinal, id), '{}')
		from iteration_members where workspace_id = $1 and origin_id = $2`, it.WorkspaceID, it.CampaignID).Scan(&n, &ids)
	if err != nil {
		return nil, err
	}
	c.at(ctx, "members listed", it.ID)
	m := newMembers(min(n, most))
	tooLarge := &lemma.Error{Kind: lemma.TooLarge, Code: "sample_too_large",
		Message: fmt.Sprintf("the sample and the holdout have more than %d profiles; decide by hand, and use a smaller sample_percent", most)}
	var read atomic.Int64
	parts := slices.Collect(slices.Chunk(ids, membersPerPart))
	err = inReaders(ctx, c.reading, parts, func(ctx context.Context, ids []uuid.UUID) error {
		return c.readSome(ctx, it, ids, func(ordinal int, profiles []byte) error {
			read.Add(int64(len(profiles) / 8))
			if !m.addAll(profiles, ordinal) {
				return tooLarge
			}
			return nil
		})
	})
	switch {
	case err != nil:
		return nil, err
	case m.n.Load() > int64(most):
		return nil, tooLarge
	case read.Load() != int64(n):
		return nil, errors.New("they were deleted meanwhile, since the test has ended")
	}
	return m, nil
}

// readSome reads rows of iteration_members, those of an ordinal as one.
func (c *Campaigns) readSome(ctx context.Context, it Iteration, ids []uuid.UUID, read func(ordinal int, profiles []byte) error) error {
	rows, _ := c.pool.Query(ctx, `
		select ordinal, string_agg(profiles, '') from iteration_members
		where workspace_id = $1 and origin_id = $2 and id = any($3) group by ordinal`, it.WorkspaceID, it.CampaignID, ids)
	var ordinal int
	var profiles []byte
	_, err := pgx.ForEachRow(rows, []any{&ordinal, (*pgtype.DriverBytes)(&profiles)}, func() error { return read(ordinal, profiles) })
	return err
}

// isMember reports whether a profile has a notification of a variant in the sample. Postgres
// searches the hashes of that variant. One at a wrong place is as improbable as another
// profile with the same hash.
func (c *Campaigns) isMember(ctx context.Context, it Iteration, variant int, profile string) (found bool, err error) {
	hash := binary.LittleEndian.AppendUint64(nil, fingerprint(it)(profile))
	err = c.pool.QueryRow(ctx, `
		select exists (select from iteration_members
			where workspace_id = $1 and origin_id = $2 and ordinal = $3 and position($4::bytea in profiles) > 0)`,
		it.WorkspaceID, it.CampaignID, variant, hash).Scan(&found)
	return found, lemma.Wrap(err, "find a member of iteration %s", it.ID)
}
