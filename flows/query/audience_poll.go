package query

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// AudiencePoll is the state of the polls of a flow's audience.
type AudiencePoll struct {
	LastAt    *time.Time       // start of the last poll that read all of it; nil: none yet
	RowsRead  int64            // by that poll
	Enrolled  int64            // by that poll
	Refused   map[string]int64 // by that poll: reason -> profiles; also rows without a usable key, which have no refusal
	Failures  int              // consecutive polls since then that failed
	LastError string           // why the last of these failed: a code and a sentence
	NextAt    *time.Time       // when the next poll is due; nil: the flow does not enroll now
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
		return nil, fmt.Errorf("read the polls of flow %s: %w", flow, err)
	}
	return &p, nil
}
