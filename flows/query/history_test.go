package query_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma/flows/flowstest"
	"lemma/page"
)

// A step of a branch stores the properties of some events, and the history ends after some
// bytes: a reader continues behind its last step, and gets each step once.
func TestHistoryIsBounded(t *testing.T) {
	b := setup(t, 1)
	var uses []string
	for i := range 4 {
		uses = append(uses, fmt.Sprintf("events.e%d.times > 9", i))
	}
	flow := b.Live(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"w","nodes":{
		"w":{"type":"delay","for":"P1D","next":"b"},
		"b":{"type":"branch","cases":[{"if":"` + strings.Join(uses, " || ") + `","next":"end"}],"else":"end"},"end":{"type":"exit"}}}`)
	b.RecordEvent("c1", "go")
	b.Settle()
	for i := range 4 {
		b.RecordEvent("c1", fmt.Sprint("e", i), flowstest.Properties(`{"x":"`+strings.Repeat("y", 15_000)+`"}`))
	}
	b.Exec(`update enrollments set shard = 0, resume_at = now() where workspace_id = $1`, b.Workspace)
	b.Exec(`update flow_shards set retry_at = now() where workspace_id = $1`, b.Workspace)
	b.Settle()
	id := b.Enrollment(flow, "c1").ID
	branched := b.LastStepOn(id, "b")
	stored, err := json.Marshal(branched.Data["events"])
	b.Must(err)
	if n := strings.Count(string(stored), `"times":1`); n != 4 || len(stored) < 30_000 || len(stored) > 34_000 {
		t.Errorf("of %d events, %d bytes are stored", n, len(stored))
	}

	b.Exec(`update enrollment_steps set data = $3 where workspace_id = $1 and enrollment_id = $2`, b.Workspace, id,
		`{"x":"`+strings.Repeat("z", page.MaxBytes/5*2)+`"}`)
	want := b.Count(`select count(*) from enrollment_steps where workspace_id = $1 and enrollment_id = $2`, b.Workspace, id)
	var got []int
	for after, more := -1, true; more; {
		_, steps, truncated, err := b.Steps(bg, b.Workspace, id, after)
		b.Must(err)
		if len(steps) == 0 || len(steps) > 2 || truncated != (len(got)+len(steps) < want) {
			t.Fatalf("behind %d are %d steps of %d, truncated: %v", after, len(steps), want, truncated)
		}
		for _, s := range steps {
			got, after = append(got, s.Step), s.Step
		}
		more = truncated
	}
	if len(got) != want {
		t.Errorf("the parts have the steps %v of %d", got, want)
	}
	b.Exec(`update enrollment_steps set data = $3 where workspace_id = $1 and enrollment_id = $2`, b.Workspace, id,
		`{"x":"`+strings.Repeat("z", page.MaxBytes+1)+`"}`)
	if _, steps, truncated, err := b.Steps(bg, b.Workspace, id, -1); err != nil || len(steps) != 1 || !truncated {
		t.Errorf("of large steps %d are read: %v, %v", len(steps), truncated, err)
	}
}

// Each step of a push writes up to 101 notifications, all of which are read for an answer.
func TestNotificationsOfAHistoryAreBounded(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(`{"triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"w","nodes":{
		"w":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`)
	b.RecordEvent("c1", "go")
	b.Settle()
	id := b.Enrollment(flow, "c1").ID
	b.Exec(`insert into enrollment_steps (workspace_id, enrollment_id, step, version, node, event, data, at)
		select $1, $2, i, 1, 'w', 'sent', case i when 11 then '{"messages":1001}' else '{"messages":101}' end, now() 
		from generate_series(11, 35) i`, b.Workspace, id)
	var got []int
	for after, more := 10, true; more; {
		_, steps, truncated, err := b.Steps(bg, b.Workspace, id, after)
		b.Must(err)
		got, after, more = append(got, len(steps)), steps[len(steps)-1].Step, truncated
	}
	if d := cmp.Diff([]int{1, 9, 9, 6}, got); d != "" {
		t.Error(d)
	}
}
