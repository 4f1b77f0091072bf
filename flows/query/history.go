package query

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma/page"
)

var logList = page.List[LogLine]{Name: "flow_log", Created: "l.at", Orders: map[string]page.Order[LogLine]{
	"created_at": page.ByTime("l.at", func(l LogLine) time.Time { return l.At }, "l.id", func(l LogLine) uuid.UUID { return l.id }),
}}

// History returns one page of a flow's log.
func (r *Reader) History(ctx context.Context, ws, flow uuid.UUID, q page.Query) ([]LogLine, string, error) {
	if _, err := r.flows.Get(ctx, ws, flow); err != nil {
		return nil, "", err
	}
	return logList.Read(ctx, r.pool, q, ws, `
		select l.id, l.at, l.action, l.version, l.api_key_id, l.detail from flow_log l
		where l.workspace_id = $1 and l.flow_id = $2`, scanLogLine, flow)
}

func scanLogLine(row pgx.CollectableRow) (l LogLine, err error) {
	err = row.Scan(&l.id, &l.At, &l.Action, &l.Version, &l.APIKeyID, &l.Detail)
	return l, err
}

// LogLine is one change of a flow.
type LogLine struct {
	At       time.Time
	Action   string // published, rolled_back, paused, resumed, drained, archived
	Version  *int
	APIKeyID *uuid.UUID
	Detail   map[string]any

	id uuid.UUID
}
