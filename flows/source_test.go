package flows_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/audience"
	"lemma/flows"
	"lemma/flows/flowstest"
	"lemma/pgtest"
)

// Two sources hang, with more queries to each than there are workers: a flow that needs
// neither still advances.
func TestSourcesThatHangDelayNoOther(t *testing.T) {
	b := setup(t, 1, func(c *flows.Config) { c.Workers, c.BackOff = 4, time.Minute })
	audiences, add := b.Patient()
	b.Deps.Audiences = audiences
	b.Process = b.Another()
	for range 2 {
		b.Audience = add(b.Workspace)
		b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"slow"}],"recurrence":{"policy":"once"},"start":"e",
			"nodes":{"e":{"type":"exit"}}}`)
	}
	fast := b.Live(`{"triggers":[{"type":"event","event":"fast"}],"recurrence":{"policy":"once"},"start":"e","nodes":{"e":{"type":"exit"}}}`)
	tx, err := b.DB.Begin(context.Background())
	b.Must(err)
	_, err = tx.Exec(context.Background(), "lock table customers in access exclusive mode")
	b.Must(err)
	for i := range 40 {
		b.RecordEvent(fmt.Sprint("p", i), "slow")
		b.RecordEvent(fmt.Sprint("p", i), "fast")
	}
	b.Exec(`update flow_shards set worked_at = now() where flow_id = $1`, fast) // the other shards come first
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); b.Loop(ctx) }()
	b.Eventually("a flow that needs no source does not wait for those that hang", func() bool {
		return b.Count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and status = 'active'`, b.Workspace, fast) == 0
	})
	pgtest.WaitForLocks(t, b.DB, 2)
	stop()
	b.Must(tx.Rollback(context.Background()))
	<-ended
}

// One profile whose row is too large waits alone; the others of the chunk advance.
func TestARowThatIsTooLargeDelaysNoOther(t *testing.T) {
	b := setup(t, 50, func(c *flows.Config) { c.BackOff = time.Hour; c.MaxBackOff = time.Hour })
	b.ExecDB(`update customers set name = repeat('x', 2000000) where id = 'c7'`)
	flow := b.Live(flowstest.Welcome)
	b.RecordOfAll(50, "signed_up")
	b.Settle()
	b.onlyOneWaits(flow, "c7", audience.CodeLimit, "wait", 49)
}

// The same for a query that fails for the data of one profile.
func TestAQueryThatFailsForOneProfileDelaysNoOther(t *testing.T) {
	b := setup(t, 50, func(c *flows.Config) { c.BackOff = time.Hour; c.MaxBackOff = time.Hour })
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"b","nodes":{
		"b":{"type":"branch","cases":[{"sql":"select profile_key from people where 1 / (case profile_key when 'c7' then 0 else 1 end) = 1",
			"next":"w"}],
			"else":"no"},
		"w":{"type":"delay","for":"P1D","next":"no"},"no":{"type":"exit"}}}`)
	b.RecordOfAll(50, "go")
	b.Settle()
	b.onlyOneWaits(flow, "c7", audience.CodeFailed, "w", 49)
}

func (b *bundle) onlyOneWaits(flow uuid.UUID, profile, blocked, node string, others int) {
	b.T.Helper()
	if e := b.Enrollment(flow, profile); e.BlockedReason != blocked {
		b.T.Errorf("%s is blocked by %q", profile, e.BlockedReason)
	}
	b.WantCount(others, `select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and blocked_reason is null and node = $3`,
		b.Workspace,
		flow, node)
}
