package sender

import (
	"context"

	"lemma"

	"github.com/google/uuid"

	"lemma/notifications"
)

// SeedAttempts inserts one accepted attempt for each notification of batches that
// notifications.SeedSent has inserted. It is for benchmarks.
func (s *Sender) SeedAttempts(ctx context.Context, ws uuid.UUID, batches []uuid.UUID) error {
	_, err := s.pool.Exec(ctx, `
		insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis, code)
		select $1, b.id, o, 1, 'accepted', true, 'response', 250 from unnest($2::uuid[]) as b (id), generate_series(0, $3::int - 1) o
		order by b.id, o`,
		ws, batches, notifications.SeedBatch)
	return lemma.Wrap(err, "seed attempts")
}
