package flows

import (
	"context"
	"errors"
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

// errDone undoes a verb that an earlier try of the same request has done.
var errDone = errors.New("this request has been done before")

// note appends to a flow's log, in the transaction that does what it says and
// under the flow's lock: the clock is read there, so that the lines of a flow
// are in the order in which things were done. The line has the request's id,
// so that a request whose answer was lost is not done a second time (errDone).
func note(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, action string, by *Asker, detail map[string]any) error {
	if detail == nil {
		detail = map[string]any{}
	}
	id := lemma.NewID()
	if by.repeatable() {
		id = by.Request
	}
	tag, err := tx.Exec(ctx, `
		insert into flow_log (workspace_id, flow_id, id, action, version, api_key_id, detail, at)
		select $1, $2, $3, $4, live_version, $5, $6, clock_timestamp() from flows where workspace_id = $1 and id = $2
		on conflict (workspace_id, flow_id, id) do nothing`, ws, flow, id, action, by.key(), detail)
	if err != nil {
		return fmt.Errorf("log that flow %s was %s: %w", flow, action, err)
	}
	if tag.RowsAffected() == 0 {
		return errDone
	}
	return nil
}

// unlessDone ends a verb that did not come through. If an earlier try of the
// same request did, err only says what that has left behind, and the answer is
// the flow as it is now.
func (f *Flows) unlessDone(ctx context.Context, ws, flow uuid.UUID, by *Asker, err error) (Flow, error) {
	if !by.repeatable() {
		return Flow{}, err
	}
	var done bool
	look := f.pool.QueryRow(ctx, `select exists (select from flow_log where workspace_id = $1 and flow_id = $2 and id = $3)`, ws, flow, by.Request).Scan(&done)
	switch {
	case look != nil:
		return Flow{}, fmt.Errorf("look whether a request was done to flow %s: %w", flow, look)
	case !done:
		return Flow{}, err
	}
	return f.Get(ctx, ws, flow)
}

// repeatable says whether a request done again can be told from another.
func (a *Asker) repeatable() bool { return a != nil && a.Request != uuid.Nil }

// name is the request as a step keeps it; empty when it cannot be told.
func (a *Asker) name() string {
	if !a.repeatable() {
		return ""
	}
	return a.Request.String()
}

// key is the API key that asks, nil for Lemma itself.
func (a *Asker) key() *uuid.UUID {
	if a == nil {
		return nil
	}
	return &a.APIKeyID
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
