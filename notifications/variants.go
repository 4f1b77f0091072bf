package notifications

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// Variant is one of several contents of a chunk.
type Variant struct {
	ContentID uuid.UUID
	Ordinal   int           // of the variant in its experiment
	DueAfter  time.Duration // later than the chunk
}

// contentOf is the content of a batch.
func (c Chunk) contentOf(variant int) uuid.UUID {
	if len(c.Variants) == 0 {
		return c.ContentID
	}
	return c.Variants[variant].ContentID
}

// ContentOf is the content of a notification of a profile; found is false of one that was
// skipped when it was written.
func (l *Ledger) ContentOf(ctx context.Context, workspaceID, origin, key uuid.UUID, profile string) (
	content uuid.UUID, found bool, err error) {
	err = l.pool.QueryRow(ctx, `
		select b.content_id from notifications n
		join batches b on b.workspace_id = n.workspace_id and b.origin_id = n.origin_id and b.id = n.batch_id
		where n.workspace_id = $1 and n.origin_id = $2 and n.key = $3 and n.profile_key = $4`,
		workspaceID, origin, key, profile).Scan(&content)
	if errors.Is(err, pgx.ErrNoRows) {
		return content, false, nil
	}
	return content, err == nil, lemma.Wrap(err, "read the content of a notification")
}

// HasKept reports whether the notifications of an origin are kept: false if it has batches, and the
// month of its notifications was dropped.
func (l *Ledger) HasKept(ctx context.Context, workspaceID, origin uuid.UUID) (kept bool, err error) {
	err = l.pool.QueryRow(ctx, `
		select (select n.key from notifications n where n.workspace_id = $1 and n.origin_id = $2 order by n.key limit 1) is not null
			or not exists (select from batches b where b.workspace_id = $1 and b.origin_id = $2)`, workspaceID, origin).Scan(&kept)
	return kept, lemma.Wrap(err, "read whether notifications are kept")
}

// dealer places recipients in batches. Each batch has one variant. The batches of a
// variant have about the same size, and up to a tenth more than others: chance makes
// one of two variants a little larger than its part of a chunk.
type dealer struct {
	chunk   Chunk
	batches []newBatch
	sizes   []int // of the batches of a variant
	current []int // by variant: the batch that is being filled; -1: none
}

func newDealer(c Chunk, send []Recipient) *dealer {
	d := &dealer{chunk: c, sizes: []int{c.BatchSize}, current: []int{-1}}
	if len(c.Variants) > 1 {
		d.sizes, d.current = sizesOf(c, send), make([]int, len(c.Variants))
		most := c.BatchSize + c.BatchSize/10
		for i, n := range d.sizes {
			batches := max(1, (n+most-1)/most)
			d.sizes[i], d.current[i] = (n+batches-1)/batches, -1
		}
	}
	return d
}

// sizesOf are the numbers of recipients of each variant.
func sizesOf(c Chunk, send []Recipient) []int {
	sizes := make([]int, len(c.Variants))
	for i := range send {
		sizes[send[i].Variant]++
	}
	return sizes
}

// place returns the batch and the ordinal of the next recipient of a variant.
func (d *dealer) place(variant int) (uuid.UUID, int) {
	at := d.current[variant]
	if at < 0 || d.batches[at].size >= d.sizes[variant] {
		at = len(d.batches)
		b := newBatch{id: lemma.NewIDSince(d.chunk.OriginID), after: d.chunk.after(at), variant: variant}
		if len(d.chunk.Variants) > 0 && d.chunk.Variants[variant].DueAfter > 0 {
			b.after = max(b.after, 0) + d.chunk.Variants[variant].DueAfter // a chunk may be due early, and an offset not
		}
		d.batches, d.current[variant] = append(d.batches, b), at
	}
	b := &d.batches[at]
	b.size++
	return b.id, b.size - 1
}

// holdoutOrdinal is the ordinal of the holdout in iteration_members.
const holdoutOrdinal = -1

// members are hashes of profile keys, 8 bytes each, by variant and for the holdout.
type members struct {
	ordinals []int16 // of the variants; -1: the holdout
	profiles [][]byte
}

// insertMembers is a part of the statement that records a chunk: one of its own would cost
// another round trip.
const insertMembers = `
		with remembered as (
			insert into iteration_members (workspace_id, origin_id, id, ordinal, profiles)
			select $1, $2, m.id, m.ordinal, m.profiles from unnest($7::uuid[], $8::smallint[], $9::bytea[]) as m (id, ordinal, profiles))`

func (m *members) ids() []uuid.UUID {
	ids := make([]uuid.UUID, len(m.ordinals))
	for i := range ids {
		ids[i] = lemma.NewID()
	}
	return ids
}

// membersPerRow is how many hashes a page of Postgres has: a larger value is stored apart.
const membersPerRow = 1000

func (m *members) add(ordinal int, profiles []byte) {
	for row := range slices.Chunk(profiles, 8*membersPerRow) {
		m.ordinals, m.profiles = append(m.ordinals, int16(ordinal)), append(m.profiles, row)
	}
}

// membersOf are the recipients that a chunk has inserted, and its holdout if any of it was
// inserted. A repeated chunk may remember a profile of the holdout again: a reader counts
// different ones.
func membersOf(ctx context.Context, tx pgx.Tx, c Chunk, send []Recipient, batches []newBatch, w Written) (m members, err error) {
	if !c.Remember {
		return m, nil
	}
	profiles := make([][]byte, len(c.Variants))
	switch {
	case w.Created == 0:
	case w.Created == len(send):
		sizes := sizesOf(c, send)
		for i := range profiles {
			profiles[i] = make([]byte, 0, 8*sizes[i])
		}
		for i := range send {
			of := &profiles[send[i].Variant]
			*of = binary.LittleEndian.AppendUint64(*of, send[i].Fingerprint)
		}
	default:
		if err := readInserted(ctx, tx, c, send, batches, profiles); err != nil {
			return m, fmt.Errorf("read inserted recipients of %s: %w", c.OriginID, err)
		}
	}
	for i, v := range c.Variants {
		m.add(v.Ordinal, profiles[i])
	}
	if w.Skipped[Holdout] > 0 {
		m.add(holdoutOrdinal, holdoutOf(c))
	}
	return m, nil
}

// holdoutOf are the hashes of a chunk's holdout.
func holdoutOf(c Chunk) (profiles []byte) {
	for _, r := range c.Recipients {
		if r.Skip == Holdout {
			profiles = binary.LittleEndian.AppendUint64(profiles, r.Fingerprint)
		}
	}
	return profiles
}

// readInserted reads which recipients of a chunk were inserted: some were stored already.
func readInserted(ctx context.Context, tx pgx.Tx, c Chunk, send []Recipient, batches []newBatch, profiles [][]byte) error {
	ids, variants := make([]uuid.UUID, len(batches)), make(map[uuid.UUID]int, len(batches))
	for i, b := range batches {
		ids[i], variants[b.id] = b.id, b.variant
	}
	fingerprints := make(map[string]uint64, len(send))
	for i := range send {
		fingerprints[send[i].ProfileKey] = send[i].Fingerprint
	}
	rows, _ := tx.Query(ctx, `
		select b.id, n.profile_key from unnest($3::uuid[]) as b (id)
		cross join lateral (
			select n.profile_key from notifications n where n.workspace_id = $1 and n.origin_id = $2 and n.batch_id = b.id) n`,
		c.WorkspaceID, c.OriginID, ids)
	var batch uuid.UUID
	var profile string
	_, err := pgx.ForEachRow(rows, []any{&batch, &profile}, func() error {
		v := variants[batch]
		profiles[v] = binary.LittleEndian.AppendUint64(profiles[v], fingerprints[profile])
		return nil
	})
	return err
}
