package links

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	lookupPause = 20 * time.Millisecond // after a lookup in which a key was missing
	lookupFor   = 2 * time.Second       // bounds the statement of a lookup
	mostLookups = 1000                  // keys of one lookup
)

var errLookups = errors.New("too many keys of links are being looked up")

// lookups finds keys that are not in memory, at most one lookup at a time. Tokens that
// arrive meanwhile are the next one. So forged tokens that name keys which do not exist
// cost at most 50 statements a second, however many they are.
type lookups struct {
	mu     sync.Mutex
	next   *lookup // nil: none is waiting
	active bool
}

type lookup struct {
	keys    map[keyRef]result
	missing bool  // one of the keys does not exist
	err     error // of the statement
	done    chan struct{}
}

// result is a key, or why it cannot be opened; zero: it does not exist.
type result struct {
	key *Signer
	err error
}

// lookUp returns a key, or pgx.ErrNoRows.
func (l *Links) lookUp(ctx context.Context, ref keyRef) (*Signer, error) {
	one, err := l.join(ref)
	if err != nil {
		return nil, err
	}
	select {
	case <-one.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a key of links: %w", ctx.Err())
	}
	got := one.keys[ref]
	switch {
	case one.err != nil:
		return nil, one.err
	case got == result{}:
		return nil, pgx.ErrNoRows
	}
	return got.key, got.err
}

// join adds a key to the next lookup, which begins at once if none is active.
func (l *Links) join(ref keyRef) (*lookup, error) {
	w := &l.lookups
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next == nil {
		w.next = &lookup{keys: map[keyRef]result{}, done: make(chan struct{})}
	}
	if _, joined := w.next.keys[ref]; !joined && len(w.next.keys) >= mostLookups {
		return nil, errLookups
	}
	w.next.keys[ref] = result{}
	if !w.active {
		w.active = true
		go l.lookUpAll()
	}
	return w.next, nil
}

// lookUpAll carries out lookups until none is waiting.
func (l *Links) lookUpAll() {
	w := &l.lookups
	for {
		w.mu.Lock()
		one := w.next
		w.next, w.active = nil, one != nil
		w.mu.Unlock()
		if one == nil {
			return
		}
		one.err = l.read(one)
		close(one.done)
		if one.missing {
			time.Sleep(lookupPause)
		}
	}
}

// read reads and opens the keys of a lookup.
func (l *Links) read(one *lookup) error {
	ctx, cancel := context.WithTimeout(context.Background(), lookupFor)
	defer cancel()
	var workspaces []uuid.UUID
	var numbers []int32
	for ref := range one.keys {
		workspaces, numbers = append(workspaces, ref.workspace), append(numbers, int32(ref.number))
	}
	now := l.keys.Now()
	rows, _ := l.pool.Query(ctx, `
		select k.workspace_id, k.number, k.id, k.secret from unnest($1::uuid[], $2::int[]) as r (workspace_id, number)
		cross join lateral (
			select workspace_id, number, id, secret from link_keys where workspace_id = r.workspace_id and number = r.number offset 0
		) k`, workspaces, numbers)
	var ref keyRef
	var id uuid.UUID
	var sealed []byte
	tag, err := pgx.ForEachRow(rows, []any{&ref.workspace, &ref.number, &id, &sealed}, func() error {
		key, err := l.unseal(now, ref, id, sealed)
		one.keys[ref] = result{key, err}
		return nil
	})
	one.missing = int(tag.RowsAffected()) < len(one.keys)
	return err
}
