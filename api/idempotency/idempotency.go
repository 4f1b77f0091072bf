// Package idempotency carries out a request once per Idempotency-Key. It guarantees:
//
//   - Of the requests under a key, one at a time runs. Another gets the kept answer, or
//     ErrInProgress.
//   - A request that has lost its claim commits nothing: Hold puts its fence into the
//     context, and Keep stores no answer of it.
//   - Each attempt under a key has the same id for the row that it creates.
//   - Large answers to small requests have a bound for each workspace, MaxExcess.
//
// Package api decides which requests have a key, what makes two of them the same, and
// which answers are kept. The table idempotency_keys belongs to this package.
package idempotency

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/fence"
)

// lockFor is how long a key stays locked after its last renewal. A request renews its
// lock every renewEvery while it runs, and is cancelled when it cannot, so that no two
// requests under a key run at once.
const (
	lockFor    = 4 * time.Second
	renewEvery = time.Second
)

// keptFor is how long an answer can be replayed.
const keptFor = 24 * time.Hour

// MaxExcess is how many bytes of excess the kept answers of a workspace have in all. The excess
// of an answer are its bytes beyond proportional times its request.
const MaxExcess = 1 << 30

// SmallAnswer is the size in bytes up to which an answer has no excess. Answers to bulks, which
// are proportional to their requests, have none either.
const (
	SmallAnswer  = 16 << 10
	proportional = 8
)

// Keys keeps the answers of requests with an Idempotency-Key. The request that
// inserts the row of the key holds its lock and is carried out.
type Keys struct{ pool *pgxpool.Pool }

// New returns the keys in a database.
func New(pool *pgxpool.Pool) Keys { return Keys{pool} }

// Claim is the lock of a key, held by one request.
type Claim struct {
	workspace uuid.UUID
	key       string
	createdAt time.Time // of the row, so the same in each attempt
	Attempt   int       // from 1: the late write of an earlier one must not replace that of a later one
	token     uuid.UUID // distinguishes this claim from a later one
	begun     time.Time // by the clock of this process, before the lock began
}

// Answer is what a request was answered.
type Answer struct {
	Status int
	Header map[string]string
	Body   []byte
	excess *int
}

// WithExcess notes the excess of the answer to a request of so many bytes.
func (a Answer) WithExcess(request int) Answer {
	if n := len(a.Body) - proportional*request; n > 0 && len(a.Body) > SmallAnswer {
		n = max(n, SmallAnswer) // so that few are summed up
		a.excess = &n
	}
	return a
}

// HasRoom reports whether the workspace may keep the answer. Requests that end at the same
// time may keep one each beyond the bound.
func (k Keys) HasRoom(ctx context.Context, workspace uuid.UUID, a Answer) (room bool, err error) {
	if a.excess == nil {
		return true, nil
	}
	err = k.pool.QueryRow(ctx, `
		select coalesce(sum(excess), 0) + $2 <= $3 from idempotency_keys where workspace_id = $1 and excess is not null`,
		workspace, *a.excess, MaxExcess).Scan(&room)
	return room, lemma.Wrap(err, "measure kept answers")
}

var (
	// ErrInProgress is the error while another request runs under the key.
	ErrInProgress = errors.New("another request is in progress under the Idempotency-Key")
	// ErrReused is the error for a key that was used for another request.
	ErrReused = errors.New("the Idempotency-Key was used for another request")
)

// Claim takes the lock of the key, or returns the kept answer. A lock that is further ahead than
// any was written by a clock that was set back since; its holder, if it lives, cannot commit.
func (k Keys) Claim(ctx context.Context, workspace uuid.UUID, key string, hash []byte) (*Claim, *Answer, error) {
	held := &Claim{workspace: workspace, key: key, token: lemma.NewID(), begun: time.Now()}
	err := k.pool.QueryRow(ctx, `
		insert into idempotency_keys (workspace_id, key, request_hash, locked_by, locked_until) values ($1, $2, $3, $4, now() + $5)
		on conflict (workspace_id, key) do update set locked_by = excluded.locked_by, locked_until = excluded.locked_until,
			claims = idempotency_keys.claims + 1
		where idempotency_keys.status is null and idempotency_keys.request_hash = excluded.request_hash
			and (idempotency_keys.locked_until < now() or idempotency_keys.locked_until > now() + $5 + interval '1 minute')
		returning created_at, claims`, workspace, key, hash, held.token, lockFor).Scan(&held.createdAt, &held.Attempt)
	if errors.Is(err, pgx.ErrNoRows) {
		earlier, err := k.earlier(ctx, workspace, key, hash)
		return nil, earlier, err
	}
	return held, nil, lemma.Wrap(err, "claim idempotency key")
}

// earlier reads the answer of the request that has the key.
func (k Keys) earlier(ctx context.Context, workspace uuid.UUID, key string, hash []byte) (*Answer, error) {
	var same bool
	var status *int
	var answer Answer
	err := k.pool.QueryRow(ctx, `
		select request_hash = $3, status, coalesce(headers, '{}'), coalesce(body, '') from idempotency_keys
		where workspace_id = $1 and key = $2`, workspace, key, hash).Scan(&same, &status, &answer.Header, &answer.Body)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // purged meanwhile
		return nil, ErrInProgress
	case err != nil:
		return nil, fmt.Errorf("read idempotency key: %w", err)
	case !same:
		return nil, ErrReused
	case status == nil:
		return nil, ErrInProgress
	}
	answer.Status = *status
	answer.Header["Idempotent-Replayed"] = "true"
	return &answer, nil
}

// Hold renews a claim while its request runs. The context ends when the claim is lost,
// since another request may run under the key from then on.
func (k Keys) Hold(ctx context.Context, c Claim) (context.Context, func()) {
	ctx, lose := context.WithCancelCause(fence.With(ctx, c.fence))
	go func() {
		renewed := c.begun
		for tick := time.Tick(renewEvery); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick:
			}
			begun := time.Now()
			switch held, err := k.renew(ctx, c, renewed); {
			case held:
				renewed = begun
			case err == nil, time.Since(renewed) >= lockFor-renewEvery:
				lose(ErrInProgress)
			}
		}
	}()
	return ctx, func() { lose(nil) }
}

// fence ends the transaction of a request that has lost its claim. Otherwise a row that
// another request created under the key, and a third deleted, would be created again.
func (c Claim) fence(ctx context.Context, tx pgx.Tx) error {
	tag, err := tx.Exec(ctx, `
		select from idempotency_keys
		where workspace_id = $1 and key = $2 and locked_by = $3 and status is null for share`, c.workspace, c.key, c.token)
	if err == nil && tag.RowsAffected() == 0 {
		return ErrInProgress
	}
	return err
}

// CallOnce records that the request is about to make a call that must not be repeated. It
// reports false if an earlier request under the key has recorded this: that one may have
// made the call, and ended without an answer.
func (k Keys) CallOnce(ctx context.Context, c *Claim) (first bool, err error) {
	if c == nil {
		return true, nil
	}
	err = k.pool.QueryRow(ctx, `
		update idempotency_keys set called_at = coalesce(called_at, now())
		where workspace_id = $1 and key = $2 and locked_by = $3 and status is null
		returning called_at = now()`, c.workspace, c.key, c.token).Scan(&first)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, ErrInProgress
	case err != nil:
		return false, fmt.Errorf("record a call: %w", err)
	}
	return first, nil
}

// renew reports whether the claim is held for another lockFor. False means that it is lost
// or released; with an error, it is unknown. It returns before the lock expires.
func (k Keys) renew(ctx context.Context, c Claim, renewed time.Time) (held bool, err error) {
	ctx, cancel := context.WithDeadline(ctx, renewed.Add(lockFor-renewEvery))
	defer cancel()
	tag, err := k.pool.Exec(ctx, `
		update idempotency_keys set locked_until = now() + $4
		where workspace_id = $1 and key = $2 and locked_by = $3 and status is null and locked_until > '-infinity'`,
		c.workspace, c.key, c.token, lockFor)
	return err == nil && tag.RowsAffected() == 1, err
}

// ID is the id of the row that the request creates: a UUIDv7 of the key's created_at, with
// bits of a hash in place of random ones. Each attempt has the same id, so that the row is
// created once.
func (c Claim) ID() uuid.UUID {
	sum := lemma.Key("idempotency/1", c.workspace.String(), c.key, c.createdAt.UTC().Format(time.RFC3339Nano))
	id := sum
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(c.createdAt.UnixMilli()))
	copy(id[:6], ms[2:])
	id[6] = 0x70 | id[6]&0x0f
	id[8] = 0x80 | id[8]&0x3f
	return id
}

// Keep stores an answer. If the claim is lost, it returns ErrInProgress, since another
// request runs under the key.
func (k Keys) Keep(ctx context.Context, c Claim, a Answer) error {
	tag, err := k.pool.Exec(ctx, `
		update idempotency_keys set status = $4, headers = $5, body = $6, excess = $7
		where workspace_id = $1 and key = $2 and locked_by = $3 and status is null`,
		c.workspace, c.key, c.token, a.Status, a.Header, a.Body, a.excess)
	if err != nil {
		return fmt.Errorf("keep answer: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return ErrInProgress
	}
	return nil
}

// Release releases the lock. The row stays, so that the next attempt has the same id.
func (k Keys) Release(ctx context.Context, c Claim) error {
	_, err := k.pool.Exec(ctx, `
		update idempotency_keys set locked_until = '-infinity'
		where workspace_id = $1 and key = $2 and locked_by = $3 and status is null`, c.workspace, c.key, c.token)
	return err
}

// purgedAtOnce is how many answers one statement deletes, so that none takes long.
const purgedAtOnce = 10_000

// Purge deletes answers that are older than 24 hours, of all workspaces, and returns their
// number.
func Purge(ctx context.Context, pool *pgxpool.Pool) (deleted int64, err error) {
	for {
		n, err := purge(ctx, pool, purgedAtOnce)
		deleted += n
		if err != nil || n < purgedAtOnce {
			return deleted, err
		}
	}
}

func purge(ctx context.Context, pool *pgxpool.Pool, most int) (int64, error) {
	tag, err := pool.Exec(ctx, `
		delete from idempotency_keys k using (
			select workspace_id, key from idempotency_keys
			where created_at < now() - $1::interval and locked_until < now() order by created_at limit $2 for update skip locked
		) old
		where k.workspace_id = old.workspace_id and k.key = old.key and k.locked_until < now()`, keptFor, most)
	return tag.RowsAffected(), lemma.Wrap(err, "purge idempotency keys")
}
