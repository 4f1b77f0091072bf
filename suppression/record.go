package suppression

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// Record adds what carriers reported, in the caller's transaction. Addresses that
// cannot be of their channel are left out.
func Record(ctx context.Context, tx pgx.Tx, ws uuid.UUID, entries []Entry) (added int, err error) {
	var valid []Entry
	for _, e := range entries {
		known, ok := canonical(e.Channel, e.Address)
		if !ok {
			continue
		}
		e.ID, e.Address = lemma.NewID(), known
		if len(e.Detail) > maxDetail {
			e.Detail = e.Detail[:maxDetail]
		}
		valid = append(valid, e)
	}
	return insert(ctx, tx, ws, valid)
}

// Soft bounces of an address suppress it when there are SoftBounceLimit of them within
// SoftBounceTime, and no message to it was delivered in between.
const (
	SoftBounceLimit = 5
	SoftBounceTime  = 30 * 24 * time.Hour
)

// Delivery is what became of a message to an address.
type Delivery struct {
	Channel   lemma.Channel
	Address   string
	Delivered bool // false: it bounced, for a reason that may pass
	At        time.Time
}

// RecordDeliveries counts soft bounces, forgets those before a delivery, and suppresses
// the addresses that reach the limit, in the caller's transaction.
func RecordDeliveries(ctx context.Context, tx pgx.Tx, ws uuid.UUID, all []Delivery) (added int, err error) {
	byKey := map[uuid.UUID]Delivery{}
	var delivered, bounced times
	for _, d := range all {
		known, ok := canonical(d.Channel, d.Address)
		if !ok {
			continue
		}
		d.Address = known
		key := keyOf(d.Channel, known)
		if d.Delivered {
			delivered = append(delivered, keyTime{key, d.At})
		} else {
			bounced, byKey[key] = append(bounced, keyTime{key, d.At}), d
		}
	}
	if err := bounced.insert(ctx, tx, ws); err != nil {
		return 0, err
	}
	if err := delivered.forget(ctx, tx, ws); err != nil || len(bounced) == 0 {
		return 0, err
	}
	reached, err := bounced.reached(ctx, tx, ws)
	if err != nil {
		return 0, err
	}
	entries := make([]Entry, len(reached))
	for i, key := range reached {
		d := byKey[key]
		entries[i] = Entry{ID: lemma.NewID(), Channel: d.Channel, Address: d.Address, Cause: SoftBounces}
	}
	return insert(ctx, tx, ws, entries)
}

type keyTime struct {
	key uuid.UUID
	at  time.Time
}

type times []keyTime

// columns are sorted by key, so that two transactions do not wait for each other.
func (t times) columns() (keys []uuid.UUID, at []time.Time) {
	slices.SortFunc(t, func(a, b keyTime) int { return bytes.Compare(a.key[:], b.key[:]) })
	for _, e := range t {
		keys, at = append(keys, e.key), append(at, e.at)
	}
	return keys, at
}

func (t times) insert(ctx context.Context, tx pgx.Tx, ws uuid.UUID) error {
	if len(t) == 0 {
		return nil
	}
	keys, at := t.columns()
	_, err := tx.Exec(ctx, `
		insert into soft_bounces (workspace_id, key, at) select $1, r.key, r.at from unnest($2::uuid[], $3::timestamptz[]) as r (key, at)
		on conflict (workspace_id, key, at) do nothing`, ws, keys, at)
	if err != nil {
		return fmt.Errorf("count %d soft bounces: %w", len(t), err)
	}
	return nil
}

// forget deletes the soft bounces before each time, and those that are too old to count.
func (t times) forget(ctx context.Context, tx pgx.Tx, ws uuid.UUID) error {
	if len(t) == 0 {
		return nil
	}
	keys, at := t.columns()
	_, err := tx.Exec(ctx, `
		delete from soft_bounces b
		using (
			select b.workspace_id, b.key, b.at from unnest($2::uuid[], $3::timestamptz[]) as r (key, at)
			cross join lateral (
				select b.workspace_id, b.key, b.at from soft_bounces b
				where b.workspace_id = $1 and b.key = r.key and b.at <= r.at order by b.at limit 100
			) b
		) old
		where b.workspace_id = old.workspace_id and b.key = old.key and b.at = old.at`, ws, keys, at)
	if err != nil {
		return fmt.Errorf("forget soft bounces of %d addresses: %w", len(t), err)
	}
	return nil
}

// reached are the keys with SoftBounceLimit soft bounces within SoftBounceTime.
func (t times) reached(ctx context.Context, tx pgx.Tx, ws uuid.UUID) ([]uuid.UUID, error) {
	keys, _ := t.columns()
	rows, err := tx.Query(ctx, `
		select k.key from (select distinct unnest($2::uuid[]) as key) k
		cross join lateral (
			select b.at from soft_bounces b where b.workspace_id = $1 and b.key = k.key order by b.at desc offset $3 limit 1) b
		where b.at > now() - $4::interval`, ws, keys, SoftBounceLimit-1, SoftBounceTime)
	if err != nil {
		return nil, fmt.Errorf("count soft bounces: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("count soft bounces: %w", err)
	}
	return found, nil
}
