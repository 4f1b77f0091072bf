package suppression

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lemma"
)

// seedChunk is the number of rows of one COPY, which is sorted by key.
const seedChunk = 250_000

// Seed adds n complaints of addresses that no profile has. It is for benchmarks.
func (s *Suppressions) Seed(ctx context.Context, ws uuid.UUID, n int) error {
	type entry struct {
		key     uuid.UUID
		address string
	}
	for from := 0; from < n; from += seedChunk {
		chunk := make([]entry, min(seedChunk, n-from))
		for i := range chunk {
			chunk[i].address = fmt.Sprintf("suppressed%d@bench.example", from+i)
			chunk[i].key = keyOf(lemma.Email, chunk[i].address)
		}
		slices.SortFunc(chunk, func(a, b entry) int { return bytes.Compare(a.key[:], b.key[:]) })
		_, err := s.pool.CopyFrom(ctx, pgx.Identifier{"suppressions"},
			[]string{"workspace_id", "id", "key", "channel", "address", "cause", "detail"},
			pgx.CopyFromSlice(len(chunk), func(i int) ([]any, error) {
				return []any{ws, lemma.NewID(), chunk[i].key, string(lemma.Email), chunk[i].address, Complaint, ""}, nil
			}))
		if err != nil {
			return fmt.Errorf("seed suppressions: %w", err)
		}
	}
	return nil
}
