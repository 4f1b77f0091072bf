package flows

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/fence"
	"lemma/flows/enrollment"
	"lemma/page"
	"lemma/pgerr"
)

const selectFlow = `
	select id, workspace_id, name, status, coalesce(status_reason, '') as status_reason, coalesce(status_detail, '') as status_detail,
		live_version, metadata, paused_at, resumed_at, catch_up_until, version, created_at, updated_at
	from flows`

// Create makes a draft, with version 1 if there is a definition. Creating an id again has
// no effect.
func (f *Flows) Create(ctx context.Context, ws uuid.UUID, n NewFlow) (Flow, error) {
	if err := checkFlow(&n.Name, n.Metadata); err != nil {
		return Flow{}, err
	}
	if n.Definition != nil {
		if _, err := wellFormed(ws, n.Definition); err != nil {
			return Flow{}, err
		}
	}
	err := fence.Transact(ctx, f.pool, func(tx pgx.Tx) error {
		made, err := tx.Exec(ctx, `
			insert into flows (workspace_id, id, name, metadata, versions) values ($1, $2, $3, $4, $5::boolean::int)
			on conflict (workspace_id, id) do nothing`, ws, n.ID, n.Name, orEmpty(n.Metadata), n.Definition != nil)
		if err := fence.Changed(made, err); err != nil {
			return err
		}
		return addFirstVersion(ctx, tx, ws, n.ID, n.Definition)
	})
	if err != nil {
		return Flow{}, saving.Explain(err, "create flow")
	}
	return f.Get(ctx, ws, n.ID)
}

// addFirstVersion inserts the shards of a new flow, and its first version.
func addFirstVersion(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, definition json.RawMessage) error {
	_, err := tx.Exec(ctx, `
		insert into flow_shards (workspace_id, flow_id, shard) select $1, $2, shard from generate_series(0, $3::int - 1) shard`, ws, flow,
		enrollment.Shards)
	if err != nil || definition == nil {
		return err
	}
	_, err = tx.Exec(ctx, `insert into flow_versions (workspace_id, flow_id, version, definition, request) values ($1, $2, 1, $3, $2)`,
		ws, flow, string(definition))
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

var flowList = page.Named("flows", "", func(f Flow) uuid.UUID { return f.ID }, func(f Flow) string { return f.Name }).
	WithStatus("status")

// List returns one page of flows.
func (f *Flows) List(ctx context.Context, ws uuid.UUID, q page.Query) ([]Flow, string, error) {
	return flowList.ReadBy(q, func(end page.Clauses) ([]Flow, error) {
		return f.readFlows(ctx, selectFlow+` where workspace_id = $1 and `+end.Where+" "+end.Order, end.Args...)
	}, ws)
}

func (f *Flows) readFlows(ctx context.Context, sql string, args ...any) ([]Flow, error) {
	rows, _ := f.pool.Query(ctx, sql, args...)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[Flow])
	if err != nil {
		return nil, err
	}
	for i := range found {
		found[i].Allowed = table.Allowed(found[i].Status)
	}
	return found, nil
}

// Update renames a flow or changes its metadata, if its version is still ifMatch; nil
// accepts any. Names are unique among flows that are not archived.
func (f *Flows) Update(ctx context.Context, ws, id uuid.UUID, ifMatch *int, p Patch) (Flow, error) {
	if err := checkFlow(p.Name, p.Metadata); err != nil {
		return Flow{}, err
	}
	err := fence.Transact(ctx, f.pool, func(tx pgx.Tx) error {
		if _, err := lockForVerb(ctx, tx, ws, id, edit, ifMatch); err != nil {
			return err
		}
		return change(ctx, tx, ws, id, edit, `name = coalesce($4, name), metadata = coalesce($5, metadata)`, p.Name, p.Metadata)
	})
	if err != nil {
		return Flow{}, saving.Explain(err, "update flow")
	}
	return f.Get(ctx, ws, id)
}

// Delete removes a draft that was never published, and so has no enrollments. Others are archived and
// never deleted.
func (f *Flows) Delete(ctx context.Context, ws, id uuid.UUID) error {
	err := fence.Transact(ctx, f.pool, func(tx pgx.Tx) error {
		if _, err := lockForVerb(ctx, tx, ws, id, remove, nil); err != nil {
			return err
		}
		gone, err := tx.Exec(ctx, `
			delete from flows f where workspace_id = $1 and id = $2 and status = any($3) and not exists (
				select from flow_versions v where v.workspace_id = f.workspace_id and v.flow_id = f.id and v.status <> 'draft')`,
			ws, id, table.From[remove])
		if err == nil && gone.RowsAffected() == 0 {
			return &lemma.Error{Kind: lemma.Conflict, Code: "in_use", Message: "the flow was published, and may have enrollments: archive it"}
		}
		return err
	})
	if err != nil {
		return answered(err, fmt.Sprintf("delete flow %s", id))
	}
	return nil
}

// checkFlow checks a name and metadata; a nil name is not checked.
func checkFlow(name *string, metadata map[string]string) error {
	if name != nil {
		if err := lemma.CheckName(*name); err != nil {
			return err
		}
	}
	return lemma.CheckMetadata("/metadata", metadata)
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

var saving = pgerr.Rules{"flows_name": pgerr.NameTaken("flow")}
