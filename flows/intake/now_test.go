package intake_test

import (
	"testing"
	"time"

	"lemma/flows/flowstest"
)

const recent = `{"triggers":[{"type":"event","event":"order","condition":"now - trigger.at < duration('24h')"}],
	"recurrence":{"policy":"per_event"},"overlap":"allow",
	"exit_on":[{"event":"cancelled","condition":"now - event.at < duration('24h')"}],"start":"nap","nodes":{
	"nap":{"type":"delay","for":"PT1H","next":"pay"},
	"pay":{"type":"wait_for_event","event":"paid","condition":"now - event.at < duration('24h')","timeout":"P9D","next":"end",
		"on_timeout":"end"},
	"end":{"type":"exit"}}}`

// The time now of a condition is when an event was recorded, not when it occurred: history
// that is imported enrolls, ends and wakes nobody.
func TestNowIsWhenAnEventWasRecorded(t *testing.T) {
	b := setup(t, 1)
	b.Live(recent)
	now := time.Now()
	want := func(event string, ago time.Duration, enrolled, exited, woken int) {
		t.Helper()
		r := b.RecordEvent("c1", event, flowstest.At(now.Add(-ago)))
		got := []int{0, r.Exited, r.Woken}
		for _, result := range r.Results {
			got[0] += map[bool]int{true: 1}[result.Outcome == "enrolled"]
		}
		if got[0] != enrolled || got[1] != exited || got[2] != woken {
			t.Errorf("%s of %s ago enrolls, ends and wakes %d, want %d %d %d", event, ago, got, enrolled, exited, woken)
		}
	}
	want("order", 25*time.Hour, 0, 0, 0)
	want("order", 23*time.Hour, 1, 0, 0)
	b.Settle()
	b.Pass(time.Hour)
	b.Settle()
	want("paid", 25*time.Hour, 0, 0, 0)
	want("cancelled", 25*time.Hour, 0, 0, 0)
	want("paid", 23*time.Hour, 0, 0, 1)
	want("cancelled", 23*time.Hour, 0, 1, 0)
}

// An event is accepted by the time at which it was recorded, however late a worker enters
// the wait for it.
func TestNowOfAMissedEventIsWhenItWasRecorded(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(recent)
	b.RecordEvent("c1", "order")
	b.Settle()
	b.Pass(100 * time.Hour)
	b.RecordEvent("c1", "paid")
	b.Exec(`update trigger_events set occurred_at = occurred_at - interval '50 hours', received_at = received_at - interval '50 hours'
		where workspace_id = $1 and name = 'paid'`, b.Workspace)
	b.Settle()
	b.WantCount(1, `select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and status = 'completed'`, b.Workspace, flow)
}
