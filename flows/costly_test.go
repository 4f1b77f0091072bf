package flows_test

import (
	"testing"

	"lemma/flows"
	"lemma/flows/intake"
	"lemma/flows/query"
)

// A chunk whose conditions take too long is cut short, also between two nodes of one
// enrollment: what is left is blocked by condition_time. Every pass executes at least one
// node: here the entry of each enrollment, and then its delay.
func TestCostlyConditionsBlockTheRestOfAChunk(t *testing.T) {
	b := setup(t, 3, func(c *flows.Config) { c.ConditionTime = 1 })
	flow := b.Live(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"w","nodes":{
		"w":{"type":"delay","for":"P1D","next":"e"},"e":{"type":"exit"}}}`)
	b.Exec(`update flow_shards set retry_at = now() + interval '1 day' where workspace_id = $1`, b.Workspace)
	b.RecordOfAll(3, "go")
	b.Exec(`update enrollments set shard = 0 where workspace_id = $1`, b.Workspace)
	for passed := 1; passed <= 6; passed++ {
		b.Exec(`update enrollments set resume_at = now() where workspace_id = $1 and (node = '' or blocked_reason is not null)`, b.Workspace)
		b.Exec(`update flow_shards set retry_at = now() where workspace_id = $1 and shard = 0`, b.Workspace)
		_, err := b.RunOnce(t.Context())
		b.Must(err)
		entered := b.Count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and node = 'w'`, b.Workspace, flow)
		waiting := b.Count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and node = 'w' and blocked_reason is null`,
			b.Workspace, flow)
		blocked := b.Count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and blocked_reason = 'condition_time'`,
			b.Workspace, flow)
		if entered+waiting != passed || waiting+blocked != 3 {
			t.Fatalf("pass %d: %d entered the delay, of which %d wait, %d blocked", passed, entered, waiting, blocked)
		}
	}
}

// A simulation goes on where the time of its conditions ends.
func TestSimulationOfCostlyConditions(t *testing.T) {
	b := setup(t, 1, func(c *flows.Config) { c.ConditionTime = 1 })
	flow := b.Live(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"w","nodes":{
		"w":{"type":"delay","for":"P1D","next":"e"},"e":{"type":"exit","goal":true}}}`)
	made, err := b.Simulate(t.Context(), b.Workspace, flow, 1, query.Simulation{ProfileKey: "c1", Trigger: intake.Event{Name: "go"}})
	b.Must(err)
	if made.Status != "completed" || made.Path[len(made.Path)-1].Node != "e" {
		t.Errorf("%+v", made)
	}
}
