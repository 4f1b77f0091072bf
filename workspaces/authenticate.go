package workspaces

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/flows/admission"
)

// together is how many tokens are looked up by one statement, at most.
const together = 200

var (
	unknownKey = &lemma.Error{Kind: lemma.Unauthenticated, Message: "the key does not exist in this installation"}
	revokedKey = &lemma.Error{Kind: lemma.Unauthenticated, Code: "key_revoked", Message: "the key has been revoked"}
)

// Authenticate finds the key of a token. Every text that is not the token of a key
// gets the same error. The token of a revoked key gets the code key_revoked.
//
// Requests that arrive together share a statement. It begins after each of them, so
// that none is authenticated by a key that was revoked before.
func (w *Workspaces) Authenticate(ctx context.Context, token string) (Key, error) {
	sum, ok := hashOf(token)
	if !ok {
		return Key{}, unknownKey
	}
	key, err := w.gather.Do(ctx, uuid.Nil, sum) // the key determines the workspace
	switch {
	case err != nil:
		return Key{}, fmt.Errorf("authenticate: %w", err)
	case key == nil:
		return Key{}, unknownKey
	case key.RevokedAt != nil:
		return Key{}, revokedKey
	}
	return *key, w.touch(ctx, *key)
}

// findKeys returns the key of each hash, or nil where there is none. It is the only lookup
// without a workspace.
func (w *Workspaces) findKeys(ctx context.Context, _ uuid.UUID, sums []hash) ([]*Key, error) {
	of := make(map[hash]*Key, 1)
	var different [][]byte
	for i, sum := range sums {
		if _, known := of[sum]; !known {
			of[sum], different = nil, append(different, sums[i][:])
		}
	}
	rows, _ := w.auth.Query(ctx, `select `+keyColumns+`, hash from api_keys where hash = any($1)`, different)
	var k Key
	var sum []byte
	_, err := pgx.ForEachRow(rows, append(k.fields(), &sum), func() error {
		found := k
		of[hash(sum)] = &found
		return nil
	})
	if err != nil {
		return nil, err
	}
	keys := make([]*Key, len(sums))
	for i, sum := range sums {
		keys[i] = of[sum]
	}
	return keys, nil
}

// touchWait is how long a request waits for the commit of its key's last_used_at. After that it goes
// on: where commits hang, such as for a standby, reads are still answered.
const touchWait = 250 * time.Millisecond

// touch writes last_used_at at most once a minute, so that a key in use is not a
// hot row. The database's clock decides; under 50 s no statement is sent. The keys of requests that
// arrive together are written by one statement: others need the connections.
func (w *Workspaces) touch(ctx context.Context, k Key) error {
	if k.LastUsedAt != nil && time.Since(*k.LastUsedAt).Abs() < 50*time.Second {
		return nil
	}
	waiting, cancel := context.WithTimeout(ctx, touchWait)
	defer cancel()
	_, err := w.used.Do(waiting, uuid.Nil, k)
	if waiting.Err() != nil && ctx.Err() == nil || admission.IsOverloaded(err) {
		return nil // a later request records it
	}
	return lemma.Wrap(err, "record use of key %s", k.ID)
}

// recordUse leaves out keys that are locked: another process records them, or they are being changed.
func (w *Workspaces) recordUse(ctx context.Context, _ uuid.UUID, keys []Key) ([]struct{}, error) {
	of, ids := make([]uuid.UUID, len(keys)), make([]uuid.UUID, len(keys))
	for i, k := range keys {
		of[i], ids[i] = k.WorkspaceID, k.ID
	}
	_, err := w.auth.Exec(ctx, `
		update api_keys set last_used_at = now()
		where ctid = any(array(
			select k.ctid from unnest($1::uuid[], $2::uuid[]) as u (workspace_id, id)
			join api_keys k on k.workspace_id = u.workspace_id and k.id = u.id
			where k.last_used_at is null or k.last_used_at < now() - interval '1 minute'
			for no key update of k skip locked))`, of, ids)
	return make([]struct{}, len(keys)), err
}
