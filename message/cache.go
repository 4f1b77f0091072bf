package message

import (
	"context"
	"sync"

	"github.com/google/uuid"
)

// A cache contains compiled versions, which never change. It is emptied when it is
// full: few versions are in use at a time, and compiling one again is cheap.
type cache struct {
	mu    sync.Mutex
	held  map[versionKey]*Compiled
	bytes int // of their sources
}

type versionKey struct {
	workspace, template uuid.UUID
	version             int
}

const cacheBytes = 8 << 20 // of sources; compiled versions need a few times as much

func (c *cache) get(key versionKey) *Compiled {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held[key]
}

func (c *cache) put(key versionKey, made *Compiled, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil || c.bytes+size > cacheBytes {
		c.held, c.bytes = map[versionKey]*Compiled{}, 0
	}
	if c.held[key] == nil {
		c.bytes += size
	}
	c.held[key] = made
}

// Compiled returns a compiled version.
func (t *Templates) Compiled(ctx context.Context, ws, id uuid.UUID, version int) (*Compiled, error) {
	key := versionKey{ws, id, version}
	if held := t.cache.get(key); held != nil {
		return held, nil
	}
	v, err := t.Version(ctx, ws, id, version)
	if err != nil {
		return nil, err
	}
	made, err := Compile(v.Content)
	if err != nil {
		return nil, err
	}
	size := entryBytes
	for _, s := range v.Content.sources() {
		size += len(s.text)
	}
	t.cache.put(key, made, size)
	return made, nil
}

// entryBytes is the memory of an entry besides its source. It bounds the number of
// small ones.
const entryBytes = 4 << 10
