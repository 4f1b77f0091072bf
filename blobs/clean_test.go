package blobs_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"

	"lemma/blobs"
	"lemma/pgtest"
)

// ends stores attempts of a workspace that have ended.
func (f fixture) ends(ws uuid.UUID, n int, name string) {
	f.t.Helper()
	pgtest.Exec(f.t, f.pool, `insert into blobs (workspace_id, id, owner_id, store, name, status, ended_at, clean_at)
		select $1, gen_random_uuid(), gen_random_uuid(), '', $3 || '-' || i, 'ended', now(), now() - $2 * interval '1 minute'
		from generate_series(1, $2::int) i`, ws, n, name)
}

// counting is a Store that counts deletions, and fails some.
type counting struct {
	blobs.Store
	fails   string
	deleted map[string]int
}

var errDelete = errors.New("access denied")

func (s counting) Delete(ctx context.Context, name string) error {
	if s.fails != "" && strings.HasPrefix(name, s.fails) {
		return errDelete
	}
	s.deleted[name]++
	return s.Store.Delete(ctx, name)
}

// A workspace with much ended content, which was stored before, delays that of others by no
// chunk.
func TestContentIsCleanedByWorkspaceInTurn(t *testing.T) {
	f := setup(t)
	store := counting{f.Store, "", map[string]int{}}
	f.Store = store
	f.ends(uuid.New(), 1_000, "many")
	f.ends(uuid.New(), 1, "one")
	f.clean()
	if store.deleted["one-1"] != 1 {
		t.Errorf("%d contents were deleted before that of another workspace", len(store.deleted))
	}
	for name, n := range store.deleted {
		if n != 1 {
			t.Errorf("%s was deleted %d times", name, n)
		}
	}
	f.clean()
	if n := len(store.deleted); n != 21 {
		t.Errorf("%d contents were deleted by two calls", n)
	}
}

// Content that the store does not delete is tried again later, and delays no other.
func TestContentThatCannotBeDeletedDelaysNoOther(t *testing.T) {
	f := setup(t)
	store := counting{f.Store, "stuck", map[string]int{}}
	f.Store = store
	ws := uuid.New()
	f.ends(ws, 10, "stuck")
	f.ends(ws, 1, "good")
	if n, err := f.Clean(t.Context()); n != 0 || !errors.Is(err, errDelete) {
		t.Errorf("%d are deleted, %v", n, err)
	}
	f.clean()
	if store.deleted["good-1"] != 1 {
		t.Error("the content behind those that cannot be deleted is left")
	}
	if n := pgtest.One[int](t, f.pool, `select count(*)::int from blobs where clean_at > now()`); n != 11 {
		t.Errorf("%d are to be deleted later", n)
	}
}
