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
	"lemma/fence"
)

// lockFor is how long a key stays locked by a process that has stopped
// renewing the lock, because it was killed or lost its database. A request
// renews its lock every renewEvery for as long as it runs, and is given up when
// it cannot, so that no two requests do the same work at once.
const (
	lockFor    = 4 * time.Second
	renewEvery = time.Second
)

// keptFor is how long an answer can be replayed.
const keptFor = 24 * time.Hour

// idempotencyStore keeps the answers of requests that named an Idempotency-Key. The
// insert of its row is the lock: the request that inserts it is carried out.
type idempotencyStore struct{ pool *pgxpool.Pool }

// claim is the right to act under a key.
type claim struct {
	workspace uuid.UUID
	key       string
	createdAt time.Time // of the row, not of the claim: done again, a request has it again
	number    int       // of the claim, from 1: what an earlier one does late must not undo what a later one has answered
	token     uuid.UUID // distinguishes this claim from a later one
	begun     time.Time // by this machine's clock, before the lock began
}

// once does the work of a call at most once per Idempotency-Key. What writes
// nothing, dry runs too, needs no such care.
func (s *server) once(ctx context.Context, e endpoint, c *call) reply {
	key := c.request.Header.Get("Idempotency-Key")
	if e.method != http.MethodPost || key == "" || !e.do.writes || e.do.uploads || c.dryRun() {
		c.newID, c.attempt = lemma.NewID(), 1
		answer, _ := s.perform(ctx, e, c)
		return answer
	}
	held, earlier, err := s.answers.claim(ctx, c.workspace(), key, fingerprint(c))
	if errors.Is(err, errInProgress) && e.do.repeatable != nil && e.do.repeatable(c) {
		c.newID, c.attempt = lemma.NewID(), 1
		answer, _ := s.perform(ctx, e, c)
		return answer
	}
	if err != nil {
		return s.fail(c.request, err)
	}
	if earlier != nil {
		trailOf(ctx).replayed = true
		return earlier.replay(requestID(c.request.Context()))
	}
	c.newID, c.attempt = held.id(), held.number
	ctx, done := s.answers.hold(fence.With(ctx, held.fence), *held)
	defer done()
	return s.finish(ctx, held, e, c)
}

// hold renews a claim while its request runs. The context ends when the claim
// is lost: another request may act under the key from then on.
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

// fence ends the transaction of a request that has lost its claim: what another
// request has made under the key, and a third has deleted since, is not made again.
func (c claim) fence(ctx context.Context, tx pgx.Tx) error {
	tag, err := tx.Exec(ctx, `
		select from idempotency_keys where workspace_id = $1 and key = $2 and locked_by = $3 and status is null for share`, c.workspace, c.key, c.token)
	if err == nil && tag.RowsAffected() == 0 {
		return errInProgress
	}
	return err
}

// renew reports whether the claim is held for another lockFor: with an error that
// is unknown, without one it is lost, or was released. It gives up before the
// lock that it would renew is over.
func (k idempotencyStore) renew(ctx context.Context, c claim, renewed time.Time) (held bool, err error) {
	ctx, cancel := context.WithDeadline(ctx, renewed.Add(lockFor-renewEvery))
	defer cancel()
	tag, err := k.pool.Exec(ctx, `
		update idempotency_keys set locked_until = now() + $4
		where workspace_id = $1 and key = $2 and locked_by = $3 and status is null and locked_until > '-infinity'`, c.workspace, c.key, c.token, lockFor)
	return err == nil && tag.RowsAffected() == 1, err
}

// finish does the work and keeps the answer before anybody sees it: an answer
// that was given is one that will be given again. What failed on our side is
// not kept, and the key is free for the next try.
func (s *server) finish(ctx context.Context, held *claim, e endpoint, c *call) reply {
	done := false
	defer func() {
		if !done { // a panic, too, sets the key free
			s.release(ctx, held, c)
		}
	}()
	answer, kept := s.perform(ctx, e, c)
	if answer.status >= http.StatusInternalServerError {
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

// fingerprint distinguishes requests under the same key. It includes the API key:
// another one may lack scopes that a handler checks, and must not receive the
// answer to the first.
func fingerprint(c *call) []byte {
	h := sha256.New()
	for _, part := range [][]byte{c.key.ID[:], []byte(c.request.Method), []byte(c.request.URL.Path), []byte(c.request.URL.RawQuery), c.body} {
		_ = binary.Write(h, binary.BigEndian, uint32(len(part)))
		h.Write(part)
	}
	return h.Sum(nil)
}

// id is what a thing made under the key is called: a UUIDv7 of the row's time
// with bits of a hash in place of random ones. It follows from the row alone,
// so that a request done again makes the same thing.
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

// claim takes the key, or answers what was answered before.
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
	if err != nil {
		return nil, nil, fmt.Errorf("claim idempotency key: %w", err)
	}
	return held, nil, nil
}

// earlier reads what came of the request that has the key.
func (k idempotencyStore) earlier(ctx context.Context, workspace uuid.UUID, key string, hash []byte) (*reply, error) {
	var same bool
	var status *int
	var answer reply
	err := k.pool.QueryRow(ctx, `
		select request_hash = $3, status, coalesce(headers, '{}'), coalesce(body, '') from idempotency_keys
		where workspace_id = $1 and key = $2`, workspace, key, hash).Scan(&same, &status, &answer.header, &answer.body)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // purged this very moment
		return nil, errInProgress
	case err != nil:
		return nil, fmt.Errorf("read idempotency key: %w", err)
	case !same:
		return nil, &refusal{status: http.StatusUnprocessableEntity, code: "idempotency_key_reused", detail: "this Idempotency-Key was used for another request, or by another API key; take a new one",
			fields: []lemma.Field{{Pointer: "Idempotency-Key:", Code: "idempotency_key_reused", Detail: "was used for another request"}}}
	case status == nil:
		return nil, errInProgress
	}
	answer.status = *status
	answer.header["Idempotent-Replayed"] = "true"
	return &answer, nil
}

// replay is a kept answer as another request receives it: a problem names the
// request that it answers.
func (r reply) replay(request string) reply {
	var p problem
	if r.status < http.StatusBadRequest || json.Unmarshal(r.body, &p) != nil {
		return r
	}
	p.RequestID = request
	r.body = encode(p)
	return r
}

// errInProgress: another request works under the key, or has taken it over.
var errInProgress error = &refusal{status: http.StatusConflict, code: "idempotency_in_progress", detail: "the same request is in progress; repeat it to receive its answer",
	header: map[string]string{"Retry-After": "1"}}

// keep stores an answer, unless the claim was lost: then another request acts
// under the key and theirs is the answer.
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

// release frees the key. The row stays: a repeated request makes the same thing.
func (k idempotencyStore) release(ctx context.Context, c claim) error {
	_, err := k.pool.Exec(ctx, `
		update idempotency_keys set locked_until = '-infinity'
		where workspace_id = $1 and key = $2 and locked_by = $3 and status is null`, c.workspace, c.key, c.token)
	return err
}

// Purge deletes answers that are older than 24 hours and reports how many. It is
// one of the few statements over all workspaces.
func Purge(ctx context.Context, pool *pgxpool.Pool) (int64, error) {
	tag, err := pool.Exec(ctx, `delete from idempotency_keys where created_at < now() - $1::interval and locked_until < now()`, keptFor)
	if err != nil {
		return 0, fmt.Errorf("purge idempotency keys: %w", err)
	}
	return tag.RowsAffected(), nil
}
