package direct

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// Locked is the error for a key that another request has locked: the same request may be
// repeated after RetryAfter.
type Locked struct {
	Notification string // its id; empty: it is not stored yet
	RetryAfter   time.Duration
}

func (l *Locked) Error() string {
	if l.Notification == "" {
		return "a request under this key is being carried out; repeat it to receive its answer"
	}
	return "the notification " + l.Notification + " of this key has not ended; repeat the request to receive its answer"
}

// reused is the error for another request under a key.
func reused() error {
	return lemma.Fault("/key", "key_reused", "was used for another request; take a new one")
}

// available is the condition that a row k of direct_keys allows the request r. The one that
// locked it has not stored its notification in time; or it is the own one, of an earlier
// attempt; or its notification has ended so that the key is unlocked, which never changes
// for a token: see keyState.over.
const available = `(not k.stored and (not ` + isLocked + ` or k.token = r.token) or k.token = r.over)`

// isLocked is true of a row k of direct_keys while its lock lasts. A lock that is further ahead than
// MostLock was written by a clock that was set back since.
const isLocked = `(k.locked_until > now() and k.locked_until <= now() + interval '61 minutes')`

// acquire is the one statement that acquires keys, each with a fresh token. A key has one
// row: one of an earlier period is locked, and deleted if it allows another request.
// Without key = any(...) the plan for an empty partition, as each day begins with one,
// reads all keys of the workspace.
const acquire = `
	with r as (
		select r.key, r.token, r.origin_id, r.request_hash, r.max_attempts, r.stored, r.lock_for, r.seal_for, r.over
		from unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::smallint[], $7::boolean[], $8::interval[],
			$9::interval[], $10::uuid[]) as r (key, token, origin_id, request_hash, max_attempts, stored, lock_for, seal_for, over)
	), p as materialized (
		select id from direct_key_periods order by id desc limit 1
	), old as materialized (
		select r.key, k.period, coalesce(` + available + `, false) as free
		from r cross join direct_key_periods q cross join lateral (
			select k.period, k.token, k.stored, k.locked_until from direct_keys k
			where k.workspace_id = $1 and k.key = r.key and k.period = q.id limit 1 for update) k
		where q.id < (select id from p)
	), gone as (
		delete from direct_keys d using old o
		where o.free and d.workspace_id = $1 and d.key = any($2) and d.key = o.key and d.period = o.period
	)
	insert into direct_keys as k (workspace_id, period, key, token, origin_id, request_hash, max_attempts, stored, locked_until, seal_for)
	select $1, p.id, r.key, r.token, r.origin_id, r.request_hash, r.max_attempts, r.stored, now() + r.lock_for, r.seal_for
	from r cross join p
	where not exists (select from old o where o.key = r.key and not o.free)
	on conflict (workspace_id, key, period) do update set token = excluded.token, origin_id = excluded.origin_id,
		request_hash = excluded.request_hash, max_attempts = excluded.max_attempts, stored = excluded.stored,
		locked_until = excluded.locked_until, seal_for = excluded.seal_for
	where not k.stored and (not ` + isLocked + ` or k.token = excluded.token)
		or k.token = (select r.over from r where r.key = k.key limit 1)
	returning k.key`

// store marks keys as stored, in the transaction that stores their notifications: while
// the lock is the own one and has not expired.
const store = `
	update direct_keys k set stored = true
	from unnest($2::uuid[], $3::uuid[]) as r (key, token)
	cross join direct_key_periods p
	where k.workspace_id = $1 and k.key = any($2) and k.key = r.key and k.period = p.id and k.token = r.token
		and not k.stored and k.locked_until > now()
	returning k.key`

// periodLock is the advisory lock of the current period: shared by transactions that
// acquire keys.
const periodLock = 0x6b65795f706572 // "key_per"

// Lock acquires the keys of requests in the caller's transaction, and returns which. Of
// two requests with one key the first acquires it. With stored, their notifications are
// stored by the same transaction.
func Lock(ctx context.Context, tx pgx.Tx, ws uuid.UUID, all []*request, stored bool) (acquired map[uuid.UUID]*request, err error) {
	all = inOrder(all)
	var c keyColumns
	for _, r := range all {
		c.add(r, stored)
	}
	batch := &pgx.Batch{}
	batch.Queue(`select pg_advisory_xact_lock_shared($1)`, int64(periodLock))
	batch.Queue(acquire, ws, c.keys, c.tokens, c.origins, c.hashes, c.attempts, c.stored, c.locks, c.seals, c.over).
		Query(func(rows pgx.Rows) error {
			acquired, err = collect(rows, all)
			return err
		})
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("acquire %d keys: %w", len(all), err)
	}
	return acquired, nil
}

// Store keeps the locks of requests for as long as their notifications need them, in the
// transaction that stores these. It returns the requests whose lock was not lost.
func Store(ctx context.Context, tx pgx.Tx, ws uuid.UUID, all []*request) (kept map[uuid.UUID]*request, err error) {
	all = inOrder(all)
	var c keyColumns
	for _, r := range all {
		c.add(r, true)
	}
	rows, _ := tx.Query(ctx, store, ws, c.keys, c.tokens)
	kept, err = collect(rows, all)
	return kept, lemma.Wrap(err, "store %d keys", len(all))
}

// Unlock unlocks keys whose requests have stored nothing: those that are locked by the
// tokens of these requests.
func Unlock(ctx context.Context, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, ws uuid.UUID, all []*request) error {
	var c keyColumns
	for _, r := range inOrder(all) {
		c.add(r, false)
	}
	rows, _ := db.Query(ctx, `
		update direct_keys k set locked_until = '-infinity'
		from unnest($2::uuid[], $3::uuid[]) as r (key, token)
		cross join direct_key_periods p
		where k.workspace_id = $1 and k.key = any($2) and k.key = r.key and k.period = p.id and k.token = r.token
			and not k.stored`, ws, c.keys, c.tokens)
	rows.Close()
	return lemma.Wrap(rows.Err(), "unlock %d keys", len(all))
}

// inOrder sorts requests by key, so that concurrent transactions lock them in one order,
// and leaves out repeated keys.
func inOrder(all []*request) []*request {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b *request) int { return bytes.Compare(a.key[:], b.key[:]) })
	return slices.CompactFunc(all, func(a, b *request) bool { return a.key == b.key })
}

func collect(rows pgx.Rows, all []*request) (map[uuid.UUID]*request, error) {
	by := make(map[uuid.UUID]*request, len(all))
	for _, r := range all {
		by[r.key] = r
	}
	found := map[uuid.UUID]*request{}
	var key uuid.UUID
	_, err := pgx.ForEachRow(rows, []any{&key}, func() error { found[key] = by[key]; return nil })
	return found, err
}

// keyColumns are the columns of direct_keys, as unnest takes them.
type keyColumns struct {
	keys, tokens, origins, hashes []uuid.UUID
	attempts                      []int16
	stored                        []bool
	locks, seals                  []time.Duration
	over                          []uuid.NullUUID
}

func (c *keyColumns) add(r *request, stored bool) {
	c.keys, c.tokens, c.origins = append(c.keys, r.key), append(c.tokens, r.row.Key), append(c.origins, r.row.OriginID)
	c.hashes, c.attempts, c.stored = append(c.hashes, r.Hash), append(c.attempts, int16(r.row.MaxAttempts)), append(c.stored, stored)
	c.locks, c.seals = append(c.locks, r.LockFor), append(c.seals, r.SealFor)
	c.over = append(c.over, uuid.NullUUID{UUID: r.over, Valid: r.over != uuid.Nil})
}

// lockKeys locks the keys of requests before their notifications can be stored, in a
// transaction of its own, and answers those whose keys others have.
func (d *Direct) lockKeys(ctx context.Context, ws uuid.UUID, all []*request) error {
	all = slices.DeleteFunc(slices.Clone(all), func(r *request) bool { return r.key == uuid.Nil })
	if len(all) == 0 {
		return nil
	}
	for range tries {
		if err := d.answer(ctx, ws, all); err != nil {
			return err
		}
		if all = open(all); len(all) == 0 {
			return nil
		}
		var acquired map[uuid.UUID]*request
		err := pgx.BeginFunc(ctx, d.Pool, func(tx pgx.Tx) (err error) {
			acquired, err = Lock(ctx, tx, ws, all, false)
			return err
		})
		if err != nil {
			return err
		}
		for _, r := range all {
			r.held = acquired[r.key] == r
		}
		all = slices.DeleteFunc(all, func(r *request) bool { return r.held })
	}
	for _, r := range all {
		r.fail(&Locked{RetryAfter: time.Second}) // others acquire it again and again
	}
	return nil
}

// tries is how often a request tries to acquire a key that is unlocked.
const tries = 3

// open are the requests without an answer.
func open(all []*request) []*request {
	return slices.DeleteFunc(slices.Clone(all), func(r *request) bool { return r.done })
}

// unlock unlocks the keys of requests that have stored nothing. If that fails they expire.
func (d *Direct) unlock(ctx context.Context, ws uuid.UUID, all []*request) {
	held := slices.DeleteFunc(slices.Clone(all), func(r *request) bool { return !r.held })
	if len(held) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := Unlock(ctx, d.Pool, ws, held); err != nil && !errors.Is(err, context.Canceled) {
		d.Log.ErrorContext(ctx, "keys not unlocked; they expire", "keys", len(held), "error", err)
	}
}
