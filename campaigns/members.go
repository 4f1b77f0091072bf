package campaigns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"sync"
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
//
// The table has regions that fit into the processor's cache. Hashes are random, so their first
// bits are their region, and the next their place in it. While members are added, a region is
// a list: in a table, each of them would wait for the memory. index makes the lists tables.
type members struct {
	regions   uint64
	regionLog uint8    // a region has 1 << regionLog slots
	mask      uint64   // of the place in a region
	slots     []uint64 // a hash without its last bits, which are the ordinal + 2; 0: free
	converted []uint32 // a bit for each slot

	adding sync.Mutex
	listed []int // the length of each region's list

	n       int                  // profiles
	several bool                 // a profile has several notifications
	sizes   [MaxVariants + 1]int // profiles by ordinal + 1
}

// maxRegionLog limits a region to 512 kB.
const maxRegionLog = 16

func newMembers(most int) *members {
	slots := most + most/2 + 1
	log := min(bits.Len(uint(slots)), maxRegionLog)
	regions := (slots + 1<<log - 1) >> log
	m := &members{regions: uint64(regions), regionLog: uint8(log), mask: 1<<log - 1, listed: make([]int, regions)}
	m.slots = make([]uint64, regions<<log)
	m.converted = make([]uint32, (len(m.slots)+31)/32)
	return m
}

// ordinalBits are the bits of a slot that have the ordinal of its profile.
const ordinalBits = 1<<4 - 1

func ordinalOf(slot uint64) int { return int(slot&ordinalBits) - 2 }

// addAll adds profiles of a variant, 8 bytes each. It may run in several goroutines, until
// index. It returns false if there may be no place.
func (m *members) addAll(profiles []byte, ordinal int) bool {
	m.adding.Lock()
	defer m.adding.Unlock()
	for ; len(profiles) >= 8; profiles = profiles[8:] {
		h := binary.LittleEndian.Uint64(profiles) &^ ordinalBits
		region, _ := bits.Mul64(h, m.regions)
		n := m.listed[region]
		if n >= int(m.mask) { // one slot remains free, so that a search ends
			if n = m.shorten(int(region)); n >= int(m.mask) {
				return false
			}
		}
		m.slots[region<<m.regionLog+uint64(n)] = h | uint64(ordinal+2)
		m.listed[region] = n + 1
	}
	return true
}

// region are the slots of a region.
func (m *members) region(i int) []uint64 { return m.slots[i<<m.regionLog : (i+1)<<m.regionLog] }

// shorten removes the repeated profiles of a list, and returns its length.
func (m *members) shorten(region int) (n int) {
	counts := m.tabulate(region, nil)
	m.several = m.several || counts.repeated
	slots := m.region(region)
	for _, slot := range slots {
		if slot != 0 {
			slots[n] = slot
			n++
		}
	}
	clear(slots[n:])
	m.listed[region] = n
	return n
}

// regionCounts are the numbers of the profiles of regions.
type regionCounts struct {
	sizes    [MaxVariants + 1]int // by ordinal + 1
	repeated bool
	list     []uint64 // memory for a list
}

// tabulate makes the list of a region a table, and adds up its profiles. Of equal ones the
// first stays.
func (m *members) tabulate(region int, list []uint64) (c regionCounts) {
	slots := m.region(region)
	list = append(list[:0], slots[:m.listed[region]]...)
	c.list = list
	clear(slots)
	for _, slot := range c.list {
		at, found := m.find(slot)
		if found {
			c.repeated = true
			continue
		}
		m.slots[at] = slot
		c.sizes[ordinalOf(slot)+1]++
	}
	return c
}

// index ends the adding: then members are found, converted and counted.
func (m *members) index() {
	var next atomic.Int64
	var work sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		work.Go(func() {
			var all regionCounts
			for i := int(next.Add(1)) - 1; i < len(m.listed); i = int(next.Add(1)) - 1 {
				one := m.tabulate(i, all.list)
				for ordinal, n := range one.sizes {
					all.sizes[ordinal] += n
				}
				all.list, all.repeated = one.list, all.repeated || one.repeated
			}
			m.adding.Lock()
			defer m.adding.Unlock()
			m.several = m.several || all.repeated
			for ordinal, n := range all.sizes {
				m.sizes[ordinal] += n
				m.n += n
			}
		})
	}
	work.Wait()
}

func (m *members) has(h uint64) bool {
	_, found := m.find(h)
	return found
}

// together is how many profiles are converted together: their slots are loaded first.
const together = 64

// load reads the slots of hashes, all at once, into the processor's cache: the table is larger,
// and one after another each would wait for the memory. The result only keeps the reads.
func (m *members) load(hashes []uint64) (sum uint64) {
	for _, h := range hashes {
		sum ^= m.slots[m.place(h)]
	}
	return sum
}

// convertAll records that profiles have converted, if they are members. It may run in
// several goroutines, after index.
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
	region, rest := bits.Mul64(h&^ordinalBits, m.regions)
	return region<<(m.regionLog&63) | rest>>(-m.regionLog&63)
}

// find returns the slot of a hash, or the free slot where it would be. A region is never full.
func (m *members) find(h uint64) (at uint64, found bool) {
	for at = m.place(h); ; {
		slot := m.slots[at]
		if slot == 0 || (slot^h) <= ordinalBits {
			return at, slot != 0
		}
		if at++; at&m.mask == 0 {
			at -= m.mask + 1
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
		all[i].Recipients, all[i].Converted = int64(m.sizes[at]), &converted[at]
	}
}

// membersPerPart is how many rows of iteration_members one statement reads, of up to half a
// megabyte.
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
		select coalesce(sum(octet_length(profiles)), 0) / 8, coalesce(array_agg(id order by id), '{}')
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
	case read.Load() != int64(n):
		return nil, errors.New("they were deleted meanwhile, since the test has ended")
	}
	if m.index(); m.n > most {
		return nil, tooLarge
	}
	return m, nil
}

// readSome reads rows of iteration_members.
func (c *Campaigns) readSome(ctx context.Context, it Iteration, ids []uuid.UUID, read func(ordinal int, profiles []byte) error) error {
	rows, _ := c.pool.Query(ctx, `
		select ordinal, profiles from iteration_members
		where workspace_id = $1 and origin_id = $2 and id = any($3)`, it.WorkspaceID, it.CampaignID, ids)
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
