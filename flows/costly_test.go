package flows_test

import (
	"testing"

	"lemma/flows"
)

// A chunk whose conditions take too long is cut short: what is left is blocked by
// condition_time, and every pass advances at least one enrollment.
func TestCostlyConditionsBlockTheRestOfAChunk(t *testing.T) {
	b := setup(t, 3, func(c *flows.Config) { c.ConditionTime = 1 })
	flow := b.Live(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"w","nodes":{
		"w":{"type":"delay","for":"P1D","next":"e"},"e":{"type":"exit"}}}`)
	b.Exec(`update flow_shards set retry_at = now() + interval '1 day' where workspace_id = $1`, b.Workspace)
	b.RecordOfAll(3, "go")
	b.Exec(`update enrollments set shard = 0 where workspace_id = $1`, b.Workspace)
	waiting := `select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and node = 'w'`
	for passed := 1; passed <= 3; passed++ {
		b.Exec(`update enrollments set resume_at = now() where workspace_id = $1 and node = ''`, b.Workspace)
		b.Exec(`update flow_shards set retry_at = now() where workspace_id = $1 and shard = 0`, b.Workspace)
		_, err := b.RunOnce(t.Context())
		b.Must(err)
		blocked := b.Count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and blocked_reason = 'condition_time'`,
			b.Workspace,
			flow)
		if n := b.Count(waiting, b.Workspace, flow); n != passed || blocked != 3-passed {
			t.Fatalf("pass %d: %d advanced, %d blocked", passed, n, blocked)
		}
	}
}
