package query

import (
	"context"

	"lemma"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// UsersOf returns the names of flows whose published versions name a resource by its id,
// at most so many.
func (r *Reader) UsersOf(ctx context.Context, ws, id uuid.UUID, most int) ([]string, error) {
	rows, _ := r.pool.Query(ctx, `
		select distinct f.name from flow_uses u join flows f on f.workspace_id = u.workspace_id and f.id = u.flow_id
		where u.workspace_id = $1 and $2 in (u.audience_id, u.data_source_id, u.template_id, u.provider_id, u.endpoint_id, u.topic_id)
		order by f.name limit $3`, ws, id, most)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return names, lemma.Wrap(err, "find flows that use %s", id)
}
