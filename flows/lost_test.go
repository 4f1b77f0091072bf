package flows_test

import (
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/flows/flowstest"
)

// A commit whose connection is cut is repeated, and no enrollment is blamed for it,
// although the pool has another connection at once.
func TestALostConnectionIsNoEnrollmentsFault(t *testing.T) {
	b := setup(t, 2)
	deps := b.Deps
	deps.Pool = b.Connect(func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = "victim"
		c.MaxConns = 1
	})
	f := flowstest.NewProcess(deps, b.Config)
	b.Live(flowstest.Welcome)
	for _, profile := range []string{"c1", "c2"} {
		b.RecordEvent(profile, "signed_up", flowstest.WithID(profile))
	}
	var cuts atomic.Int32
	f.Hook.Do = func(stage string) {
		if stage == "locked" && cuts.Add(1) == 1 {
			b.Cut("victim")
		}
	}
	_, err := f.RunOnce(bg)
	if cuts.Load() == 0 || err == nil {
		t.Errorf("%d commits, %v", cuts.Load(), err)
	}
	b.WantCount(0, `select count(*) from enrollments where workspace_id = $1 and (failures > 0 or blocked_reason is not null)`,
		b.Workspace)
}
