package sender

import (
	"context"
	"testing"

	"lemma/pgtest"
)

// A workspace with more expired leases than a run of the reaper decides does not delay
// another workspace, whose lease expired later.
func TestTheReaperServesWorkspacesInTurn(t *testing.T) {
	b := setup(t)
	b.carrier.rest = Unknown
	steady := func(c *Config) { c.CircuitAfter = 1_000_000 }
	b.insert(reapMost+1, 1, 2)
	s := b.sender(steady)
	b.work(s)
	other := newTenant(pgtest.ShopIn(t, b.Pool))
	other.carrier = b.carrier
	ref := other.insert(1, 1, 2)[0]
	_, err := other.sender(steady).Work(context.Background(), ref)
	other.Must(err)
	b.expireLeases()
	sum, err := s.Reap(context.Background())
	b.Must(err)
	if sum.Batches != reapMost {
		t.Fatalf("%d batches were reaped", sum.Batches)
	}
	other.WantCount(0, `select count(*) from batches where workspace_id = $1 and status = 'leased'`, other.Workspace)
}
