package flows

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
	"lemma/lifecycle"
)

// Changes of a flow, as its log names them.
const (
	wasPublished  = "published"
	wasRolledBack = "rolled_back"
	wasPaused     = "paused"
	wasResumed    = "resumed"
	wasDrained    = "drained"
	wasArchived   = "archived"
)

// recordRequest appends to a flow's log, in the transaction of the verb and under the
// flow's lock. The time is read there, and is after that of the line before, also if the clock
// was set back meanwhile, so that the lines of a flow are in the order of its changes. A line
// has the request's id, so that a repeated request is not carried out twice
// (lifecycle.ErrRepeated).
func recordRequest(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, action string, by *Actor, detail map[string]any) error {
	if detail == nil {
		detail = map[string]any{}
	}
	id := lemma.NewID()
	if by.repeatable() {
		id = by.Request
	}
	tag, err := tx.Exec(ctx, `
		insert into flow_log (workspace_id, flow_id, id, action, version, api_key_id, detail, at)
		select $1, $2, $3, $4, live_version, $5, $6, greatest(clock_timestamp(),
			(select max(at) + interval '1 microsecond' from flow_log where workspace_id = $1 and flow_id = $2))
		from flows where workspace_id = $1 and id = $2
		on conflict (workspace_id, flow_id, id) do nothing`, ws, flow, id, action, by.key(), detail)
	if err != nil {
		return fmt.Errorf("log that flow %s was %s: %w", flow, action, err)
	}
	if tag.RowsAffected() == 0 {
		return lifecycle.ErrRepeated
	}
	return nil
}

// endVerb is the last step of a verb's transaction.
func endVerb(ctx context.Context, tx pgx.Tx, ws, flow uuid.UUID, action string, by *Actor, detail map[string]any) error {
	if err := followStatus(ctx, tx, ws, flow); err != nil {
		return err
	}
	return recordRequest(ctx, tx, ws, flow, action, by, detail)
}

// finish ends a verb. A repeated request returns the flow as it is now, without an error.
func (f *Flows) finish(ctx context.Context, ws, flow uuid.UUID, by *Actor, err error) (Flow, error) {
	repeated := func(ctx context.Context) (before bool, err error) {
		if !by.repeatable() {
			return false, nil
		}
		err = f.pool.QueryRow(ctx, `select exists (select from flow_log where workspace_id = $1 and flow_id = $2 and id = $3)`, ws, flow,
			by.Request).Scan(&before)
		if err != nil {
			err = fmt.Errorf("read whether a request was done to flow %s: %w", flow, err)
		}
		return before, err
	}
	return lifecycle.Once(ctx, err, repeated, func(ctx context.Context) (Flow, error) { return f.Get(ctx, ws, flow) })
}

// repeatable reports whether the request has an id that identifies a repetition.
func (a *Actor) repeatable() bool { return a != nil && a.Request != uuid.Nil }

// name is the request as a step stores it; empty without an id.
func (a *Actor) name() string {
	if !a.repeatable() {
		return ""
	}
	return a.Request.String()
}

// key is the API key, nil for Lemma itself.
func (a *Actor) key() *uuid.UUID {
	if a == nil {
		return nil
	}
	return &a.APIKeyID
}
