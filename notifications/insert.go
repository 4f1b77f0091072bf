package notifications

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"lemma"
	"lemma/address"
)

// Reasons why a recipient is skipped. Expired, TemplateError and BatchCrashed are found
// before the call, the others when the row is inserted. The API documents the list.
const (
	MissingAddress   = address.Missing     // null or blank
	InvalidAddress   = address.Invalid     // not an address that the channel can carry
	TooManyAddresses = address.TooMany     // a token after the first address.MaxTokens of its row
	RowTooLarge      = "row_too_large"     // the row of the audience is longer than Lemma reads
	DuplicateAddress = "duplicate_address" // another profile of the audience has the same address
	Unsubscribed     = "unsubscribed"      // the audience's opted-out column is true, in this row or another of the profile
	InvalidKey       = "invalid_key"       // the profile key is empty, longer than 255 bytes or has space around it
	Expired          = "expired"           // the send deadline passed first
	TemplateError    = "template_error"    // the template cannot be rendered with the profile's data
	BatchCrashed     = "batch_crashed"     // the processes that claimed its batch crashed at it, before any call
	Holdout          = "holdout"           // the profile is in the holdout of an experiment
)

// Recipient is one profile of an audience at one address.
type Recipient struct {
	Key          uuid.UUID // uniqueness key within the origin; zero in a campaign: none, and Skip is set
	Holds        bool      // in a campaign, with Skip set: no other recipient gets the key
	EnrollmentID uuid.UUID // of flows only
	ProfileKey   string
	Address      string
	Payload      string
	Skip         string // the reason, when nothing is to be sent
	Late         bool   // in a campaign, with Skip set: it opted out while the audience was read
	Variant      int    // of an experiment: an index of Chunk.Variants
	Fingerprint  uint64 // of an experiment: a hash of the profile key
}

// Chunk is some thousands of recipients that are inserted together.
type Chunk struct {
	WorkspaceID uuid.UUID
	OriginID    uuid.UUID
	ProviderID  uuid.UUID
	ContentID   uuid.UUID
	Run         int  // number of the origin's fan-out
	OfFlow      bool // the recipients are enrollments at a node: each has its own key and enrollment, skipped or not
	Copy        bool // insert by COPY: no key is expected to be stored already. Not for flows
	OptOuts     bool // skip recipients whose profile the origin has as unsubscribed. Not for flows
	MaxAttempts int
	ReadAt      time.Time // before the recipients were read, by the database's clock; zero: now. Consent is as old as this
	ExpiresAt   *time.Time
	BatchSize   int
	DueAfter    time.Duration // of the first batch, from now
	DueStep     time.Duration // from one batch to the next
	Recipients  []Recipient
	Converts    bool      // the contents have a conversion
	Variants    []Variant // the contents that compete; nil: all get ContentID
	Remember    bool      // store the fingerprints of the recipients of each variant
}

// Written counts what a chunk has added; a repeated chunk adds nothing.
type Written struct {
	Created int
	Skipped map[string]int
}

// Insert writes a chunk in the caller's transaction: its intents, their batches, a
// job for each batch and a row of fanout_chunks.
//
// The unique key makes it idempotent: a conflict is a normal answer and adds
// nothing. A recipient whose key another profile holds is skipped as
// duplicate_address. A chunk with Copy set that has a stored key fails with
// ErrRepeated. Recipients are sorted by key, so that overlapping fan-outs take
// their locks in one order and cannot deadlock.
//
// A skipped recipient with Holds set holds its key as an intent does: an address
// that is opted out is not written to for another profile of the audience. An
// intent that has the key already is marked in opt_outs, and so is a profile that a
// later run finds opted out, or that opts out during a run: it may have intents.
//
// A recipient of a campaign with the profile and the key of another is the same
// recipient, skipped or not, and has one row. One that an earlier run has skipped
// without its key, and that has opted out since, has a second row, which holds the key.
func (l *Ledger) Insert(ctx context.Context, tx pgx.Tx, c Chunk) (Written, error) {
	if c.OptOuts {
		if err := skipUnsubscribed(ctx, tx, c); err != nil {
			return Written{}, fmt.Errorf("find opted-out profiles of %s: %w", c.OriginID, err)
		}
	}
	send, conflicting, keyed, skip := split(c)
	w := Written{Skipped: map[string]int{}}
	skip, late, err := insertKeyedSkips(ctx, tx, c, keyed, skip, w.Skipped)
	if err != nil {
		return w, fmt.Errorf("insert opted-out recipients of %s: %w", c.OriginID, err)
	}
	if c.Run > 1 { // most are stored already: a read costs less than an insert that conflicts
		var taken []Recipient
		if send, taken, err = absent(ctx, tx, c, send); err != nil {
			return w, fmt.Errorf("find stored recipients of %s: %w", c.OriginID, err)
		}
		skip = append(skip, taken...)
	}
	batches, err := insertIntents(ctx, tx, c, send)
	if err != nil {
		return w, fmt.Errorf("insert notifications of %s: %w", c.OriginID, err)
	}
	for _, b := range batches {
		w.Created += b.size
	}
	if w.Created < len(send) {
		conflicting = append(conflicting, send...)
	}
	if len(conflicting) > 0 {
		taken, err := heldByOthers(ctx, tx, c, conflicting)
		if err != nil {
			return w, fmt.Errorf("find repeated addresses of %s: %w", c.OriginID, err)
		}
		skip = append(skip, taken...)
	}
	if err = insertSkips(ctx, tx, c, skip, w.Skipped); err != nil {
		return w, fmt.Errorf("insert skipped recipients of %s: %w", c.OriginID, err)
	}
	if err = insertOptOuts(ctx, tx, c, late); err != nil {
		return w, fmt.Errorf("insert opt-outs of %s: %w", c.OriginID, err)
	}
	if err := l.Enqueue(ctx, tx, jobsOf(c, batches)); err != nil {
		return w, err
	}
	m, err := membersOf(ctx, tx, c, send, batches, w)
	if err != nil {
		return w, err
	}
	return w, recordChunk(ctx, tx, c, w, m)
}

// split separates recipients to send to from those to skip, in the order of keys.
// Of several profiles with one key the first (in byte order) requests it and the
// others conflict: the stored holder of the key decides, since an earlier chunk
// may have inserted any of them. The same profile twice is one recipient. Skipped
// recipients that hold their key are keyed.
func split(c Chunk) (send, conflicting, keyed, skip []Recipient) {
	all := sorted(c.Recipients)
	send = all[:0] // never longer than what is read of all
	for i := range all {
		r, last := &all[i], len(send)-1
		switch {
		case r.Skip != "" && r.Holds && !c.OfFlow:
			keyed = append(keyed, *r)
		case r.Skip != "":
			skip = append(skip, *r)
		case last < 0 || send[last].Key != r.Key:
			if last+1 < i {
				all[last+1] = *r
			}
			send = all[:last+2]
		case send[last].ProfileKey != r.ProfileKey:
			conflicting = append(conflicting, *r)
		}
	}
	return send, conflicting, keyed, skip
}

// sorted returns recipients in the order of their keys and then of their profiles. It sorts
// the beginnings of the keys, since a swap of recipients costs ten times as much.
func sorted(all []Recipient) []Recipient {
	type entry struct {
		begins uint64 // of the key
		at     int32
	}
	order := make([]entry, len(all))
	for i := range all {
		order[i] = entry{binary.BigEndian.Uint64(all[i].Key[:]), int32(i)}
	}
	slices.SortFunc(order, func(a, b entry) int {
		if a.begins != b.begins {
			return cmp.Compare(a.begins, b.begins)
		}
		x, y := &all[a.at], &all[b.at]
		return cmp.Or(bytes.Compare(x.Key[8:], y.Key[8:]), strings.Compare(x.ProfileKey, y.ProfileKey))
	})
	out := make([]Recipient, len(all))
	for i, e := range order {
		out[i] = all[e.at]
	}
	return out
}

type newBatch struct {
	id      uuid.UUID
	size    int
	after   time.Duration
	variant int
}

// insertIntents inserts intents, and then their batches with the number of rows
// that were new, so that a repeated chunk makes no batch.
func insertIntents(ctx context.Context, tx pgx.Tx, c Chunk, send []Recipient) ([]newBatch, error) {
	if len(send) == 0 {
		return nil, nil
	}
	at := placesOf(c, send)
	if c.Copy {
		if err := copyIntents(ctx, tx, c, send, at); err != nil {
			return nil, err
		}
		return at.batches, insertBatches(ctx, tx, c, at.batches)
	}
	col := columnsOf(send, at)
	tag, err := tx.Exec(ctx, `
		insert into notifications (workspace_id, origin_id, key, batch_id, ordinal, profile_key, address, payload, enrollment_id,
			converts)
		select $1, $2, r.key, r.batch_id, r.ordinal, r.profile_key, r.address, r.payload, r.enrollment_id, nullif($10, false)
		from unnest($3::uuid[], $4::uuid[], $5::smallint[], $6::text[], $7::text[], $8::text[], $9::uuid[])
			as r (key, batch_id, ordinal, profile_key, address, payload, enrollment_id)
		on conflict (workspace_id, origin_id, key) do nothing`,
		c.WorkspaceID, c.OriginID, col.keys, col.batchOf, col.ordinals, col.profiles, col.addresses, col.payloads, enrollmentsOf(c, send),
		c.Converts)
	if err != nil {
		return nil, err
	}
	batches := at.batches
	if int(tag.RowsAffected()) < len(send) {
		if batches, err = countBatches(ctx, tx, c, at.batches); err != nil {
			return nil, err
		}
	}
	return batches, insertBatches(ctx, tx, c, batches)
}

// countBatches reads how many rows of each batch were inserted: some of the chunk's
// were stored already.
func countBatches(ctx context.Context, tx pgx.Tx, c Chunk, planned []newBatch) ([]newBatch, error) {
	ids := make([]uuid.UUID, len(planned))
	for i, b := range planned {
		ids[i] = b.id
	}
	rows, _ := tx.Query(ctx, `
		select b.i::int, n.size::int from unnest($3::uuid[]) with ordinality as b (id, i)
		cross join lateral (
			select count(*) as size from notifications n where n.workspace_id = $1 and n.origin_id = $2 and n.batch_id = b.id) n
		where n.size > 0`, c.WorkspaceID, c.OriginID, ids)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (newBatch, error) {
		var i, size int
		err := row.Scan(&i, &size)
		b := planned[max(i, 1)-1]
		b.size = size
		return b, err
	})
}

func insertBatches(ctx context.Context, tx pgx.Tx, c Chunk, batches []newBatch) error {
	if len(batches) == 0 {
		return nil
	}
	ids, sizes, after := make([]uuid.UUID, len(batches)), make([]int16, len(batches)), make([]float64, len(batches))
	contents := make([]uuid.UUID, len(batches))
	for i, b := range batches {
		ids[i], sizes[i], after[i], contents[i] = b.id, int16(b.size), b.after.Seconds(), c.contentOf(b.variant)
	}
	_, err := tx.Exec(ctx, `
		insert into batches (workspace_id, origin_id, id, root_id, provider_id, content_id, size, max_attempts, expires_at,
			due_at, created_at)
		select $1, $2, b.id as id, b.id as root_id, $3, b.content_id, b.size, $5, $6, now() + make_interval(secs => b.after),
			coalesce($10, now())
		from unnest($7::uuid[], $8::smallint[], $9::float8[], $4::uuid[]) as b (id, size, after, content_id)`,
		c.WorkspaceID, c.OriginID, c.ProviderID, contents, c.MaxAttempts, c.ExpiresAt, ids, sizes, after,
		pgtype.Timestamptz{Time: c.ReadAt, Valid: !c.ReadAt.IsZero()})
	return err
}

// enrollmentsOf is empty, and so null in every row, for a campaign.
func enrollmentsOf(c Chunk, send []Recipient) []pgtype.UUID {
	if !c.OfFlow {
		return []pgtype.UUID{}
	}
	ids := make([]pgtype.UUID, len(send))
	for i, r := range send {
		ids[i] = wire(r.EnrollmentID)
	}
	return ids
}

// after is how long from now the i-th batch of a chunk is due.
func (c Chunk) after(i int) time.Duration { return c.DueAfter + time.Duration(i)*c.DueStep }

// wire converts an id for pgx, since the driver.Valuer of uuid.UUID is slow for thousands.
func wire(id uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// places are the batch and the ordinal of each recipient of a chunk.
type places struct {
	batchOf  []uuid.UUID
	ordinals []int16
	batches  []newBatch // if no row conflicts
}

func placesOf(c Chunk, send []Recipient) places {
	at := places{batchOf: make([]uuid.UUID, len(send)), ordinals: make([]int16, len(send))}
	dealer := newDealer(c, send)
	for i := range send {
		batch, ordinal := dealer.place(send[i].Variant)
		at.batchOf[i], at.ordinals[i] = batch, int16(ordinal)
	}
	at.batches = dealer.batches
	return at
}

// intentColumns are the columns of recipients, as unnest takes them.
type intentColumns struct {
	keys, batchOf                 []pgtype.UUID
	ordinals                      []int16
	profiles, addresses, payloads []string
}

func columnsOf(send []Recipient, at places) intentColumns {
	n := len(send)
	col := intentColumns{
		keys: make([]pgtype.UUID, n), batchOf: make([]pgtype.UUID, n), ordinals: at.ordinals,
		profiles: make([]string, n), addresses: make([]string, n), payloads: make([]string, n),
	}
	for i := range send {
		r := &send[i]
		col.keys[i], col.profiles[i], col.addresses[i], col.payloads[i] = wire(r.Key), r.ProfileKey, r.Address, r.Payload
		col.batchOf[i] = wire(at.batchOf[i])
	}
	return col
}

func jobsOf(c Chunk, batches []newBatch) []Job {
	out := make([]Job, len(batches))
	for i, b := range batches {
		out[i] = Job{Ref: Ref{c.WorkspaceID, c.OriginID, b.id}, After: b.after}
	}
	return out
}

// recordChunk inserts what the chunk added into fanout_chunks, from which the counts
// are checked, and the members of an experiment. A flow has counts of its own, by step.
func recordChunk(ctx context.Context, tx pgx.Tx, c Chunk, w Written, m members) error {
	if c.OfFlow || w.Created == 0 && len(w.Skipped) == 0 {
		return nil
	}
	const record = `
		insert into fanout_chunks (workspace_id, origin_id, id, run, created, skipped)
		values ($1, $2, $3, $4, $5, $6)`
	args := []any{c.WorkspaceID, c.OriginID, lemma.NewID(), c.Run, w.Created, w.Skipped}
	sql := record
	if len(m.ordinals) > 0 {
		sql, args = insertMembers+record, append(args, m.ids(), m.ordinals, m.profiles)
	}
	_, err := tx.Exec(ctx, sql, args...)
	return lemma.Wrap(err, "record chunk of %s", c.OriginID)
}
