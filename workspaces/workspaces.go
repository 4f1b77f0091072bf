// Package workspaces stores tenants and their API keys. A key that has not been
// revoked authenticates a request for exactly one workspace, with exactly the
// scopes that the key has; no other text authenticates one. A key is shown once,
// and only its hash is stored.
//
// Requests that arrive together share the statement that reads their keys. Nothing is
// remembered: a request that begins after a revocation is refused.
//
// Package api decides which scope an endpoint needs.
package workspaces

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/flows/admission"
	"lemma/pgerr"
)

// Workspace is a tenant. Every row of a tenant's table belongs to one.
type Workspace struct {
	ID          uuid.UUID
	Name        string        // unique
	Page        Page          // of its recipients
	TrackingURL string        // where links of its messages lead; empty: the public URL of the server
	LockFor     time.Duration // of keys of direct notifications: how long a request locks one
	SealFor     time.Duration // and how long one stays sealed after its notification has ended
	Strategy    string        // of direct notifications: at_most_once or at_least_once
	Version     int           // ETag
	CreatedAt   time.Time
}

const columns = `id, name, page, tracking_url, lock_for, seal_for, strategy, version, created_at`

// Workspaces stores workspaces and their keys.
type Workspaces struct {
	pool   *pgxpool.Pool
	auth   *pgxpool.Pool // for Authenticate
	gather *admission.Gatherer[hash, *Key]
	used   *admission.Gatherer[Key, struct{}] // keys whose use is recorded
}

// New returns Workspaces on a pool.
func New(pool *pgxpool.Pool) *Workspaces {
	w := &Workspaces{pool: pool, auth: pool}
	w.gather = admission.NewGatherer(together, w.findKeys)
	w.used = admission.NewGatherer(together, w.recordUse)
	return w
}

// AuthenticateOn gives Authenticate a pool of its own, so that it waits for no other request.
func (w *Workspaces) AuthenticateOn(pool *pgxpool.Pool) { w.auth = pool }

// Create makes a workspace. A name that another workspace has is a Conflict.
func (w *Workspaces) Create(ctx context.Context, name string) (Workspace, error) {
	if fault := lemma.CheckName(name); fault != nil {
		return Workspace{}, fault
	}
	made, err := w.one(ctx, `insert into workspaces (id, name) values ($1, $2) returning `+columns, lemma.NewID(), name)
	return made, saving.Explain(err, "create workspace")
}

var saving = pgerr.Rules{pgerr.Unique: pgerr.NameTaken("workspace")}

// Get reads a workspace.
func (w *Workspaces) Get(ctx context.Context, id uuid.UUID) (Workspace, error) {
	return w.find(ctx, `select `+columns+` from workspaces where id = $1`, id)
}

// ByName finds a workspace by its name.
func (w *Workspaces) ByName(ctx context.Context, name string) (Workspace, error) {
	return w.find(ctx, `select `+columns+` from workspaces where name = $1`, name)
}

func (w *Workspaces) find(ctx context.Context, sql string, arg any) (Workspace, error) {
	found, err := w.one(ctx, sql, arg)
	if errors.Is(err, pgx.ErrNoRows) {
		return Workspace{}, &lemma.Error{Kind: lemma.NotFound, Message: "no such workspace"}
	}
	return found, lemma.Wrap(err, "find workspace")
}

func (w *Workspaces) one(ctx context.Context, sql string, args ...any) (Workspace, error) {
	rows, _ := w.pool.Query(ctx, sql, args...)
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Workspace])
}
