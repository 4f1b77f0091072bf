package execution

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/flows/admission"
	"lemma/flows/enrollment"
	"lemma/flows/graph"
	"lemma/slots"
)

// Ready are the compiled versions of a workspace that a transaction uses. To compile a
// large definition takes long, and a transaction holds locks: so it compiles none. A
// version that is missing ends it, is compiled, and the transaction is repeated.
type Ready struct {
	Request
	versions *Versions
	ws       uuid.UUID
	held     map[VersionID]result // compiled for this transaction: the cache may have evicted them
	bytes    int                  // definitions in held
	spent    time.Duration        // on compiling, and on waiting for it
	late     bool                 // Time is over: nothing more is compiled
	leave    func()               // releases its slot of Versions.holding; nil: it has none
}

// Request bounds how long versions are compiled for a request. The zero Request is work
// that waits as long as its context does.
type Request struct {
	Time  time.Duration                                      // at most
	Aside func(ctx context.Context, work func() error) error // compiles without what others wait for
}

type result struct {
	graph *graph.Graph
	err   error // the version cannot be read
}

// maxHeld bounds the definitions that are compiled for one transaction, in bytes: as many
// as may listen to one event. What needs more is done by another transaction, and only its
// first event compiles the others in the transaction.
const maxHeld = MaxListening

// freelyHeld is what a transaction holds without a slot. Those of ordinary flows need none.
const freelyHeld = 64 << 10

// errLate is the error of a request whose versions take too long to compile.
var errLate = &lemma.Error{Kind: lemma.Unavailable, Code: admission.CodeOverloaded,
	Message: "the flow takes too long to compile; try again in a moment"}

// notReady ends a transaction that needs versions which are not compiled.
type notReady struct{ versions []VersionID }

func (e *notReady) Error() string {
	return fmt.Sprintf("%d versions are not compiled", len(e.versions))
}

// Transact is enrollment.Transact for work that uses compiled versions.
func (g *Versions) Transact(ctx context.Context, pool *pgxpool.Pool, ws uuid.UUID, by Request, work func(pgx.Tx, *Ready) error) error {
	return g.Compiled(ctx, pool, ws, by, func(r *Ready) error {
		return enrollment.Transact(ctx, pool, func(tx pgx.Tx) error { return work(tx, r) })
	})
}

// Compiled runs a transaction, and again when versions that it needs have been compiled.
// It ends: every repetition has a version more, or compiles no more.
func (g *Versions) Compiled(ctx context.Context, pool *pgxpool.Pool, ws uuid.UUID, by Request, transaction func(*Ready) error) error {
	r := &Ready{Request: by, versions: g, ws: ws, held: map[VersionID]result{}}
	defer r.release()
	for {
		err := transaction(r)
		missing, ok := errors.AsType[*notReady](err)
		if !ok {
			return err
		}
		work := func() error { return r.compile(ctx, pool, missing.versions) }
		if by.Aside != nil {
			err = by.Aside(ctx, work)
		} else {
			err = work()
		}
		if err != nil {
			return err
		}
	}
}

// compile compiles versions until the time is over or they are as large as r may hold.
func (r *Ready) compile(ctx context.Context, pool *pgxpool.Pool, all []VersionID) error {
	begun := time.Now()
	defer func() { r.spent += time.Since(begun) }()
	within, cancel := ctx, func() {}
	if r.Time > 0 {
		within, cancel = context.WithTimeout(ctx, r.Time-r.spent)
	}
	defer cancel()
	for _, v := range all {
		if r.full() {
			return nil
		}
		err := r.compileOne(within, pool, v)
		if within.Err() != nil && ctx.Err() == nil {
			r.late = true
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *Ready) compileOne(ctx context.Context, pool *pgxpool.Pool, v VersionID) (err error) {
	if _, held := r.held[v]; held {
		return nil
	}
	if r.leave == nil && r.bytes >= freelyHeld {
		if r.leave, err = r.versions.holding.Await(ctx, slots.Resource{Workspace: r.ws}); err != nil {
			return err
		}
	}
	c, err := r.versions.compile(ctx, pool, r.ws, v)
	if err != nil && (ctx.Err() != nil || lemma.KindOf(err) == lemma.Internal) {
		return err
	}
	r.held[v] = result{c.Graph, err}
	r.bytes += c.bytes
	return nil
}

func (r *Ready) release() {
	if r.leave != nil {
		r.leave()
	}
}

func (r *Ready) full() bool { return r.bytes >= maxHeld }

// Spent is the time that compiling took.
func (r *Ready) Spent() time.Duration { return r.spent }

// Missing reports whether a version is not compiled.
func (r *Ready) Missing(v VersionID) bool {
	_, held := r.held[v]
	return !held && r.versions.cached(v) == nil
}

// Prefix returns how many pieces of work are done, in their order, if the first ones need no
// version that is missing. The first alone is done whatever it needs, until the time is over.
func (r *Ready) Prefix(first int, missing []VersionID) (int, error) {
	switch {
	case len(missing) == 0 || r.late || r.full() && first > 0:
		return first, nil
	case r.full():
		return 1, nil
	}
	return 0, &notReady{missing}
}

// Need checks that all these versions are compiled, so that the transaction is repeated
// once for all that are not.
func (r *Ready) Need(all map[VersionID]bool) error {
	e := &notReady{}
	for v := range all {
		if r.Missing(v) {
			e.versions = append(e.versions, v)
		}
	}
	switch {
	case len(e.versions) == 0:
		return nil
	case r.late:
		return errLate
	case r.full():
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
	switch {
	case r.late:
		return nil, errLate
	case r.full():
		return r.versions.Get(ctx, tx, r.ws, flow, version)
	}
	return nil, &notReady{[]VersionID{v}}
}
