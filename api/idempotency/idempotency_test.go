package idempotency

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/pgtest"
)

type bundle struct {
	Keys
	workspace uuid.UUID
}

func setup(t *testing.T) bundle {
	t.Helper()
	t.Parallel()
	pool := pgtest.DB(t)
	return bundle{New(pool), pgtest.Workspace(t, pool)}
}

func (b bundle) count(t *testing.T, sql string) (n int) {
	t.Helper()
	if err := b.pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// The id for a new row is a UUIDv7 that is derived from the row of the key.
func TestIDOfAClaim(t *testing.T) {
	t.Parallel()
	c := Claim{workspace: uuid.MustParse("0190a5b0-0000-7000-8000-000000000001"), key: "k", createdAt: time.UnixMicro(1_790_000_000_123_456)}
	id := c.ID()
	if id.Version() != 7 || id.Variant() != uuid.RFC4122 {
		t.Errorf("version %d, variant %s", id.Version(), id.Variant())
	}
	if sec, nsec := id.Time().UnixTime(); time.Unix(sec, nsec).UnixMilli() != 1_790_000_000_123 {
		t.Errorf("its time is %s", time.Unix(sec, nsec))
	}
	other := c
	other.createdAt = c.createdAt.Add(time.Microsecond)
	if id != c.ID() || id == other.ID() {
		t.Error("the id is not derived from the row alone")
	}
	other = c
	other.workspace = lemma.NewID()
	if id == other.ID() {
		t.Error("two workspaces make one id")
	}
}

func TestPurge(t *testing.T) {
	b := setup(t)
	for _, key := range []string{"old", "new"} {
		held, _, err := b.Claim(t.Context(), b.workspace, key, []byte("x"))
		if err == nil {
			err = b.Keep(t.Context(), *held, Answer{Status: 201, Header: map[string]string{}, Body: []byte("{}")})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	pgtest.Exec(t, b.pool, `update idempotency_keys set locked_until = now() - interval '1 second'`)
	pgtest.Exec(t, b.pool, `update idempotency_keys set created_at = now() - interval '25 hours' where key = 'old'`)
	other := pgtest.Workspace(t, b.pool)
	pgtest.Exec(t, b.pool, `insert into idempotency_keys (workspace_id, key, request_hash, locked_by, locked_until, created_at)
		values ($1, 'busy', '', $1, now() + interval '1 minute', now() - interval '25 hours')`, other)
	n, err := Purge(t.Context(), b.pool)
	if left := b.count(t, `select count(*) from idempotency_keys where key in ('new', 'busy')`); err != nil || n != 1 || left != 2 {
		t.Errorf("purged %d, left %d of 2, %v", n, left, err)
	}
}

// However many answers are old, each statement deletes a part, and all are deleted.
func TestPurgeInParts(t *testing.T) {
	b := setup(t)
	pgtest.Exec(t, b.pool, `insert into idempotency_keys (workspace_id, key, request_hash, locked_by, locked_until, created_at)
		select $1, 'old' || i, '', $1, now() - interval '1 second', now() - interval '25 hours' from generate_series(1, $2::int) i`,
		b.workspace, purgedAtOnce+8)
	if n, err := purge(t.Context(), b.pool, 5); n != 5 || err != nil {
		t.Errorf("one statement deleted %d, %v", n, err)
	}
	if n, err := Purge(t.Context(), b.pool); n != purgedAtOnce+3 || err != nil {
		t.Errorf("deleted %d, %v", n, err)
	}
}

// A renewal that is carried out after its request has released the key does not lock it
// again.
func TestAReleasedKeyStaysFree(t *testing.T) {
	b := setup(t)
	held, _, err := b.Claim(t.Context(), b.workspace, "k", []byte("x"))
	if err == nil {
		err = b.Release(t.Context(), *held)
	}
	if err != nil {
		t.Fatal(err)
	}
	if renewed, err := b.renew(t.Context(), *held, time.Now()); renewed || err != nil {
		t.Errorf("renewed: %v, %v", renewed, err)
	}
	if next, _, err := b.Claim(t.Context(), b.workspace, "k", []byte("x")); err != nil || next.Attempt != 2 {
		t.Errorf("%+v, %v", next, err)
	}
}

// A request that has lost its lock is cancelled at the next renewal, not when the lock
// would have expired.
func TestLostLockIsDetectedAtTheNextRenewal(t *testing.T) {
	b := setup(t)
	held, _, err := b.Claim(t.Context(), b.workspace, "k", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, b.pool, `update idempotency_keys set locked_by = gen_random_uuid()`)
	begun := time.Now()
	ctx, done := b.Hold(t.Context(), *held)
	defer done()
	select {
	case <-ctx.Done():
	case <-time.After(time.Minute):
	}
	if took := time.Since(begun); took >= lockFor-renewEvery || !errors.Is(context.Cause(ctx), ErrInProgress) {
		t.Errorf("after %s: %v", took, context.Cause(ctx))
	}
}

// A key that a crashed process has locked by a clock that was set back since is free. Its
// holder, if it lives, has lost it.
func TestALockThatIsTooFarAheadIsFree(t *testing.T) {
	b := setup(t)
	held, _, err := b.Claim(t.Context(), b.workspace, "k", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ahead string
		free  bool
	}{{"1 minute", false}, {"1 day", true}} {
		pgtest.Exec(t, b.pool, `update idempotency_keys set locked_until = now() + $1::interval`, c.ahead)
		_, _, err := b.Claim(t.Context(), b.workspace, "k", []byte("x"))
		if free := err == nil; free != c.free || !free && !errors.Is(err, ErrInProgress) {
			t.Errorf("%s ahead: %v", c.ahead, err)
		}
	}
	if renewed, err := b.renew(t.Context(), *held, time.Now()); renewed || err != nil {
		t.Errorf("the former holder has renewed: %v, %v", renewed, err)
	}
}
