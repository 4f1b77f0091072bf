package providers

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"lemma"
)

// Tests of a workspace: ten at once, and then one every testEvery.
const (
	testEvery = 6 * time.Second
	testBurst = 9 * testEvery
)

// AcquireTest counts a test of a provider of a workspace. It returns an error of the
// kind RateLimited for more than ten a minute. All processes share the meter, which is
// a generic cell rate algorithm as in Acquire.
func (p *Providers) AcquireTest(ctx context.Context, ws uuid.UUID) error {
	tag, err := p.pool.Exec(ctx, `
		insert into provider_test_meters as m (workspace_id, next_free_at) values ($1, now() + $2)
		on conflict (workspace_id) do update set next_free_at = greatest(m.next_free_at, now()) + $2
		where m.next_free_at <= now() + $3`, ws, testEvery, testBurst)
	if err != nil {
		return fmt.Errorf("count test of a provider: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return &lemma.Error{Kind: lemma.RateLimited, Message: "a workspace has ten tests of providers a minute; try again in a moment"}
	}
	return nil
}
