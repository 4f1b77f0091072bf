package message

import (
	"context"

	"github.com/google/uuid"
)

// versionKey is the key of a compiled version in the cache. Versions never change.
type versionKey struct {
	workspace, template uuid.UUID
	version             int
}

// CacheBytes bounds a cache of compiled contents, by Compiled.Bytes. One workspace has
// CacheShare of it at most, which suffices for the largest content.
const (
	CacheBytes = 64 << 20
	CacheShare = 16 << 20
)

// Compiled returns a compiled version.
func (t *Templates) Compiled(ctx context.Context, ws, id uuid.UUID, version int) (*Compiled, error) {
	key := versionKey{ws, id, version}
	if held, ok := t.cache.Get(key); ok {
		return held, nil
	}
	now := t.cache.Now()
	v, err := t.Version(ctx, ws, id, version)
	if err != nil {
		return nil, err
	}
	made, err := Compile(ws, v.Content)
	if err != nil {
		return nil, err
	}
	t.cache.Put(now, ws, key, made, made.Bytes())
	return made, nil
}
