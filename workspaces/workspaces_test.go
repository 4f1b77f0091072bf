package workspaces

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/page"
	"lemma/pgtest"
)

type bundle struct {
	*Workspaces
	pgtest.Shop
}

func setup(t *testing.T) bundle {
	t.Helper()
	t.Parallel()
	s := pgtest.NewShop(t)
	return bundle{New(s.Pool), s}
}

func (b bundle) key(t *testing.T, scopes ...string) (Key, string) {
	t.Helper()
	key, token, err := b.CreateKey(t.Context(), b.Workspace, NewKey{ID: lemma.NewID(), Name: "test", Scopes: scopes})
	if err != nil {
		t.Fatal(err)
	}
	return key, token
}

func kind(t *testing.T, err error, want lemma.Kind) {
	t.Helper()
	if got := lemma.KindOf(err); err == nil || got != want {
		t.Errorf("got error %v of kind %s, want kind %s", err, got, want)
	}
}

func TestWorkspaces(t *testing.T) {
	b := setup(t)
	made, err := b.Create(t.Context(), "shop")
	b.Must(err)
	byName, err := b.ByName(t.Context(), "shop")
	if diff := cmp.Diff(made, byName); err != nil || diff != "" {
		t.Errorf("ByName: %v %s", err, diff)
	}
	_, err = b.Create(t.Context(), "shop")
	kind(t, err, lemma.Conflict)
	_, err = b.Create(t.Context(), "")
	kind(t, err, lemma.Invalid)
	_, err = b.ByName(t.Context(), "unknown")
	kind(t, err, lemma.NotFound)
	_, err = b.Get(t.Context(), lemma.NewID())
	kind(t, err, lemma.NotFound)
}

func TestKeyAuthenticatesItsWorkspaceUntilRevoked(t *testing.T) {
	b := setup(t)
	key, token := b.key(t, "campaigns:read", "keys:read")
	found, err := b.Authenticate(t.Context(), token)
	b.Must(err)
	if found.ID != key.ID || found.WorkspaceID != b.Workspace || !found.Has("campaigns:read") || found.Has("campaigns:send") {
		t.Errorf("authenticated as %+v", found)
	}
	if !strings.HasPrefix(token, key.Prefix) || len(key.Prefix) >= len(token)/4 {
		t.Errorf("prefix %q is not the beginning of the token, or too long", key.Prefix)
	}
	first, err := b.RevokeKey(t.Context(), b.Workspace, key.ID)
	if err != nil || first.RevokedAt == nil {
		t.Fatalf("revoke: %+v %v", first, err)
	}
	second, _ := b.RevokeKey(t.Context(), b.Workspace, key.ID)
	if !first.RevokedAt.Equal(*second.RevokedAt) {
		t.Error("revoking twice changed the time")
	}
	_, err = b.Authenticate(t.Context(), token)
	kind(t, err, lemma.Unauthenticated)
}

func TestTokensThatAreNoKey(t *testing.T) {
	b := setup(t)
	_, token := b.key(t, Admin)
	last := "0"
	if strings.HasSuffix(token, "0") {
		last = "1"
	}
	for name, wrong := range map[string]string{
		"empty": "", "no prefix": token[3:], "cut short": token[:len(token)-1], "mistyped": token[:len(token)-1] + last,
		"not of a key": newToken(), "upper case": strings.ToUpper(token), "more": token + "0",
	} {
		_, err := b.Authenticate(t.Context(), wrong)
		if lemma.KindOf(err) != lemma.Unauthenticated {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// A reader of the database must not learn tokens.
func TestOnlyTheHashIsStored(t *testing.T) {
	b := setup(t)
	key, token := b.key(t, Admin)
	row := pgtest.One[string](b.T, b.Pool, `select k::text from api_keys k where id = $1`, key.ID)
	if strings.Contains(row, token[prefixLen:]) {
		t.Error("the token is in the table")
	}
}

func TestAdminIncludesEveryScope(t *testing.T) {
	admin := Key{Scopes: []string{Admin}}
	for _, scope := range Scopes {
		if !admin.Has(scope) {
			t.Errorf("admin does not include %s", scope)
		}
		if (Key{Scopes: []string{"templates:read"}}).Has(scope) != (scope == "templates:read") {
			t.Errorf("templates:read and %s", scope)
		}
	}
}

func TestUnknownScopesAreNamed(t *testing.T) {
	b := setup(t)
	_, _, err := b.CreateKey(t.Context(), b.Workspace, NewKey{ID: lemma.NewID(), Name: "x", Scopes: []string{"admin", "root",
		"campaigns:fly"}})
	var e *lemma.Error
	if !errors.As(err, &e) || len(e.Fields) != 2 || e.Fields[0].Pointer != "/scopes/1" || e.Fields[1].Pointer != "/scopes/2" {
		t.Errorf("got %v", err)
	}
	_, _, err = b.CreateKey(t.Context(), b.Workspace, NewKey{ID: lemma.NewID(), Name: "x"})
	kind(t, err, lemma.Invalid)
}

// A workspace has so many keys that are not revoked, also when two are created at a time. A
// repeated request does not count its own key.
func TestTooManyKeys(t *testing.T) {
	b := setup(t)
	b.Exec(`insert into api_keys (workspace_id, id, name, prefix, hash, scopes)
		select $1, gen_random_uuid(), 'x', 'lk_x', sha256(n::text::bytea), '{admin}' from generate_series(2, $2) n`, b.Workspace, MaxKeys)
	last := NewKey{ID: lemma.NewID(), Name: "last", Scopes: []string{Admin}}
	of := func(n NewKey) error {
		_, _, err := b.CreateKey(t.Context(), b.Workspace, n)
		return err
	}
	tx, err := b.Pool.Begin(t.Context()) // another creation
	b.Must(err)
	b.Must(countKeys(t.Context(), tx, b.Workspace, lemma.NewID()))
	_, err = tx.Exec(t.Context(), `insert into api_keys (workspace_id, id, name, prefix, hash, scopes)
		values ($1, gen_random_uuid(), 'x', 'lk_x', 'x', '{admin}')`, b.Workspace)
	b.Must(err)
	waited := make(chan error, 1)
	go func() { waited <- of(NewKey{ID: lemma.NewID(), Name: "x", Scopes: []string{Admin}}) }()
	pgtest.WaitForLocks(t, b.Pool, 1)
	b.Must(tx.Commit(t.Context()))
	kind(t, <-waited, lemma.Conflict)
	b.Exec(`update api_keys set revoked_at = now() where hash = 'x'`)
	b.Must(of(last))
	kind(t, of(NewKey{ID: lemma.NewID(), Name: "x", Scopes: []string{Admin}}), lemma.Conflict)
	last.Attempt = 2
	b.Must(of(last))
}

func TestCreatingOneIDTwice(t *testing.T) {
	b := setup(t)
	n := NewKey{ID: lemma.NewID(), Name: "x", Scopes: []string{Admin}}
	_, lost, err := b.CreateKey(t.Context(), b.Workspace, n)
	b.Must(err)
	late := n
	n.Attempt = 2
	_, token, err := b.CreateKey(t.Context(), b.Workspace, n)
	b.Must(err)
	_, _, err = b.CreateKey(t.Context(), b.Workspace, late)
	kind(t, err, lemma.Conflict)
	_, err = b.Authenticate(t.Context(), lost)
	kind(t, err, lemma.Unauthenticated)
	if _, err := b.Authenticate(t.Context(), token); err != nil {
		t.Errorf("the second token: %v", err)
	}
	n.Attempt = 3
	_, _, err = b.CreateKey(t.Context(), b.Workspace, n) // it is in use now
	kind(t, err, lemma.Conflict)
	if _, err := b.Authenticate(t.Context(), token); err != nil {
		t.Errorf("the token of a key in use was replaced: %v", err)
	}
	keys, _, err := b.ListKeys(t.Context(), b.Workspace, page.Query{Limit: 10})
	if err != nil || len(keys) != 1 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
}

func TestListKeysPages(t *testing.T) {
	b := setup(t)
	var want, got []uuid.UUID
	for range 5 {
		key, _ := b.key(t, Admin)
		want = append([]uuid.UUID{key.ID}, want...)
	}
	for _, k := range pgtest.Pages(t, 2, func(cursor string) ([]Key, string, error) {
		return b.ListKeys(t.Context(), b.Workspace, page.Query{Limit: 2, Cursor: cursor})
	}) {
		got = append(got, k.ID)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	_, _, err := b.ListKeys(t.Context(), b.Workspace, page.Query{Limit: 1, Cursor: "x"})
	kind(t, err, lemma.Invalid)
}

func TestAnotherWorkspacesKeyIsUnknown(t *testing.T) {
	b := setup(t)
	key, token := b.key(t, Admin)
	other := pgtest.Workspace(t, b.Pool)
	_, err := b.GetKey(t.Context(), other, key.ID)
	kind(t, err, lemma.NotFound)
	_, err = b.RevokeKey(t.Context(), other, key.ID)
	kind(t, err, lemma.NotFound)
	if _, err := b.Authenticate(t.Context(), token); err != nil {
		t.Errorf("another workspace revoked it: %v", err)
	}
	if found, _, _ := b.ListKeys(t.Context(), other, page.Query{Limit: 10}); len(found) != 0 {
		t.Errorf("another workspace sees %d keys", len(found))
	}
}

func TestLastUseIsWrittenOnceAMinute(t *testing.T) {
	b := setup(t)
	key, token := b.key(t, Admin)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { _, _ = b.Authenticate(t.Context(), token) })
	}
	wg.Wait()
	first, err := b.GetKey(t.Context(), b.Workspace, key.ID)
	if err != nil || first.LastUsedAt == nil {
		t.Fatalf("last use: %+v %v", first, err)
	}
	_, _ = b.Authenticate(t.Context(), token)
	if again, _ := b.GetKey(t.Context(), b.Workspace, key.ID); !again.LastUsedAt.Equal(*first.LastUsedAt) {
		t.Error("it was written again within the minute")
	}
	b.Exec(`update api_keys set last_used_at = now() - interval '61 seconds'`)
	_, _ = b.Authenticate(t.Context(), token)
	if later, _ := b.GetKey(t.Context(), b.Workspace, key.ID); time.Since(*later.LastUsedAt) > 30*time.Second {
		t.Error("it was not written after a minute")
	}
}
