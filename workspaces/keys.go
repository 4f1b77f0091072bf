package workspaces

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/fence"
	"lemma/page"
)

// Admin is the scope that includes every other.
const Admin = "admin"

// Scopes are all scopes of keys, in the order in which they are shown.
var Scopes = []string{
	"data_sources:read", "data_sources:write",
	"audiences:read", "audiences:write", "audiences:query",
	"templates:read", "templates:write",
	"providers:read", "providers:write", "providers:test",
	"suppressions:read", "suppressions:write",
	"exports:read", "exports:write", "audit:read",
	"campaigns:read", "campaigns:write", "campaigns:send",
	"flows:read", "flows:write", "flows:publish",
	"enrollments:read", "enrollments:write",
	"events:read", "events:write",
	"profiles:erase",
	"webhooks:read", "webhooks:write",
	"notifications:read", "notifications:send", "notifications:resolve",
	"keys:read", "keys:write",
	"workspace:write",
	Admin,
}

// Key authenticates requests for a workspace from its creation until it is
// revoked. A revoked key stays listed.
type Key struct {
	ID          uuid.UUID
	WorkspaceID uuid.UUID
	Name        string
	Prefix      string // the first characters of the token, to recognise it
	Scopes      []string
	CreatedAt   time.Time
	LastUsedAt  *time.Time // true to the minute
	RevokedAt   *time.Time
}

// Has reports whether the key has a scope.
func (k Key) Has(scope string) bool {
	return slices.Contains(k.Scopes, scope) || slices.Contains(k.Scopes, Admin)
}

// NewKey has the fields of a new key.
type NewKey struct {
	ID      uuid.UUID // made by the caller, so that a repeated request makes one key
	Attempt int       // of the request, from 1
	Name    string
	Scopes  []string // out of Scopes, at least one
}

const keyColumns = `id, workspace_id, name, prefix, scopes, created_at, last_used_at, revoked_at`

// fields are the fields of keyColumns.
func (k *Key) fields() []any {
	return []any{&k.ID, &k.WorkspaceID, &k.Name, &k.Prefix, &k.Scopes, &k.CreatedAt, &k.LastUsedAt, &k.RevokedAt}
}

// MaxKeys is how many keys that are not revoked a workspace has at most: the times of their last
// uses are rows that are written.
const MaxKeys = 1_000

// CreateKey makes a key and returns its token, which is not stored. Creating one
// id twice makes one key. While the key is unused, the response of the first
// attempt may have been lost, so a later attempt replaces the token. An earlier
// attempt that arrives late does not, since the client may have the later token. The error is
// too_many_keys if the workspace has MaxKeys others.
func (w *Workspaces) CreateKey(ctx context.Context, workspaceID uuid.UUID, n NewKey) (Key, string, error) {
	if err := checkScopes(n.Scopes); err != nil {
		return Key{}, "", err
	}
	token := newToken()
	sum, _ := hashOf(token)
	var made Key
	err := fence.Transact(ctx, w.pool, func(tx pgx.Tx) (err error) {
		if err := countKeys(ctx, tx, workspaceID, n.ID); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, `
			insert into api_keys (workspace_id, id, name, prefix, hash, scopes, attempt) values ($1, $2, $3, $4, $5, $6, $7)
			on conflict (workspace_id, id) do update set prefix = excluded.prefix, hash = excluded.hash, attempt = excluded.attempt
			where api_keys.attempt < excluded.attempt and api_keys.last_used_at is null and api_keys.revoked_at is null
			returning `+keyColumns, workspaceID, n.ID, n.Name, token[:prefixLen], sum[:], n.Scopes, max(1, n.Attempt))
		made, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Key])
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return Key{}, "", &lemma.Error{Kind: lemma.Conflict, Code: "already_used",
			Message: "this key exists and has been used; its token cannot be shown again"}
	}
	return made, token, lemma.Wrap(err, "create key")
}

// countKeys returns an error if the workspace has MaxKeys besides one. Creations count each other.
func countKeys(ctx context.Context, tx pgx.Tx, ws, besides uuid.UUID) error {
	if _, err := tx.Exec(ctx, `select from workspaces where id = $1 for no key update`, ws); err != nil {
		return err
	}
	var others int
	err := tx.QueryRow(ctx, `
		select count(*) from api_keys where workspace_id = $1 and revoked_at is null and id <> $2`, ws, besides).Scan(&others)
	if err == nil && others >= MaxKeys {
		err = &lemma.Error{Kind: lemma.Conflict, Code: "too_many_keys",
			Message: fmt.Sprintf("the workspace has %d API keys; revoke one", MaxKeys)}
	}
	return err
}

// checkScopes returns an error with each unknown scope.
func checkScopes(scopes []string) error {
	if len(scopes) == 0 {
		return lemma.Fault("/scopes", "required", "must contain at least one scope")
	}
	e := &lemma.Error{Kind: lemma.Invalid, Message: "the request is not valid"}
	for i, s := range scopes {
		if !slices.Contains(Scopes, s) {
			e.Fields = append(e.Fields,
				lemma.Field{Pointer: fmt.Sprintf("/scopes/%d", i), Code: "unknown_scope", Detail: "must be a known scope"})
		}
	}
	if len(e.Fields) > 0 {
		return e
	}
	return nil
}

var keyList = page.Named("api_keys", "", func(k Key) uuid.UUID { return k.ID }, func(k Key) string { return k.Name }).
	WithStatus("case when revoked_at is null then 'active' else 'revoked' end")

// ListKeys returns one page of keys, including revoked ones.
func (w *Workspaces) ListKeys(ctx context.Context, workspaceID uuid.UUID, q page.Query) ([]Key, string, error) {
	return keyList.ReadBy(q, func(end page.Clauses) ([]Key, error) {
		return w.keys(ctx, `select `+keyColumns+` from api_keys where workspace_id = $1 and `+end.Where+" "+end.Order, end.Args...)
	}, workspaceID)
}

// GetKey reads one key.
func (w *Workspaces) GetKey(ctx context.Context, workspaceID, id uuid.UUID) (Key, error) {
	found, err := w.keys(ctx, `select `+keyColumns+` from api_keys where workspace_id = $1 and id = $2`, workspaceID, id)
	if err != nil {
		return Key{}, fmt.Errorf("get key: %w", err)
	}
	if len(found) == 0 {
		return Key{}, lemma.Missing("key")
	}
	return found[0], nil
}

// RevokeKey revokes a key. Requests that begin after it returns are refused.
// Revoking twice keeps the first time.
func (w *Workspaces) RevokeKey(ctx context.Context, workspaceID, id uuid.UUID) (Key, error) {
	_, err := fence.Exec(ctx, w.pool, `update api_keys set revoked_at = now() where workspace_id = $1 and id = $2 and revoked_at is null`,
		workspaceID, id)
	if err != nil {
		return Key{}, fmt.Errorf("revoke key: %w", err)
	}
	return w.GetKey(ctx, workspaceID, id)
}

func (w *Workspaces) keys(ctx context.Context, sql string, args ...any) ([]Key, error) {
	rows, _ := w.pool.Query(ctx, sql, args...)
	return pgx.CollectRows(rows, pgx.RowToStructByName[Key])
}
