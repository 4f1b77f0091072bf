package query

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// MessagesBlocked is why messages of a version that have waited for long are not sent: the
// profile must be read again from the audience, which cannot be read.
type MessagesBlocked struct {
	Reason string // a code, as of an enrollment
	Detail string
	Since  time.Time
}

// messagesBlocked returns nil if the audience could be read, or if no message of the
// version is waiting.
func (r *Reader) messagesBlocked(ctx context.Context, ws, flow uuid.UUID, version int, nodes []NodeCount) (*MessagesBlocked, error) {
	if !slices.ContainsFunc(nodes, func(n NodeCount) bool { return n.Messages["pending"] > 0 }) {
		return nil, nil
	}
	var b MessagesBlocked
	err := r.pool.QueryRow(ctx, `
		select recheck_reason, recheck_detail, recheck_failed_at from flow_versions
		where workspace_id = $1 and flow_id = $2 and version = $3 and recheck_failed_at is not null`, ws, flow, version).Scan(&b.Reason,
		&b.Detail, &b.Since)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read why messages of flow %s wait: %w", flow, err)
	}
	return &b, nil
}
