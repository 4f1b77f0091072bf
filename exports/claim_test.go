package exports

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"lemma/blobs"
	"lemma/pgtest"
)

// errClaim is an error of a claim that counts as a failure of its export.
var errClaim = errors.New("the filters cannot be read")

// lastFailure makes the next failure of an export its last.
func (f fixture) lastFailure(id uuid.UUID) {
	f.t.Helper()
	pgtest.Exec(f.t, f.pool, `update exports set failures = $2 where id = $1`, id, mostFailures-1)
}

// A claim fails, and another process claims the export before the failure is recorded: the
// export is that of the other process.
func TestAFailedClaimOfAnExportThatIsWritten(t *testing.T) {
	f := setup(t)
	x := f.create(NewExport{})
	f.lastFailure(x.ID)
	j, _, err := f.claim(t.Context(), 0)
	f.must(err)
	f.must(f.postpone(t.Context(), j.owner(), errClaim))
	content, err := f.prepare(t.Context(), j)
	f.must(err)
	if held, err := f.commit(t.Context(), j, content); err != nil || !held {
		t.Errorf("the other process commits: %v %v", held, err)
	}
	f.must(f.publish(t.Context(), j.owner()))
	if got := f.get(x.ID); got.Status != Completed {
		t.Errorf("%+v", got)
	}
}

// The same while the transaction of the other process is open.
func TestAFailedClaimWaitsForThatOfAnother(t *testing.T) {
	f := setup(t)
	x := f.create(NewExport{})
	f.lastFailure(x.ID)
	o := blobs.Owner{Workspace: f.ws, ID: x.ID}
	tx, err := f.pool.Begin(t.Context())
	f.must(err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	f.must(lock(t.Context(), tx, o))
	_, registered, err := f.Blobs.Register(t.Context(), tx, o, "exports", ".csv")
	if err != nil || !registered {
		t.Fatal(registered, err)
	}
	_, err = tx.Exec(t.Context(), `update exports set status = 'running', attempts = 1 where workspace_id = $1 and id = $2`, o.Workspace, o.ID)
	f.must(err)
	done := make(chan error)
	go func() { done <- f.postpone(t.Context(), o, errClaim) }()
	pgtest.WaitForLocks(t, f.pool, 1)
	f.must(tx.Commit(t.Context()))
	f.must(<-done)
	if got := f.get(x.ID); got.Status != Running {
		t.Errorf("%+v", got)
	}
}

// A database that is away for a while ends no export: neither one that is claimed nor one that
// is written.
func TestADatabaseThatIsAwayEndsNoExport(t *testing.T) {
	f := setup(t)
	x := f.create(NewExport{})
	due := func() { pgtest.Exec(t, f.pool, `update exports set retry_at = now()`) }
	pgtest.Exec(t, f.pool, `create function away() returns trigger language plpgsql as
		$$ begin raise exception 'terminating connection' using errcode = '57P01'; end $$`)
	pgtest.Exec(t, f.pool, `create trigger away before insert on blobs for each row execute function away()`)
	for range mostFailures + 1 {
		if _, err := f.RunOnce(t.Context()); err == nil {
			t.Fatal("it was claimed")
		}
		if n := pgtest.One[int](t, f.pool, `select count(*)::int from exports where retry_at > now()`); n != 1 {
			t.Error("it is due at once, and keeps others from being claimed")
		}
		due()
	}
	pgtest.Exec(t, f.pool, `drop trigger away on blobs`)
	for _, cause := range []error{&pgconn.PgError{Code: "57P01"}, io.ErrUnexpectedEOF, &pgconn.PgError{Code: "40001"}} {
		for range 2 {
			j, _, err := f.claim(t.Context(), 0)
			f.must(err)
			f.must(f.fail(t.Context(), j, fmt.Errorf("read rows: %w", cause)))
			due()
		}
	}
	if !f.run() || f.get(x.ID).Status != Completed {
		t.Errorf("%+v", f.get(x.ID))
	}
}

// mostAttempts bounds attempts that each end with the database, and the wait between them grows.
func TestADatabaseThatIsAwayForEachAttempt(t *testing.T) {
	f := setup(t)
	x := f.create(NewExport{})
	for i := range mostAttempts {
		j, _, err := f.claim(t.Context(), 0)
		f.must(err)
		f.must(f.fail(t.Context(), j, &pgconn.PgError{Code: "57P01"}))
		wait := pgtest.One[float64](t, f.pool, `select extract(epoch from retry_at - now())::float8 from exports`)
		if most := float64(10 * min(i+1, 10)); wait > most || wait < most-9 {
			t.Errorf("attempt %d: the next one comes after %v s", i+1, wait)
		}
		pgtest.Exec(t, f.pool, `update exports set retry_at = now()`)
	}
	if got := f.get(x.ID); f.run() || f.get(x.ID).Status != Failed || *f.get(x.ID).StatusReason != "too_many_attempts" {
		t.Errorf("%+v", got)
	}
}
