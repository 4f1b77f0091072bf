package flows

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// What is done to a flow, as its log names it.
const (
	wasPublished  = "published"
	wasRolledBack = "rolled_back"
	wasPaused     = "paused"
	wasResumed    = "resumed"
	wasDrained    = "drained"
	wasArchived   = "archived"
)

// note appends to a flow's log, in the transaction that does what it says and
// under the flow's lock: the clock is read there, so that the lines of a flow
// are in the order in which things were done.
func note(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, action string, by *uuid.UUID, detail map[string]any) error {
	if detail == nil {
		detail = map[string]any{}
	}
	_, err := tx.Exec(ctx, `
		insert into flow_log (workspace_id, flow_id, id, action, version, api_key_id, detail, at)
		select $1, $2, $3, $4, live_version, $5, $6, clock_timestamp() from flows where workspace_id = $1 and id = $2`,
		ws, flow, lemma.NewID(), action, by, detail)
	if err != nil {
		return fmt.Errorf("log that flow %s was %s: %w", flow, action, err)
	}
	return nil
}

// History answers what was done to a flow, newest first.
func (f *Flows) History(ctx context.Context, ws, flow uuid.UUID, page lemma.Page) ([]LogLine, string, error) {
	if _, err := f.Get(ctx, ws, flow); err != nil {
		return nil, "", err
	}
	var after *uuid.UUID
	if page.Cursor != "" {
		id, err := uuid.Parse(page.Cursor)
		if err != nil {
			return nil, "", foreignCursor()
		}
		after = &id
	}
	rows, err := f.pool.Query(ctx, `
		select l.id, l.at, l.action, l.version, l.api_key_id, l.detail from flow_log l
		where l.workspace_id = $1 and l.flow_id = $2 and ($3::uuid is null or (l.at, l.id) <
			(select c.at, c.id from flow_log c where c.workspace_id = $1 and c.flow_id = $2 and c.id = $3))
		order by l.at desc, l.id desc limit $4`, ws, flow, after, page.Limit+1)
	if err != nil {
		return nil, "", fmt.Errorf("read history of flow %s: %w", flow, err)
	}
	type line struct {
		id uuid.UUID
		LogLine
	}
	lines, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l line, err error) {
		err = row.Scan(&l.id, &l.At, &l.Action, &l.Version, &l.APIKeyID, &l.Detail)
		return l, err
	})
	if err != nil {
		return nil, "", fmt.Errorf("read history of flow %s: %w", flow, err)
	}
	next := ""
	if len(lines) > page.Limit {
		lines = lines[:page.Limit]
		next = lines[page.Limit-1].id.String()
	}
	shown := make([]LogLine, len(lines))
	for i, l := range lines {
		shown[i] = l.LogLine
	}
	return shown, next, nil
}
