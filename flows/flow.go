package flows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lemma"
)

const selectFlow = `
	select id, workspace_id, name, status, coalesce(status_reason, '') as status_reason, coalesce(status_detail, '') as status_detail,
		live_version, metadata, held_from, held_until, spread_until, version, created_at, updated_at
	from flows`

// Create makes a draft, with version 1 if there is a definition. Creating one
// id twice makes it once.
func (f *Flows) Create(ctx context.Context, ws uuid.UUID, n NewFlow) (Flow, error) {
	if err := checkFlow(&n.Name, n.Metadata); err != nil {
		return Flow{}, err
	}
	if n.Definition != nil {
		if _, err := wellFormed(n.Definition); err != nil {
			return Flow{}, err
		}
	}
	err := pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
		made, err := tx.Exec(ctx, `
			insert into flows (workspace_id, id, name, metadata, versions) values ($1, $2, $3, $4, $5::boolean::int)
			on conflict (workspace_id, id) do nothing`, ws, n.ID, n.Name, orEmpty(n.Metadata), n.Definition != nil)
		if err != nil || made.RowsAffected() == 0 {
			return err
		}
		return furnish(ctx, tx, ws, n.ID, n.Definition)
	})
	if err != nil {
		return Flow{}, nameTaken(err, "create flow")
	}
	return f.Get(ctx, ws, n.ID)
}

// furnish gives a new flow the rows that it works with.
func furnish(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, definition json.RawMessage) error {
	_, err := tx.Exec(ctx, `
		insert into flow_turns (workspace_id, flow_id, turn) select $1, $2, turn from generate_series(0, $3::int - 1) turn`, ws, flow, Turns)
	if err != nil || definition == nil {
		return err
	}
	_, err = tx.Exec(ctx, `insert into flow_versions (workspace_id, flow_id, version, definition, request) values ($1, $2, 1, $3, $2)`, ws, flow, string(definition))
	return err
}

// Get reads one flow.
func (f *Flows) Get(ctx context.Context, ws, id uuid.UUID) (Flow, error) {
	found, err := f.readFlows(ctx, selectFlow+` where workspace_id = $1 and id = $2`, ws, id)
	if err != nil {
		return Flow{}, fmt.Errorf("get flow: %w", err)
	}
	if len(found) == 0 {
		return Flow{}, lemma.Missing("flow")
	}
	return found[0], nil
}

// List answers one page, newest first: of those with a status, or of all.
func (f *Flows) List(ctx context.Context, ws uuid.UUID, status Status, page lemma.Page) ([]Flow, string, error) {
	before, err := beforeID(lemma.PrefixFlow, page.Cursor)
	if err != nil {
		return nil, "", err
	}
	found, err := f.readFlows(ctx, selectFlow+`
		where workspace_id = $1 and id < $2 and ($3 = '' or status = $3) order by id desc limit $4`, ws, before, status, page.Limit+1)
	if err != nil {
		return nil, "", fmt.Errorf("list flows: %w", err)
	}
	if len(found) <= page.Limit {
		return found, "", nil
	}
	found = found[:page.Limit]
	return found, lemma.FormatID(lemma.PrefixFlow, found[page.Limit-1].ID), nil
}

func (f *Flows) readFlows(ctx context.Context, sql string, args ...any) ([]Flow, error) {
	rows, err := f.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[Flow])
	if err != nil {
		return nil, err
	}
	for i := range found {
		found[i].Allowed = allowed(found[i].Status)
	}
	return found, nil
}

// beforeID reads the cursor of a list that is ordered by id, newest first.
func beforeID(prefix, cursor string) (uuid.UUID, error) {
	if cursor == "" {
		return uuid.Max, nil
	}
	id, ok := lemma.ParseID(prefix, cursor)
	if !ok {
		return uuid.Nil, foreignCursor()
	}
	return id, nil
}

func foreignCursor() error {
	return lemma.Fault("?cursor", "invalid_cursor", "the cursor is not one that this list gave out")
}

// Update renames a flow or changes its metadata, if its version is still
// ifMatch; with nil, whatever its version is. What it says is in its versions.
// A name is held by one flow that is not archived, and by any number that are.
func (f *Flows) Update(ctx context.Context, ws, id uuid.UUID, ifMatch *int, p Patch) (Flow, error) {
	if err := checkFlow(p.Name, p.Metadata); err != nil {
		return Flow{}, err
	}
	err := pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
		if _, err := hold(ctx, tx, ws, id, edit, ifMatch); err != nil {
			return err
		}
		return change(ctx, tx, ws, id, edit, `name = coalesce($4, name), metadata = coalesce($5, metadata)`, p.Name, p.Metadata)
	})
	if err != nil {
		return Flow{}, nameTaken(err, "update flow")
	}
	return f.Get(ctx, ws, id)
}

// Delete removes a draft, which nobody ever enrolled in. What people went
// through is never deleted: it is archived.
func (f *Flows) Delete(ctx context.Context, ws, id uuid.UUID) error {
	err := pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
		if _, err := hold(ctx, tx, ws, id, remove, nil); err != nil {
			return err
		}
		gone, err := tx.Exec(ctx, `
			delete from flows f where workspace_id = $1 and id = $2 and status = any($3)
			and not exists (select from enrollments e where e.workspace_id = f.workspace_id and e.flow_id = f.id)`, ws, id, from[remove])
		if err == nil && gone.RowsAffected() == 0 {
			return &lemma.Error{Kind: lemma.Conflict, Code: "in_use", Message: "people have enrolled in this flow: archive it"}
		}
		return err
	})
	if err != nil {
		return answered(err, fmt.Sprintf("delete flow %s", id))
	}
	return nil
}

// checkFlow checks a name and metadata; a nil name is not looked at.
func checkFlow(name *string, metadata map[string]string) error {
	if name != nil {
		if err := lemma.CheckName(*name); err != nil {
			return err
		}
	}
	for key, value := range metadata {
		if text := key + value; strings.ContainsRune(text, 0) || !utf8.ValidString(text) {
			return lemma.Fault("/metadata"+pointer(key), "invalid", "metadata is text without NUL")
		}
	}
	return nil
}

// pointer makes tokens into a JSON pointer (RFC 6901, 3).
func pointer(tokens ...string) string {
	var p strings.Builder
	for _, t := range tokens {
		p.WriteString("/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(t))
	}
	return p.String()
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// nameTaken turns what the schema refuses into an answer for the caller.
func nameTaken(err error, doing string) error {
	var said *pgconn.PgError
	if errors.As(err, &said) && said.ConstraintName == "flows_name" {
		return &lemma.Error{Kind: lemma.Conflict, Code: "name_taken", Message: "another flow has this name",
			Fields: []lemma.Field{{Pointer: "/name", Code: "name_taken", Detail: "another flow has this name"}}, Cause: err}
	}
	return answered(err, doing)
}
