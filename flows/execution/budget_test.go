package execution_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lemma/audience"
	"lemma/flows"
	"lemma/flows/flowstest"
)

// Facts and results of a chunk have a bound in bytes. Enrollments beyond it stay due as they
// are, and each pass advances at least one.
func TestTheFactsOfAChunkAreBounded(t *testing.T) {
	const (
		delayed = `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"w","nodes":{
			"w":{"type":"delay","for":"P1D","next":"b0"},%s"end":{"type":"exit"}}}`
		branch = `"b%d":{"type":"branch","cases":[{"if":"%s","next":"%s"}],"else":"end"},`
		waits  = `{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"w","nodes":{
			"w":{"type":"wait_for_event","event":"bought","timeout":"P1D","next":"end","on_timeout":"end"},"end":{"type":"exit"}}}`
		past = "events.bought.last.x.size() == 2000"
	)
	branches := fmt.Sprintf(delayed, fmt.Sprintf(branch, 0, past, "b1")+fmt.Sprintf(branch, 1, past, "b2")+fmt.Sprintf(branch, 2, past, "end"))
	large := flowstest.Properties(`{"x":"` + strings.Repeat("y", 2000) + `"}`)
	bought := func(b *bundle, profile string) { b.RecordEvent(profile, "bought", large) }
	for _, c := range []struct {
		name, flow string
		most       int
		before     func(b *bundle, profile string)
		passes     []int // enrollments that each advances
	}{
		{"triggers", fmt.Sprintf(delayed, fmt.Sprintf(branch, 0, "trigger.properties.x.size() == 2000", "end")), 3000, nil, []int{1, 1, 1}},
		{"all triggers fit", fmt.Sprintf(delayed, fmt.Sprintf(branch, 0, "trigger.properties.x.size() == 2000", "end")), 9000, nil, []int{3}},
		{"profiles", `{"audience_id":"$audience",` + fmt.Sprintf(delayed, fmt.Sprintf(branch, 0, "profile.name.size() == 2000", "end"))[1:],
			3000, func(b *bundle, profile string) {
				b.ExecDB(`update customers set name = repeat('y', 2000) where id = $1`, profile)
			}, []int{1, 1, 1}},
		{"past events", fmt.Sprintf(delayed, fmt.Sprintf(branch, 0, past, "end")), 3000, bought, []int{1, 1, 1}},
		{"results", branches, 9000, bought, []int{2, 1}},
		{"results, with their steps", branches, 7000, bought, []int{1, 1, 1}},
		{"awaited events", waits, 3000, bought, []int{1, 1, 1}},
		{"events found at the timeout", waits, 3000, func(b *bundle, profile string) {
			b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, properties, occurred_at, received_at)
				values ($1, gen_random_uuid(), $2, 'bought', $3, now(), now())`, b.Workspace, profile, `{"x":"`+strings.Repeat("y", 2000)+`"}`)
		}, []int{1, 1, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t, 3, func(cfg *flows.Config) { cfg.ChunkBytes = c.most })
			flow := b.Live(c.flow)
			for i := range 3 {
				b.RecordEvent(fmt.Sprint("c", i+1), "go", large)
			}
			b.Settle()
			for i := range 3 {
				if c.before != nil {
					c.before(b, fmt.Sprint("c", i+1))
				}
			}
			b.Exec(`update enrollments set shard = 0, resume_at = now() where workspace_id = $1`, b.Workspace)
			if ended := passes(b, c.passes); !slices.Equal(ended, c.passes) {
				t.Errorf("the passes advance %v, want %v", ended, c.passes)
			}
			if n := b.Count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and blocked_reason is not null`,
				b.Workspace, flow); n > 0 {
				t.Errorf("%d enrollments are blocked", n)
			}
			for i := range 3 {
				if e := b.Enrollment(flow, fmt.Sprint("c", i+1)); strings.Contains(b.Trace(e.ID), "timed_out") || e.Status != "completed" {
					t.Errorf("%s: %s", e.Status, b.Trace(e.ID))
				}
			}
		})
	}
}

// A lookup that fails for one profile is bisected. Its parts share the budget of the chunk:
// those that are read when it is used up are left, instead of one row of each.
func TestThePartsOfABisectedLookupShareTheBudget(t *testing.T) {
	b := setup(t, 8, func(cfg *flows.Config) { cfg.ChunkBytes, cfg.BackOff, cfg.MaxBackOff = 1000, time.Hour, time.Hour })
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"w","nodes":{
		"w":{"type":"delay","for":"P1D","next":"b"},"b":{"type":"branch","cases":[{"if":"profile.name.size() == 2000","next":"end"}],
		"else":"end"},"end":{"type":"exit"}}}`)
	b.RecordOfAll(8, "go")
	b.Settle()
	b.ExecDB(`update customers set name = repeat('y', case id when 'c4' then 2000000 else 2000 end)`)
	b.Exec(`update enrollments set shard = 0, resume_at = now() where workspace_id = $1`, b.Workspace)
	want := []int{1, 1, 1, 1, 1, 1, 1}
	if ended := passes(b, want); !slices.Equal(ended, want) {
		t.Errorf("the passes advance %v, want %v", ended, want)
	}
	if e := b.Enrollment(flow, "c4"); e.BlockedReason != audience.CodeLimit {
		t.Errorf("c4 is blocked by %q", e.BlockedReason)
	}
}

// passes counts the enrollments that each pass ends, for as many passes as are wanted.
func passes(b *bundle, want []int) (ended []int) {
	b.T.Helper()
	for range want {
		b.Exec(`update flow_shards set retry_at = now() where workspace_id = $1`, b.Workspace)
		before := b.Count(`select count(*) from enrollments where workspace_id = $1 and ended_at is not null`, b.Workspace)
		_, err := b.RunOnce(bg)
		b.Must(err)
		ended = append(ended, b.Count(`select count(*) from enrollments where workspace_id = $1 and ended_at is not null`, b.Workspace)-before)
	}
	return ended
}

// Enrollments that became due in a pause count as released once they have advanced.
func TestWhatIsLeftOfAChunkIsNotReleased(t *testing.T) {
	b := setup(t, 3, func(cfg *flows.Config) { cfg.ChunkBytes = 1 })
	flow := b.Live(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"w","nodes":{
		"w":{"type":"delay","for":"P1D","next":"b"},"b":{"type":"branch","cases":[{"if":"trigger.name == 'go'","next":"end"}],"else":"end"},
		"end":{"type":"exit"}}}`)
	b.RecordOfAll(3, "go")
	b.Settle()
	b.Exec(`update enrollments set shard = 0, resume_at = now() - interval '1 hour' where workspace_id = $1`, b.Workspace)
	b.Exec(`update flows set resumed_at = now() - interval '30 minutes', catch_up_until = now() + interval '1 second' where workspace_id = $1
		and id = $2`, b.Workspace, flow)
	b.Exec(`update flow_shards set held = 3, released = 0 where workspace_id = $1 and shard = 0`, b.Workspace)
	if ended := passes(b, []int{1}); ended[0] != 1 {
		t.Fatalf("the pass advances %d enrollments", ended[0])
	}
	b.WantCount(1, `select released from flow_shards where workspace_id = $1 and flow_id = $2 and shard = 0`, b.Workspace, flow)
}
