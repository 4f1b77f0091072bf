// Package links signs the tokens of links in messages, and verifies them. It guarantees:
//
//   - A token that Verify accepts was signed in its workspace, for the same purpose,
//     and is unchanged.
//   - The tokens of one content are signed with one key, whatever the time and the
//     process: two attempts of a message have the same links.
//   - Rotation breaks no link: old keys go on verifying.
//   - A token that was not signed costs an HMAC and increments a counter. If it names a
//     key that is not in memory, it shares one of at most 50 statements a second.
//
// A token is base64url (RFC 4648, 5) of its purpose (1 byte), the number of its key (2),
// its workspace (16), a payload, and 16 bytes of HMAC-SHA-256 over all of these. What a
// payload contains, and under which address links are served, is up to its package.
package links

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/cache"
	"lemma/fence"
	"lemma/pgerr"
	"lemma/secrets"
)

// Links stores the keys of each workspace. It is safe for concurrent use.
type Links struct {
	pool *pgxpool.Pool
	box  *secrets.Box
	keys *cache.Cache[keyRef, *Signer]

	metrics *Metrics
	lookups lookups
	hosts   hosts
}

type keyRef struct {
	workspace uuid.UUID
	number    uint16
}

// Keys in memory: some 4,000, of them 64 of one workspace.
const (
	cacheBytes = 16 << 20
	cacheShare = 64 * (cache.EntryBytes + keyBytes)
	keyBytes   = 1 << 10
)

// New returns Links; with nil its metrics are not exported.
func New(pool *pgxpool.Pool, box *secrets.Box, m *Metrics) *Links {
	if m == nil {
		m = NewMetrics(nil)
	}
	return &Links{pool: pool, box: box, keys: cache.New[keyRef, *Signer](cacheBytes, cacheShare), metrics: m}
}

// Follow makes what is kept in memory keep to a history.
func (l *Links) Follow(h *cache.History) { l.keys.Follow(h) }

// Key is a key without its secret.
type Key struct {
	ID        uuid.UUID
	Number    int // 1, 2, ... in each workspace
	CreatedAt time.Time
}

const secretBytes = 32

// RotationDelay is the time from a rotation until the new key signs. A statement ends
// earlier (statement_timeout), so all processes find the same keys.
const RotationDelay = 2 * time.Minute

// Signer returns what signs the links of a content that was created at a time: the newest
// key that is RotationDelay older, otherwise the first key, which it makes if there is none.
func (l *Links) Signer(ctx context.Context, ws uuid.UUID, created time.Time) (*Signer, error) {
	s, err := l.signer(ctx, ws, created)
	if errors.Is(err, pgx.ErrNoRows) {
		if err = l.insert(ctx, ws, lemma.NewID(), 1); err == nil {
			s, err = l.signer(ctx, ws, created)
		}
	}
	return s, lemma.Wrap(err, "find link key")
}

func (l *Links) signer(ctx context.Context, ws uuid.UUID, created time.Time) (*Signer, error) {
	ref, now := keyRef{workspace: ws}, l.keys.Now()
	var id uuid.UUID
	var sealed []byte
	err := l.pool.QueryRow(ctx, `
		select number, id, secret from link_keys where workspace_id = $1 and number = coalesce(
			(select max(number) from link_keys where workspace_id = $1 and created_at <= $2), 1)`, ws, created.Add(-RotationDelay)).
		Scan(&ref.number, &id, &sealed)
	if err != nil {
		return nil, err
	}
	return l.unseal(now, ref, id, sealed)
}

// byNumber returns a key of a token; pgx.ErrNoRows if there is none.
func (l *Links) byNumber(ctx context.Context, ref keyRef) (*Signer, error) {
	if s, ok := l.keys.Get(ref); ok {
		return s, nil
	}
	return l.lookUp(ctx, ref)
}

// unseal opens a key and keeps it in memory.
func (l *Links) unseal(read cache.Moment, ref keyRef, id uuid.UUID, sealed []byte) (*Signer, error) {
	secret, err := l.box.Open(sealed, place(ref.workspace, id)...)
	if err != nil {
		return nil, fmt.Errorf("link key %d: %w", ref.number, err)
	}
	s := newSigner(ref.workspace, ref.number, secret)
	l.keys.Put(read, ref.workspace, ref, s, keyBytes)
	return s, nil
}

// insert makes a key, unless there is one with its number or its id.
func (l *Links) insert(ctx context.Context, ws, id uuid.UUID, number int) error {
	secret := make([]byte, secretBytes)
	rand.Read(secret) // never fails: crypto/rand ends the program instead
	_, err := fence.Exec(ctx, l.pool, `
		insert into link_keys (workspace_id, number, id, secret)
		select $1, $2, $3, $4 where not exists (select from link_keys where workspace_id = $1 and id = $3)
		on conflict do nothing`, ws, number, id, l.box.Seal(secret, place(ws, id)...))
	return err
}

var rotating = pgerr.Rules{"link_keys_number": {Kind: lemma.Conflict, Code: "too_many", Message: "the workspace has 65535 link keys"}}

// Rotate makes a new key for the contents that are created from RotationDelay later on,
// and returns the newest. Repeated with the same id, and concurrently, it makes one key.
func (l *Links) Rotate(ctx context.Context, ws, id uuid.UUID) (Key, error) {
	newest, err := l.newest(ctx, ws)
	if err != nil {
		return Key{}, err
	}
	if err := l.insert(ctx, ws, id, newest.Number+1); err != nil {
		return Key{}, rotating.Explain(err, "rotate link key")
	}
	return l.newest(ctx, ws)
}

// newest returns the newest key of a workspace, and the zero Key if it has none.
func (l *Links) newest(ctx context.Context, ws uuid.UUID) (k Key, err error) {
	err = l.pool.QueryRow(ctx, `
		select id, number, created_at from link_keys where workspace_id = $1 order by number desc limit 1`, ws).
		Scan(&k.ID, &k.Number, &k.CreatedAt)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return k, fmt.Errorf("read newest link key: %w", err)
	}
	return k, nil
}

// place identifies the only row in which a sealed secret can be opened.
func place(ws, id uuid.UUID) []string { return []string{"link key", ws.String(), id.String()} }

// Sealed returns the encrypted keys, for checks and for the rotation of the secret key.
func (l *Links) Sealed() secrets.Store {
	return secrets.Store{Table: "link_keys", Prefix: lemma.PrefixLinkKey, Place: place, Pool: l.pool,
		Select: `
			select workspace_id, id, secret from link_keys
			where (workspace_id, id) > ($1, $2) order by workspace_id, id limit $3`,
		Update: `
			update link_keys t set secret = r.fresh
			from unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::bytea[]) r (workspace_id, id, old, fresh)
			where t.workspace_id = r.workspace_id and t.id = r.id and t.secret = r.old`}
}

// Delete deletes keys whose sealed text is unchanged, as an inspection of Sealed has found
// them, and returns how many. Their links do not verify any more. A workspace makes a new
// first key when it needs one, which signs for the contents that the deleted keys signed for.
func (l *Links) Delete(ctx context.Context, rows []secrets.Sealed) (deleted int, err error) {
	workspaces, ids, texts := make([]uuid.UUID, len(rows)), make([]uuid.UUID, len(rows)), make([][]byte, len(rows))
	for i, r := range rows {
		workspaces[i], ids[i], texts[i] = r.WorkspaceID, r.ID, r.Text
	}
	tag, err := l.pool.Exec(ctx, `
		delete from link_keys k using unnest($1::uuid[], $2::uuid[], $3::bytea[]) r (workspace_id, id, secret)
		where k.workspace_id = r.workspace_id and k.id = r.id and k.secret = r.secret`, workspaces, ids, texts)
	return int(tag.RowsAffected()), lemma.Wrap(err, "delete %d link keys", len(rows))
}
