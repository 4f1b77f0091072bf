package flows_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"lemma"
	"lemma/flows"
	"lemma/flows/flowstest"
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

// An enrollment that writes many bytes at once is blocked between two nodes, and loses none
// of what it has written. The messages of one node are written together. A message without data counts, too.
func TestMessagesOfOneEnrollmentAreBounded(t *testing.T) {
	for html, most := range map[string]int{"<p>{{ name }}</p>": 3500, "<p>Hi</p>": 1000} {
		t.Run(html, func(t *testing.T) {
			b := setup(t, 1, func(c *flows.Config) { c.ChunkBytes = most })
			b.ExecDB(`update customers set name = repeat('x', 1000)`)
			template, err := b.Deps.Templates.Create(t.Context(), b.Workspace, flowstest.NewTemplate(html))
			b.Must(err)
			b.wantsThreeAtATime(template.ID)
		})
	}
}

// wantsThreeAtATime sends seven messages of a template to a profile.
func (b *bundle) wantsThreeAtATime(template uuid.UUID) {
	b.T.Helper()
	var nodes strings.Builder
	const sends = 7
	for i := range sends {
		fmt.Fprintf(&nodes, `"n%d":{$send,"next":"n%d"},`, i, i+1)
	}
	flow := b.Live(strings.ReplaceAll(string(b.Definition(fmt.Sprintf(`{"audience_id":"$audience",
		"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"n0","nodes":{%s"n%d":{"type":"exit"}}}`,
		&nodes, sends))), lemma.FormatID(lemma.PrefixTemplate, b.Template), lemma.FormatID(lemma.PrefixTemplate, template)))
	b.RecordEvent("c1", "go")
	for _, want := range []struct {
		node    string
		written int
	}{{"n3", 3}, {"n6", 6}, {"n7", 7}} {
		b.Exec(`update enrollments set resume_at = now() where workspace_id = $1 and status = 'active'`, b.Workspace)
		b.Exec(`update flow_shards set retry_at = now() where workspace_id = $1`, b.Workspace)
		_, err := b.RunOnce(b.T.Context())
		b.Must(err)
		b.WantCount(want.written, `select count(*) from notifications where workspace_id = $1`, b.Workspace)
		e := b.Enrollment(flow, "c1")
		if e.Status == "active" && (e.BlockedReason != "chunk_bytes" || e.Node != want.node) || e.Status != "active" && want.written < sends {
			b.T.Errorf("%+v after %d messages", e, want.written)
		}
	}
}

// The webhooks that a simulation shows are bounded.
func TestSimulatedWebhooksAreBounded(t *testing.T) {
	b := setup(t, 1)
	b.ExecDB(`update customers set name = repeat('x', 500000)`)
	var nodes strings.Builder
	const calls = 20
	for i := range calls {
		fmt.Fprintf(&nodes, `"n%d":{"type":"webhook","endpoint_id":"%s","columns":["name"],"next":"n%d"},`, i, b.Endpoint(), i+1)
	}
	flow := b.Live(fmt.Sprintf(`{"audience_id":"$audience","triggers":[],"recurrence":{"policy":"once"},"start":"n0",
		"nodes":{%s"n%d":{"type":"exit"}}}`, &nodes, calls))
	made, err := b.Simulate(t.Context(), b.Workspace, flow, 1, query.Simulation{ProfileKey: "c1"})
	b.Must(err)
	shown, hidden, size := 0, 0, 0
	for _, step := range made.Path {
		switch w := step.Webhook; {
		case w == nil:
		case w.Error != "":
			hidden++
		default:
			shown, size = shown+1, size+len(w.Body)
		}
	}
	if shown == 0 || shown+hidden != calls || size > 4<<20 {
		t.Errorf("%d webhooks of %d bytes are shown, %d are not", shown, size, hidden)
	}
}
