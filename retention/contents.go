package retention

import (
	"context"
	"fmt"

	"lemma/migrations"
)

// contentsPage is how many contents are deleted in one statement.
const contentsPage = 1_000

// deleteContents deletes the contents of the direct notifications in a detached partition:
// inline contents may have personal data. They are of the same month, as no request of
// another month uses them. A workspace whose notifications of the month are in the default
// partition, too, keeps its contents with them.
func (r *Retention) deleteContents(ctx context.Context, p migrations.Partition) error {
	from, to := p.FirstIDs()
	for total := int64(0); ; {
		tag, err := r.pool.Exec(ctx, `
			delete from contents d using (
				select c.workspace_id, c.id from workspaces w cross join lateral (
					select c.workspace_id, c.id from contents c
					where c.workspace_id = w.id and c.id >= $1 and c.id < $2 and `+isDirect+`
					  and not exists (select from notifications n where n.workspace_id = w.id and n.origin_id >= $1 and n.origin_id < $2)
					order by c.id limit $3) c
				limit $3
			) c where d.workspace_id = c.workspace_id and d.id = c.id`, from, to, contentsPage)
		if err != nil {
			return fmt.Errorf("delete the contents of %s: %w", p.Name(), err)
		}
		if total += tag.RowsAffected(); tag.RowsAffected() < contentsPage {
			r.log.InfoContext(ctx, "contents of direct notifications deleted", "partition", p.Name(), "contents", total)
			return nil
		}
	}
}

// isDirect is true of the content of a direct notification, by the version of its id.
const isDirect = `get_byte(uuid_send(c.id), 6) >> 4 = 8`
