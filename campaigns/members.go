package campaigns

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
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
	several   bool // a profile has several notifications
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
	return true
}

func (m *members) has(h uint64) bool {
	_, found := m.find(h)
	return found
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
	for i := range all {
		all[i].Recipients, all[i].Converted = 0, new(int64)
	}
	for at, h := range m.slots {
		if h == 0 {
			continue
		}
		t := &all[len(all)-1]
		if i := int(m.ordinals[at]); i != holdout {
			t = &all[i]
		}
		t.Recipients++
		if m.converted[at/32]&(1<<(at%32)) != 0 {
			*t.Converted++
		}
	}
}

// readMembers reads the members of an iteration. A profile is one, however many addresses
// it has.
func (c *Campaigns) readMembers(ctx context.Context, it Iteration) (m *members, err error) {
	oneSnapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, c.pool, oneSnapshot, func(tx pgx.Tx) error {
		m, err = readMembers(ctx, tx, it, maxMembers)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read members of iteration %s: %w", it.ID, err)
	}
	return m, nil
}

func readMembers(ctx context.Context, tx pgx.Tx, it Iteration, most int) (*members, error) {
	var n int
	err := tx.QueryRow(ctx, `
		select coalesce(sum(octet_length(profiles)), 0) / 8 from iteration_members where workspace_id = $1 and origin_id = $2`,
		it.WorkspaceID, it.CampaignID).Scan(&n)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `select ordinal, profiles from iteration_members where workspace_id = $1 and origin_id = $2`,
		it.WorkspaceID, it.CampaignID)
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
		for ; len(profiles) >= 8; profiles = profiles[8:] {
			if !m.add(binary.LittleEndian.Uint64(profiles), ordinal) {
				return nil, &lemma.Error{Kind: lemma.TooLarge, Code: "sample_too_large",
					Message: fmt.Sprintf("the sample and the holdout have more than %d profiles; decide by hand, and use a smaller sample_percent", most)}
			}
		}
	}
	return m, rows.Err()
}
