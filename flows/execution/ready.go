package execution

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/graph"
)

// Ready are the compiled versions of a workspace that a transaction uses. To compile a
// large definition takes long, and a transaction holds locks: so it compiles none. A
// version that is missing ends it, is compiled, and the transaction is repeated.
type Ready struct {
	versions *Versions
	ws       uuid.UUID
	held     map[VersionID]result // compiled for this transaction: the cache may have evicted them
	bytes    int                  // definitions in held
}

type result struct {
	graph *graph.Graph
	err   error // the version cannot be read
}

// maxHeld bounds the definitions that are compiled for one transaction, in bytes. One that
// needs more compiles the others itself.
const maxHeld = 1 << 20

// notReady ends a transaction that needs versions which are not compiled.
type notReady struct{ versions []VersionID }

func (e *notReady) Error() string {
	return fmt.Sprintf("%d versions are not compiled", len(e.versions))
}

// Transact is enrollment.Transact for work that uses compiled versions.
func (g *Versions) Transact(ctx context.Context, pool *pgxpool.Pool, ws uuid.UUID, work func(pgx.Tx, *Ready) error) error {
	return g.Compiled(ctx, pool, ws, func(r *Ready) error {
		return enrollment.Transact(ctx, pool, func(tx pgx.Tx) error { return work(tx, r) })
	})
}

// Compiled runs a transaction, and again when versions that it needs have been compiled.
// It ends: every repetition has a version more.
func (g *Versions) Compiled(ctx context.Context, pool *pgxpool.Pool, ws uuid.UUID, transaction func(*Ready) error) error {
	r := &Ready{versions: g, ws: ws, held: map[VersionID]result{}}
	for {
		err := transaction(r)
		missing, ok := errors.AsType[*notReady](err)
		if !ok {
			return err
		}
		if err := r.compile(ctx, pool, missing.versions); err != nil {
			return err
		}
	}
}

func (r *Ready) compile(ctx context.Context, pool *pgxpool.Pool, all []VersionID) error {
	for _, v := range all {
		if r.full() {
			return nil
		}
		c, err := r.versions.compile(ctx, pool, r.ws, v)
		if err != nil && lemma.KindOf(err) == lemma.Internal {
			return err
		}
		r.held[v] = result{c.Graph, err}
		r.bytes += c.bytes
	}
	return nil
}

func (r *Ready) full() bool { return r.bytes >= maxHeld }

// Need checks that all these versions are compiled, so that the transaction is repeated
// once for all that are not.
func (r *Ready) Need(all map[VersionID]bool) error {
	e := &notReady{}
	for v := range all {
		if _, held := r.held[v]; !held && r.versions.cached(v) == nil {
			e.versions = append(e.versions, v)
		}
	}
	if len(e.versions) == 0 || r.full() {
		return nil
	}
	return e
}

// Get is Versions.Get in the transaction.
func (r *Ready) Get(ctx context.Context, tx pgx.Tx, flow uuid.UUID, version int) (*graph.Graph, error) {
	v := VersionID{flow, version}
	if one, held := r.held[v]; held {
		return one.graph, one.err
	}
	if g := r.versions.cached(v); g != nil {
		return g, nil
	}
	if r.full() {
		return r.versions.Get(ctx, tx, r.ws, flow, version)
	}
	return nil, &notReady{[]VersionID{v}}
}
