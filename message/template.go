package message

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"lemma"
)

// Template is a named content. What it says is in its versions; changing it
// means adding one, and what was sent keeps the version it was sent with.
type Template struct {
	ID          uuid.UUID
	WorkspaceID uuid.UUID
	Name        string // unique in its workspace
	Channel     lemma.Channel
	Version     int // the newest
	CreatedAt   time.Time
	UpdatedAt   time.Time // when it was renamed, or a version was added
}

// NewTemplate is what a template is made from.
type NewTemplate struct {
	ID      uuid.UUID // made by the caller, so that a repeated request makes it once
	Name    string
	Content Content // becomes version 1
}

// Templates keeps templates and their versions.
type Templates struct {
	pool  *pgxpool.Pool
	cache cache
}

// New makes the room.
func New(pool *pgxpool.Pool) *Templates {
	return &Templates{pool: pool}
}

const templateColumns = `workspace_id, id, name, channel, version, created_at, updated_at`

// Create checks a content and saves it as version 1 of a template. Done twice
// with the same id it makes one; the second answers what is there.
func (t *Templates) Create(ctx context.Context, ws uuid.UUID, n NewTemplate) (Template, error) {
	content, variables, err := checked(n.Name, n.Content)
	if err != nil {
		return Template{}, err
	}
	err = pgx.BeginFunc(ctx, t.pool, func(tx pgx.Tx) error {
		made, err := tx.Exec(ctx, `
			insert into templates (workspace_id, id, name, channel) values ($1, $2, $3, $4)
			on conflict (workspace_id, id) do nothing`, ws, n.ID, n.Name, lemma.Email)
		if err != nil || made.RowsAffected() == 0 {
			return err
		}
		return insertVersion(ctx, tx, ws, n.ID, 1, content, variables, n.ID)
	})
	if err != nil {
		return Template{}, known(err, "create template")
	}
	return t.Get(ctx, ws, n.ID)
}

// checked answers the content as it is stored, or all faults of name and content.
func checked(name string, c Content) (Content, []string, error) {
	variables, err := Check(c)
	if fault := lemma.CheckName(name); fault != nil {
		var faults *lemma.Error
		if errors.As(err, &faults) {
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
	return found, missing(err, "template", "get template")
}

// List reads a page of templates, newest first.
func (t *Templates) List(ctx context.Context, ws uuid.UUID, page lemma.Page) ([]Template, string, error) {
	var before *uuid.UUID
	if page.Cursor != "" {
		id, err := uuid.Parse(page.Cursor)
		if err != nil {
			return nil, "", badCursor()
		}
		before = &id
	}
	rows, _ := t.pool.Query(ctx, `
		select `+templateColumns+` from templates
		where workspace_id = $1 and ($2::uuid is null or id < $2)
		order by id desc limit $3`, ws, before, page.Limit+1)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[Template])
	if err != nil {
		return nil, "", fmt.Errorf("list templates: %w", err)
	}
	if len(found) <= page.Limit {
		return found, "", nil
	}
	found = found[:page.Limit]
	return found, found[page.Limit-1].ID.String(), nil
}

// Update renames a template, if its newest version is still ifMatch; with nil,
// whatever its version is. A name is not part of what is sent, so that no
// version is added.
func (t *Templates) Update(ctx context.Context, ws, id uuid.UUID, ifMatch *int, name string) (Template, error) {
	if fault := lemma.CheckName(name); fault != nil {
		return Template{}, fault
	}
	rows, _ := t.pool.Query(ctx, `
		update templates set name = $3, updated_at = now()
		where workspace_id = $1 and id = $2 and ($4::int is null or version = $4)
		returning `+templateColumns, ws, id, name, ifMatch)
	found, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Template])
	if errors.Is(err, pgx.ErrNoRows) {
		return Template{}, t.stale(ctx, ws, id)
	}
	return found, known(err, "rename template")
}

// Delete takes a template away, unless a campaign uses it.
func (t *Templates) Delete(ctx context.Context, ws, id uuid.UUID) error {
	gone, err := t.pool.Exec(ctx, `delete from templates where workspace_id = $1 and id = $2`, ws, id)
	if err == nil && gone.RowsAffected() == 0 {
		return lemma.Missing("template")
	}
	return known(err, "delete template")
}

// stale tells why a compare-and-set met no row.
func (t *Templates) stale(ctx context.Context, ws, id uuid.UUID) error {
	if _, err := t.Get(ctx, ws, id); err != nil {
		return err
	}
	return &lemma.Error{Kind: lemma.Stale, Message: "somebody has changed the template since it was read: read it again"}
}

func badCursor() error {
	return lemma.Fault("?cursor", "invalid_cursor", "this is not a cursor that a list gave")
}

// missing turns "no row" into the answer for an unknown id.
func missing(err error, what, doing string) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return lemma.Missing(what)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// known turns what a constraint says into an answer for the caller.
func known(err error, doing string) error {
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &pg):
	case pg.ConstraintName == "templates_name":
		return &lemma.Error{Kind: lemma.Conflict, Code: "name_taken", Message: "another template has this name",
			Fields: []lemma.Field{{Pointer: "/name", Code: "name_taken", Detail: "another template has this name"}}, Cause: err}
	case pg.Code == "23503" && doing == "delete template":
		return &lemma.Error{Kind: lemma.Conflict, Code: "in_use", Message: "a campaign or a flow uses this template", Cause: err}
	}
	return fmt.Errorf("%s: %w", doing, err)
}
