package blobs_test

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/blobs"
	"lemma/pgtest"
)

type fixture struct {
	*blobs.Blobs
	t     *testing.T
	pool  *pgxpool.Pool
	dir   string
	owner blobs.Owner
}

func setup(t *testing.T) fixture {
	t.Helper()
	t.Parallel()
	pool, dir := pgtest.DB(t), t.TempDir()
	store, err := blobs.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	return fixture{blobs.New(blobs.Deps{Pool: pool, Store: store}), t, pool, dir, blobs.Owner{Workspace: uuid.New(), ID: lemma.NewID()}}
}

func (f fixture) in(do func(tx pgx.Tx) error) {
	f.t.Helper()
	if err := pgx.BeginFunc(f.t.Context(), f.pool, do); err != nil {
		f.t.Fatal(err)
	}
}

func (f fixture) register() (a blobs.Attempt, ok bool) {
	f.t.Helper()
	f.in(func(tx pgx.Tx) (err error) {
		a, ok, err = f.Register(f.t.Context(), tx, f.owner, "x", ".txt")
		return err
	})
	return a, ok
}

func (f fixture) prepare(a blobs.Attempt, text string) blobs.Content {
	f.t.Helper()
	c, err := f.Prepare(f.t.Context(), a, func(w io.Writer) error { _, err := io.WriteString(w, text); return err })
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

func (f fixture) commit(a blobs.Attempt, c blobs.Content) (ok bool) {
	f.t.Helper()
	f.in(func(tx pgx.Tx) (err error) { ok, err = f.Commit(f.t.Context(), tx, a, c); return err })
	return ok
}

func (f fixture) publish() bool {
	f.t.Helper()
	ok, err := f.Publish(f.t.Context(), f.owner, func(pgx.Tx) error { return nil })
	if err != nil {
		f.t.Fatal(err)
	}
	return ok
}

func (f fixture) clean() {
	f.t.Helper()
	if _, err := f.Clean(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
}

func (f fixture) expire() {
	f.t.Helper()
	pgtest.Exec(f.t, f.pool, `update blobs set lease_until = now() - interval '1 second' where status = 'registered'`)
}

// read is the published content; empty if there is none.
func (f fixture) read() string {
	f.t.Helper()
	found, err := f.Published(f.t.Context(), f.owner)
	if lemma.KindOf(err) == lemma.NotFound {
		return ""
	}
	if err != nil {
		f.t.Fatal(err)
	}
	r, err := f.Store.Open(f.t.Context(), found.Name, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		f.t.Fatal(err)
	}
	return string(text)
}

func (f fixture) files() int {
	f.t.Helper()
	n := 0
	err := filepath.WalkDir(f.dir, func(_ string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			n++
		}
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return n
}

func TestNothingIsReadBeforeTheCommit(t *testing.T) {
	f := setup(t)
	a, _ := f.register()
	c := f.prepare(a, "one")
	if f.publish() || f.read() != "" {
		t.Error("published before the commit")
	}
	if !f.commit(a, c) || f.read() != "" {
		t.Error("read before it was published")
	}
	if !f.publish() || f.read() != "one" || f.publish() {
		t.Errorf("published: %q", f.read())
	}
}

// Two attempts run at the same time, since the lease of the first has expired.
func TestOneAttemptIsCommitted(t *testing.T) {
	f := setup(t)
	first, _ := f.register()
	if _, ok := f.register(); ok {
		t.Error("a second attempt beside a lease")
	}
	f.expire()
	second, ok := f.register()
	if !ok || first.Name == second.Name {
		t.Fatalf("taken over: %t, %s", ok, second.Name)
	}
	two := f.prepare(second, "two")
	if !f.commit(second, two) || !f.publish() {
		t.Fatal("the second attempt holds the lease")
	}
	if one := f.prepare(first, "one"); f.commit(first, one) {
		t.Error("a second attempt is committed")
	}
	if f.read() != "two" {
		t.Errorf("the committed content is %q", f.read())
	}
	if _, ok := f.register(); ok {
		t.Error("an attempt after the commit")
	}
	f.clean()
	if f.read() != "two" || f.files() != 1 {
		t.Errorf("%q, and %d files", f.read(), f.files())
	}
}

func TestContentThatIsKept(t *testing.T) {
	f := setup(t)
	a, _ := f.register()
	c := f.prepare(a, "x")
	f.clean()
	if f.files() != 1 {
		t.Error("content of a running attempt is deleted")
	}
	f.commit(a, c)
	f.expire()
	f.clean()
	if f.files() != 1 || !f.publish() {
		t.Error("committed content is deleted")
	}
	f.clean()
	if f.read() != "x" {
		t.Error("published content is deleted")
	}
}

func TestContentOfCrashedAttemptsIsDeleted(t *testing.T) {
	f := setup(t)
	a, _ := f.register()
	f.prepare(a, "x")
	f.expire()
	f.clean()
	if n := f.files(); n != 0 {
		t.Errorf("%d files for ever", n)
	}
	pgtest.Exec(t, f.pool, `update blobs set ended_at = now() - interval '25 hours', clean_at = now() - interval '1 hour'`)
	f.clean()
	if n := pgtest.One[int](t, f.pool, `select count(*)::int from blobs`); n != 0 {
		t.Errorf("%d rows for ever", n)
	}
}

// What the store has lost or cut is not published.
func TestTheStoreIsAskedBeforePublishing(t *testing.T) {
	f := setup(t)
	a, _ := f.register()
	c := f.prepare(a, "whole")
	f.commit(a, c)
	if err := os.WriteFile(filepath.Join(f.dir, a.Name), []byte("cut"), 0o600); err != nil {
		t.Fatal(err)
	}
	if ok, err := f.Publish(t.Context(), f.owner, func(pgx.Tx) error { return nil }); ok || err == nil || f.read() != "" {
		t.Errorf("%t, %v", ok, err)
	}
}
