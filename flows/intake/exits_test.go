package intake_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"lemma/flows"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
)

// Orders that were paid are offered again, and the conditions of exit_on take too long: no
// order enrolls whose payment may have been received. Of several enrollments in a chunk each
// has the time for itself: the chunk is bisected.
func TestExitsThatTakeTooLongToCheck(t *testing.T) {
	const payable = `{"audience_id":"$audience",
		"triggers":[{"type":"event","event":"ordered","condition":"profile.country == 'US' && trigger.properties.amount > 100"}],
		"exit_on":[{"event":"paid","condition":"event.properties.amount == trigger.properties.amount"}],
		"recurrence":{"policy":"per_event"},"start":"wait","nodes":{"wait":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`
	const profiles = 5 // in 4 shards
	for name, c := range map[string]struct {
		time     time.Duration
		enrolled int
		refused  int
	}{
		"in time": {time.Minute, profiles, 0},
		"late":    {time.Nanosecond, 0, 2 * profiles},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, profiles)
			flow := b.Live(payable)
			b.ExecDB(`alter table customers rename to gone`)
			b.ExecDB(`update gone set country = 'US'`)
			for i := range profiles {
				profile := fmt.Sprint("c", i+1)
				for _, amount := range []int{5, 301, 601} {
					b.RecordEvent(profile, "ordered", flowstest.WithID(fmt.Sprint(profile, amount)),
						flowstest.Properties(fmt.Sprintf(`{"amount":%d}`, amount)))
				}
				for _, amount := range []int{1, 601} {
					b.Must(flowstest.Second(b.Record(bg, b.Workspace,
						intake.Event{ProfileKey: profile, Name: "paid", Properties: fmt.Appendf(nil, `{"amount":%d}`, amount)})))
				}
			}
			b.Settle()
			b.SetConditionTime(c.time)
			b.ExecDB(`alter table gone rename to customers`)
			b.Execution.Sources.Reopen()
			b.TimeOut()
			b.WantCount(profiles, `select count(*) from enrollments where flow_id = $1 and status = 'refused'`, flow)
			b.WantCount(c.enrolled, `select count(*) from enrollments e join enrollment_steps s on s.enrollment_id = e.id and s.step = 0
				where e.flow_id = $1 and e.status = 'active' and s.data::jsonb->'trigger'->'properties'->>'amount' = '301'`, flow)
			b.WantCount(c.enrolled, `select count(*) from enrollments where flow_id = $1 and status = 'active'`, flow)
			b.WantCount(c.refused, `select count(*) from refusals where reason = 'filtered' and event_key is not null
				and detail like '%take too long to check'`)
			if bisected := flowstest.Counted(b.Metrics.Failures.WithLabelValues("chunk")) > 0; bisected != (c.refused > 0) {
				t.Errorf("a chunk was bisected: %v", bisected)
			}
		})
	}
}

// Triggers that are offered again have conditions that take too long: a chunk is bisected, so
// that no transaction evaluates those of many enrollments.
func TestConditionsOnManyTriggersThatAreOfferedAgain(t *testing.T) {
	const profiles = 5 // in 4 shards
	b := setup(t, profiles)
	const orders = `{"audience_id":"$audience","triggers":[{"type":"event","event":"ordered","condition":"$condition"}],
		"recurrence":{"policy":"per_event"},"start":"wait","nodes":{"wait":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`
	flow := b.Live(strings.Replace(orders, "$condition", "profile.country == 'none'", 1))
	b.ExecDB(`alter table customers rename to gone`)
	for i := range profiles {
		for _, amount := range []int{5, 301, 6} {
			b.RecordEvent(fmt.Sprint("c", i+1), "ordered", flowstest.WithID(fmt.Sprint(i, " ", amount)),
				flowstest.Properties(fmt.Sprintf(`{"amount":%d}`, amount)))
		}
	}
	b.Settle()
	b.PublishNext(flow, strings.Replace(orders, "$condition", "trigger.properties.amount > 100", 1), flows.InFlight{Mode: "stay"})
	b.SetConditionTime(time.Nanosecond)
	b.ExecDB(`alter table gone rename to customers`)
	b.Execution.Sources.Reopen()
	b.TimeOut()
	b.WantCount(profiles, `select count(*) from enrollments e join enrollment_steps s on s.enrollment_id = e.id and s.step = 0
		where e.flow_id = $1 and e.status = 'active' and s.data::jsonb->'trigger'->'properties'->>'amount' = '301'`, flow)
	if flowstest.Counted(b.Metrics.Failures.WithLabelValues("chunk")) == 0 {
		t.Error("no chunk was bisected")
	}
}
