package sender

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lemma/message"
)

// readPayloads reads the data of the next rows, if the claim did not: its rows have more
// than Config.ClaimBytes together. A row does not change while its batch is open.
func (s *Sender) readPayloads(ctx context.Context, c *claim) error {
	if c.rows[c.next].Payload != "" {
		return nil
	}
	most := max(1, s.cfg.ClaimBytes/message.MaxPayload)
	next := c.rows[c.next:min(c.next+most, len(c.rows))]
	ordinals := make([]int16, len(next))
	for i, r := range next {
		ordinals[i] = r.Ordinal
	}
	rows, _ := s.pool.Query(ctx, `
		select coalesce(n.payload, '{}') from notifications n
		where n.workspace_id = $1 and n.origin_id = $2 and n.batch_id = $3 and n.ordinal = any($4) order by n.ordinal`,
		c.WorkspaceID, c.OriginID, c.root, ordinals)
	payloads, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil && len(payloads) != len(next) {
		err = fmt.Errorf("%d of %d rows found", len(payloads), len(next))
	}
	if err != nil {
		return fmt.Errorf("read data of batch %s: %w", c.BatchID, err)
	}
	for i, payload := range payloads {
		next[i].Payload = payload
	}
	return nil
}
