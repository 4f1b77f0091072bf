package message

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
	"lemma/cache"
	"lemma/fence"
	"lemma/page"
	"lemma/pgerr"
)

// Template is a named content with versions. A change adds a version. Each
// notification keeps its version.
type Template struct {
	ID          uuid.UUID
	WorkspaceID uuid.UUID
	Name        string // unique in its workspace
	Channel     lemma.Channel
	Version     int // the newest
	Revision    int // changes with each version and each name
	CreatedAt   time.Time
	UpdatedAt   time.Time // time of the last rename or version
}

// NewTemplate has the fields of a new template.
type NewTemplate struct {
	ID      uuid.UUID // made by the caller, so that a repeated request creates one template
	Name    string
	Content Content // becomes version 1
}

// Templates stores templates and their versions.
type Templates struct {
	pool  *pgxpool.Pool
	cache *cache.Cache[versionKey, *Compiled]
}

// New returns Templates on a pool.
func New(pool *pgxpool.Pool) *Templates {
	return &Templates{pool: pool, cache: cache.New[versionKey, *Compiled](CacheBytes, CacheShare)}
}

// Follow makes what is kept in memory keep to a history.
func (t *Templates) Follow(h *cache.History) { t.cache.Follow(h) }

const templateColumns = `workspace_id, id, name, channel, version, revision, created_at, updated_at`

// Create checks a content and saves it as version 1 of a template. Creating one id
// twice makes one template; the second call returns it.
func (t *Templates) Create(ctx context.Context, ws uuid.UUID, n NewTemplate) (Template, error) {
	n.Content.Channel = n.Content.channel()
	content, variables, err := checked(ws, n.Name, n.Content)
	if err != nil {
		return Template{}, err
	}
	err = fence.Transact(ctx, t.pool, func(tx pgx.Tx) error {
		made, err := tx.Exec(ctx, `
			insert into templates (workspace_id, id, name, channel) values ($1, $2, $3, $4)
			on conflict (workspace_id, id) do nothing`, ws, n.ID, n.Name, content.Channel)
		if err := fence.Changed(made, err); err != nil {
			return err
		}
		return insertVersion(ctx, tx, ws, n.ID, 1, content, variables, n.ID)
	})
	if err != nil {
		return Template{}, saving.Explain(err, "create template")
	}
	return t.Get(ctx, ws, n.ID)
}

// checked returns the content as it is stored, or all faults of name and content.
func checked(ws uuid.UUID, name string, c Content) (Content, []string, error) {
	variables, err := Check(ws, c)
	if fault := lemma.CheckName(name); fault != nil {
		if faults, ok := errors.AsType[*lemma.Error](err); ok {
			fault.Fields = append(fault.Fields, faults.Fields...)
		}
		err = fault
	}
	c, _ = complete(c)
	return c, variables, err
}

// Get reads one template.
func (t *Templates) Get(ctx context.Context, ws, id uuid.UUID) (Template, error) {
	rows, _ := t.pool.Query(ctx, `select `+templateColumns+` from templates where workspace_id = $1 and id = $2`, ws, id)
	found, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Template])
	return found, pgerr.Row(err, "template", "get template")
}

var list = page.Named("templates", "", func(t Template) uuid.UUID { return t.ID }, func(t Template) string { return t.Name })

// List reads a page of templates.
func (t *Templates) List(ctx context.Context, ws uuid.UUID, q page.Query) ([]Template, string, error) {
	return list.Read(ctx, t.pool, q, ws, `select `+templateColumns+` from templates where workspace_id = $1`,
		pgx.RowToStructByName[Template])
}

// Update renames a template. ifMatch, if not nil, must be its revision. A name is not
// part of the message, so no version is added.
func (t *Templates) Update(ctx context.Context, ws, id uuid.UUID, ifMatch *int, name string) (Template, error) {
	if fault := lemma.CheckName(name); fault != nil {
		return Template{}, fault
	}
	found, err := fence.One(ctx, t.pool, pgx.RowToStructByName[Template], `
		update templates set name = $3, revision = revision + 1, updated_at = now()
		where workspace_id = $1 and id = $2 and ($4::int is null or revision = $4)
		returning `+templateColumns, ws, id, name, ifMatch)
	if errors.Is(err, pgx.ErrNoRows) {
		return Template{}, t.stale(ctx, ws, id)
	}
	return found, saving.Explain(err, "rename template")
}

// Delete removes a template that no campaign uses.
func (t *Templates) Delete(ctx context.Context, ws, id uuid.UUID) error {
	gone, err := fence.Exec(ctx, t.pool, `delete from templates where workspace_id = $1 and id = $2`, ws, id)
	if err == nil && gone.RowsAffected() == 0 {
		return lemma.Missing("template")
	}
	return deleting.Explain(err, "delete template")
}

// stale returns the error of a conditional update that found no row.
func (t *Templates) stale(ctx context.Context, ws, id uuid.UUID) error {
	if _, err := t.Get(ctx, ws, id); err != nil {
		return err
	}
	return lemma.Changed("template")
}

// Violated constraints, as errors for the caller.
var (
	saving   = pgerr.Rules{"templates_name": pgerr.NameTaken("template")}
	deleting = pgerr.Rules{pgerr.ForeignKey: pgerr.InUse("a campaign or a flow uses this template")}
)

// Store returns a content of a workspace that is sent without a template as text, and compiled. All its
// faults are returned at once.
func Store(workspace uuid.UUID, c Content) (stored string, made *Compiled, err error) {
	if _, err = Check(workspace, c); err != nil {
		return "", nil, err
	}
	c, _ = complete(c)
	if made, err = Compile(workspace, c); err != nil {
		return "", nil, err
	}
	text, err := json.Marshal(c)
	if err != nil {
		return "", nil, fmt.Errorf("store content: %w", err)
	}
	return string(text), made, nil
}

// CompileStored compiles what Store returned.
func CompileStored(workspace uuid.UUID, stored string) (*Compiled, error) {
	var c Content
	if err := json.Unmarshal([]byte(stored), &c); err != nil {
		return nil, fmt.Errorf("read stored content: %w", err)
	}
	return Compile(workspace, c)
}
