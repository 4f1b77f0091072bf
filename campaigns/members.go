package campaigns

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
)

// maxMembers bounds the memory of a measurement: 270 MB. An audience has as many rows.
const maxMembers = 20_000_000

// members are the different profiles of a sample and its holdout, with 13.5 bytes each: a
// table of hashes with open addressing, two thirds full. Its size is known beforehand.
// Hashes are random, so their first bits are their place.
type members struct {
	slots     []uint64 // 0: free
	ordinals  []int8   // by slot
	converted []uint32 // a bit for each slot
	n, max    int
	several   bool                   // a profile has several notifications
	sizes     [MaxVariants + 1]int64 // by ordinal + 1
}

func newMembers(most int) *members {
	size := most + most/2 + 1
	return &members{slots: make([]uint64, size), ordinals: make([]int8, size), converted: make([]uint32, (size+31)/32), max: most}
}

// add returns false if there is no place. The first ordinal of a profile stays.
func (m *members) add(h uint64, ordinal int) bool {
	at, found := m.find(h)
	if found {
		m.several = true
		return true
	}
	if m.n == m.max {
		return false
	}
	m.slots[at], m.ordinals[at] = max(h, 1), int8(ordinal)
	m.n++
	m.sizes[ordinal+1]++
	return true
}

func (m *members) has(h uint64) bool {
	_, found := m.find(h)
	return found
}

// together is how many hashes are added or converted together: their slots are loaded first.
const together = 64

// load reads the slots of hashes, all at once, into the processor's cache: the table is larger,
// and one after another each would wait for the memory. The result only keeps the reads.
func (m *members) load(hashes []uint64) (sum uint64) {
	for _, h := range hashes {
		at, _ := bits.Mul64(h, uint64(len(m.slots)))
		sum ^= m.slots[at]
	}
	return sum
}

// addAll is add for the profiles of a variant, 8 bytes each.
func (m *members) addAll(profiles []byte, ordinal int) bool {
	var hashes [together]uint64
	for len(profiles) >= 8 {
		n := 0
		for ; n < together && len(profiles) >= 8; n++ {
			hashes[n], profiles = binary.LittleEndian.Uint64(profiles), profiles[8:]
		}
		runtime.KeepAlive(m.load(hashes[:n]))
		for _, h := range hashes[:n] {
			if !m.add(h, ordinal) {
				return false
			}
		}
	}
	return true
}

// convertAll is convert for several profiles.
func (m *members) convertAll(hashes []uint64) {
	for some := range slices.Chunk(hashes, together) {
		runtime.KeepAlive(m.load(some))
		for _, h := range some {
			m.convert(h)
		}
	}
}

// convert records that a profile has converted, if it is a member. It may run in several
// goroutines.
func (m *members) convert(h uint64) {
	if at, found := m.find(h); found {
		atomic.OrUint32(&m.converted[at/32], 1<<(at%32))
	}
}

// find returns the slot of a hash, or the free slot where it would be.
func (m *members) find(h uint64) (at uint64, found bool) {
	h = max(h, 1)
	size := uint64(len(m.slots))
	at, _ = bits.Mul64(h, size)
	for m.slots[at] != 0 && m.slots[at] != h {
		if at++; at == size {
			at = 0
		}
	}
	return at, m.slots[at] == h
}

// count counts the profiles of each variant and those that have converted. The last of all
// is the holdout.
func (m *members) count(all []Tally) {
	var converted [MaxVariants + 1]int64
	for word, bit := range m.converted {
		for ; bit != 0; bit &= bit - 1 {
			converted[m.ordinals[32*word+bits.TrailingZeros32(bit)]+1]++
		}
	}
	for i := range all {
		at := i + 1
		if i == len(all)-1 {
			at = holdout + 1
		}
		all[i].Recipients, all[i].Converted = m.sizes[at], &converted[at]
	}
}

// readMembers reads the members of an iteration. A profile is one, however many addresses
// it has. begun is called when the connection is there.
func (c *Campaigns) readMembers(ctx context.Context, it Iteration, begun func()) (m *members, err error) {
	oneSnapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, c.pool, oneSnapshot, func(tx pgx.Tx) error {
		begun()
		m, err = readMembers(ctx, tx, it, maxMembers)
		return err
	})
	return m, lemma.Wrap(err, "read members of iteration %s", it.ID)
}

// membersPerRow is how many rows of iteration_members Postgres sends as one, of up to a
// megabyte or two. In a busy process, each small row waits for the scheduler.
const membersPerRow = 64

func readMembers(ctx context.Context, tx pgx.Tx, it Iteration, most int) (*members, error) {
	var n int
	err := tx.QueryRow(ctx, `
		select coalesce(sum(octet_length(profiles)), 0) / 8 from iteration_members where workspace_id = $1 and origin_id = $2`,
		it.WorkspaceID, it.CampaignID).Scan(&n)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `
		select m.ordinal, m.profiles
		from (select array_agg(id) as ids from iteration_members where workspace_id = $1 and origin_id = $2) all_members
		cross join generate_series(1, cardinality(ids), $3::int) as first
		cross join lateral (
			select ordinal, string_agg(profiles, '') as profiles from iteration_members
			where workspace_id = $1 and origin_id = $2 and id = any(ids[first:first + $3 - 1]) group by ordinal
		) m`, it.WorkspaceID, it.CampaignID, membersPerRow)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	m := newMembers(min(n, most))
	for rows.Next() {
		var ordinal int
		var profiles []byte
		if err := rows.Scan(&ordinal, (*pgtype.DriverBytes)(&profiles)); err != nil {
			return nil, err
		}
		if !m.addAll(profiles, ordinal) {
			return nil, &lemma.Error{Kind: lemma.TooLarge, Code: "sample_too_large",
				Message: fmt.Sprintf("the sample and the holdout have more than %d profiles; decide by hand, and use a smaller sample_percent", most)}
		}
	}
	return m, rows.Err()
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
