package api

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/client"
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

// idempotencyStore keeps the answers of requests with an Idempotency-Key. The request that
// inserts the row of the key holds its lock and is carried out.
type idempotencyStore struct{ pool *pgxpool.Pool }

// claim is the lock of a key, held by one request.
type claim struct {
	workspace uuid.UUID
	key       string
	createdAt time.Time // of the row, so the same in each attempt
	number    int       // of the attempt, from 1: the late write of an earlier one must not replace that of a later one
	token     uuid.UUID // distinguishes this claim from a later one
	begun     time.Time // by the clock of this process, before the lock began
}

// once carries out a call at most once per Idempotency-Key. Calls that write nothing,
// dry runs too, are carried out each time.
func (s *server) once(ctx context.Context, e endpoint, c *call) reply {
	key := c.request.Header.Get("Idempotency-Key")
	if e.method != http.MethodPost || key == "" || !e.do.writes || e.do.uploads || c.dryRun() {
		c.newID, c.attempt = lemma.NewID(), 1
		answer, _ := s.perform(ctx, e, c)
		return answer
	}
	held, earlier, err := s.claim(ctx, c, key)
	if errors.Is(err, errInProgress) && e.do.repeatable != nil && e.do.repeatable(c) {
		c.newID, c.attempt = lemma.NewID(), 1
		answer, _ := s.perform(ctx, e, c)
		return answer
	}
	if err != nil {
		return s.fail(c.request, err)
	}
	if earlier != nil {
		infoOf(ctx).replayed = true
		return earlier.replay(requestID(c.request.Context()))
	}
	c.newID, c.attempt, c.held = held.id(), held.number, held
	ctx, done := s.answers.hold(fence.With(ctx, held.fence), *held)
	defer done()
	return s.finish(ctx, held, e, c)
}

// claim takes the key in a slot of the database, for events too.
func (s *server) claim(ctx context.Context, c *call, key string) (*claim, *reply, error) {
	leave, err := s.enter(ctx, database, c)
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	return s.answers.claim(ctx, c.workspace(), key, fingerprint(c))
}

// hold renews a claim while its request runs. The context ends when the claim is lost,
// since another request may run under the key from then on.
func (k idempotencyStore) hold(ctx context.Context, c claim) (context.Context, func()) {
	ctx, lose := context.WithCancelCause(ctx)
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
				lose(errInProgress)
			}
		}
	}()
	return ctx, func() { lose(nil) }
}

// fence ends the transaction of a request that has lost its claim. Otherwise a row that
// another request created under the key, and a third deleted, would be created again.
func (c claim) fence(ctx context.Context, tx pgx.Tx) error {
	tag, err := tx.Exec(ctx, `
		select from idempotency_keys
		where workspace_id = $1 and key = $2 and locked_by = $3 and status is null for share`, c.workspace, c.key, c.token)
	if err == nil && tag.RowsAffected() == 0 {
		return errInProgress
	}
	return err
}

// callOnce records that the request is about to make a call that must not be repeated. It
// reports false if an earlier request under the key has recorded this: that one may have
// made the call, and ended without an answer.
func (k idempotencyStore) callOnce(ctx context.Context, c *claim) (first bool, err error) {
	if c == nil {
		return true, nil
	}
	err = k.pool.QueryRow(ctx, `
		update idempotency_keys set called_at = coalesce(called_at, now())
		where workspace_id = $1 and key = $2 and locked_by = $3 and status is null
		returning called_at = now()`, c.workspace, c.key, c.token).Scan(&first)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, errInProgress
	case err != nil:
		return false, fmt.Errorf("record a call: %w", err)
	}
	return first, nil
}

// renew reports whether the claim is held for another lockFor. False means that it is lost
// or released; with an error, it is unknown. It returns before the lock expires.
func (k idempotencyStore) renew(ctx context.Context, c claim, renewed time.Time) (held bool, err error) {
	ctx, cancel := context.WithDeadline(ctx, renewed.Add(lockFor-renewEvery))
	defer cancel()
	tag, err := k.pool.Exec(ctx, `
		update idempotency_keys set locked_until = now() + $4
		where workspace_id = $1 and key = $2 and locked_by = $3 and status is null and locked_until > '-infinity'`,
		c.workspace, c.key, c.token, lockFor)
	return err == nil && tag.RowsAffected() == 1, err
}

// finish carries out the call and keeps the answer before it is returned, so that each
// returned answer can be replayed. A 5xx, a 429 and an answer with Retry-After are not kept,
// and the key is released for the next attempt.
func (s *server) finish(ctx context.Context, held *claim, e endpoint, c *call) reply {
	done := false
	defer func() {
		if !done { // after a panic, too
			s.release(ctx, held, c)
		}
	}()
	answer, kept := s.perform(ctx, e, c)
	if answer.status >= http.StatusInternalServerError || answer.status == http.StatusTooManyRequests || answer.header["Retry-After"] != "" {
		if errors.Is(context.Cause(ctx), errInProgress) {
			return s.fail(c.request, errInProgress)
		}
		return answer
	}
	if err := s.answers.keep(ctx, *held, kept); err != nil {
		return s.fail(c.request, err)
	}
	done = true
	return answer
}

func (s *server) release(ctx context.Context, held *claim, c *call) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := s.answers.release(ctx, *held); err != nil {
		s.Log.ErrorContext(ctx, "idempotency key not released; it frees itself", "request_id", requestID(c.request.Context()), "error", err)
	}
}

// fingerprint distinguishes requests under the same key. It includes the API key, since
// another one may lack scopes that the handler checks.
func fingerprint(c *call) []byte {
	h := sha256.New()
	for _, part := range [][]byte{c.key.ID[:], []byte(c.request.Method), []byte(c.request.URL.Path), []byte(c.request.URL.RawQuery), c.body} {
		_ = binary.Write(h, binary.BigEndian, uint32(len(part)))
		h.Write(part)
	}
	return h.Sum(nil)
}

// id is the id of the row that the request creates: a UUIDv7 of the key's created_at, with
// bits of a hash in place of random ones. Each attempt has the same id, so that the row is
// created once.
func (c claim) id() uuid.UUID {
	sum := lemma.Key("idempotency/1", c.workspace.String(), c.key, c.createdAt.UTC().Format(time.RFC3339Nano))
	id := sum
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(c.createdAt.UnixMilli()))
	copy(id[:6], ms[2:])
	id[6] = 0x70 | id[6]&0x0f
	id[8] = 0x80 | id[8]&0x3f
	return id
}

// claim takes the lock of the key, or returns the kept answer.
func (k idempotencyStore) claim(ctx context.Context, workspace uuid.UUID, key string, hash []byte) (*claim, *reply, error) {
	held := &claim{workspace: workspace, key: key, token: lemma.NewID(), begun: time.Now()}
	err := k.pool.QueryRow(ctx, `
		insert into idempotency_keys (workspace_id, key, request_hash, locked_by, locked_until) values ($1, $2, $3, $4, now() + $5)
		on conflict (workspace_id, key) do update set locked_by = excluded.locked_by, locked_until = excluded.locked_until,
			claims = idempotency_keys.claims + 1
		where idempotency_keys.status is null and idempotency_keys.locked_until < now() and idempotency_keys.request_hash = excluded.request_hash
		returning created_at, claims`, workspace, key, hash, held.token, lockFor).Scan(&held.createdAt, &held.number)
	if errors.Is(err, pgx.ErrNoRows) {
		earlier, err := k.earlier(ctx, workspace, key, hash)
		return nil, earlier, err
	}
	return held, nil, lemma.Wrap(err, "claim idempotency key")
}

// earlier reads the answer of the request that has the key.
func (k idempotencyStore) earlier(ctx context.Context, workspace uuid.UUID, key string, hash []byte) (*reply, error) {
	var same bool
	var status *int
	var answer reply
	err := k.pool.QueryRow(ctx, `
		select request_hash = $3, status, coalesce(headers, '{}'), coalesce(body, '') from idempotency_keys
		where workspace_id = $1 and key = $2`, workspace, key, hash).Scan(&same, &status, &answer.header, &answer.body)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // purged meanwhile
		return nil, errInProgress
	case err != nil:
		return nil, fmt.Errorf("read idempotency key: %w", err)
	case !same:
		return nil, &refusal{status: http.StatusUnprocessableEntity, code: "idempotency_key_reused",
			detail: "this Idempotency-Key was used for another request, or by another API key; take a new " +
				"one", fields: []lemma.Field{{Pointer: "Idempotency-Key:", Code: "idempotency_key_reused", Detail: "was used for another request"}}}
	case status == nil:
		return nil, errInProgress
	}
	answer.status = *status
	answer.header["Idempotent-Replayed"] = "true"
	return &answer, nil
}

// replay returns a kept answer for another request, whose id a problem contains.
func (r reply) replay(request string) reply {
	var p client.Problem
	if r.status < http.StatusBadRequest || json.Unmarshal(r.body, &p) != nil {
		return r
	}
	p.RequestID = request
	r.body = encode(p)
	return r
}

// errInProgress is the answer while another request runs under the key.
var errInProgress error = &refusal{status: http.StatusConflict, code: "idempotency_in_progress",
	detail: "the same request is in progress; repeat it to receive its answer", header: map[string]string{"Retry-After": "1"}}

// keep stores an answer. If the claim is lost, it returns errInProgress, since another
// request runs under the key.
func (k idempotencyStore) keep(ctx context.Context, c claim, r reply) error {
	tag, err := k.pool.Exec(ctx, `
		update idempotency_keys set status = $4, headers = $5, body = $6
		where workspace_id = $1 and key = $2 and locked_by = $3 and status is null`, c.workspace, c.key, c.token, r.status, r.header, r.body)
	if err != nil {
		return fmt.Errorf("keep answer: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return errInProgress
	}
	return nil
}

// release releases the lock. The row stays, so that the next attempt has the same id.
func (k idempotencyStore) release(ctx context.Context, c claim) error {
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
