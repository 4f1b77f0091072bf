// Package cache keeps values that can be made again within a number of bytes. A
// workspace has a share of them at most, so that the values of one workspace do not
// evict those of all others. Values that were read before another server of the database
// answered are not returned (History).
package cache

import (
	"container/list"
	"sync"

	"github.com/google/uuid"
)

// Cache keeps the values that were used last. It is safe for concurrent use.
type Cache[K comparable, V any] struct {
	limit, share int // bytes of all values, and of those of one workspace

	history *History

	mutex      sync.Mutex
	entries    map[K]*list.Element
	used       list.List // of *entry, the last used first
	bytes      int
	workspaces map[uuid.UUID]int // bytes of each
}

type entry[K comparable, V any] struct {
	workspace uuid.UUID
	key       K
	value     V
	bytes     int
	read      Moment
}

// EntryBytes is what Cache adds to the size of each value. It bounds the number of
// small ones.
const EntryBytes = 4 << 10

// New returns an empty cache of at most limit bytes, and share bytes for each workspace.
func New[K comparable, V any](limit, share int) *Cache[K, V] {
	return &Cache[K, V]{limit: limit, share: share, entries: map[K]*list.Element{}, workspaces: map[uuid.UUID]int{}}
}

// Follow makes the cache keep to a history. It is called before anything else.
func (c *Cache[K, V]) Follow(h *History) { c.history = h }

// Now is the moment for values that are read from now on.
func (c *Cache[K, V]) Now() Moment { return c.history.Now() }

// Get returns the value of a key.
func (c *Cache[K, V]) Get(key K) (value V, ok bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	place, ok := c.entries[key]
	if !ok || place.Value.(*entry[K, V]).read != c.history.Now() {
		return value, false
	}
	c.used.MoveToFront(place)
	return place.Value.(*entry[K, V]).value, true
}

// Put keeps a value of a workspace that was read at a moment or later. Values that were used least recently are evicted:
// first those of the workspace, until its share suffices. A value that is larger than
// the share is not kept.
func (c *Cache[K, V]) Put(read Moment, workspace uuid.UUID, key K, value V, bytes int) {
	bytes += EntryBytes
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if place, ok := c.entries[key]; ok {
		c.evict(place)
	}
	if bytes > c.share {
		return
	}
	for place := c.used.Back(); place != nil && c.workspaces[workspace]+bytes > c.share; {
		before := place.Prev()
		if place.Value.(*entry[K, V]).workspace == workspace {
			c.evict(place)
		}
		place = before
	}
	for c.bytes+bytes > c.limit {
		c.evict(c.used.Back())
	}
	c.entries[key] = c.used.PushFront(&entry[K, V]{workspace, key, value, bytes, read})
	c.bytes += bytes
	c.workspaces[workspace] += bytes
}

// EvictUnused evicts the values that were used least recently, up to the first that is not old.
func (c *Cache[K, V]) EvictUnused(old func(V) bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for place := c.used.Back(); place != nil && old(place.Value.(*entry[K, V]).value); place = c.used.Back() {
		c.evict(place)
	}
}

// Clear evicts and returns all values.
func (c *Cache[K, V]) Clear() (all []V) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for place := c.used.Front(); place != nil; place = c.used.Front() {
		all = append(all, place.Value.(*entry[K, V]).value)
		c.evict(place)
	}
	return all
}

// Bytes returns the bytes of all values.
func (c *Cache[K, V]) Bytes() int {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.bytes
}

// evict requires the lock.
func (c *Cache[K, V]) evict(place *list.Element) {
	e := c.used.Remove(place).(*entry[K, V])
	delete(c.entries, e.key)
	c.bytes -= e.bytes
	if c.workspaces[e.workspace] -= e.bytes; c.workspaces[e.workspace] == 0 {
		delete(c.workspaces, e.workspace)
	}
}
