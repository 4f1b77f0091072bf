package query

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// AudiencePoll is how it goes with looking at the audience of a flow.
type AudiencePoll struct {
	LastAt    *time.Time       // when the last look that read all of it began; nil: none has yet
	RowsRead  int64            // by that look
	Enrolled  int64            // by it
	Refused   map[string]int64 // by it: reason -> people; also who has no usable key, and so no refusal of its own
	Failures  int              // looks in a row, since then, that could not read it
	LastError string           // why the last of these could not: a code and a sentence
	NextAt    *time.Time       // when the next one is due; nil: the flow enrolls nobody now
}

// readPoll returns nil for a flow that does not poll its audience.
func (r *Reader) readPoll(ctx context.Context, ws, flow uuid.UUID) (*AudiencePoll, error) {
	var p AudiencePoll
	err := r.pool.QueryRow(ctx, `
		select p.last_at, coalesce(p.rows_read, 0), coalesce(p.enrolled, 0), p.refused, p.failures, coalesce(p.last_error, ''),
			case when f.status = 'live' then p.next_at end
		from flow_polls p join flows f on f.workspace_id = p.workspace_id and f.id = p.flow_id
		where p.workspace_id = $1 and p.flow_id = $2`, ws, flow).
		Scan(&p.LastAt, &p.RowsRead, &p.Enrolled, &p.Refused, &p.Failures, &p.LastError, &p.NextAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read how flow %s looks at its audience: %w", flow, err)
	}
	return &p, nil
}
