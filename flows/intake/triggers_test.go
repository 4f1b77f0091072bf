package intake_test

import (
	"testing"

	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
)

const overlapping = `{"triggers":[{"type":"event","event":"cart"}],"recurrence":{"policy":"per_event"},"overlap":"allow",
	"exit_on":[{"event":"bought","condition":"event.properties.order == trigger.properties.order"}],"start":"w","nodes":{
	"w":{"type":"wait_for_event","event":"seen","condition":"event.properties.order == trigger.properties.order","timeout":"P9D","next":"end",
		"on_timeout":"end"},"end":{"type":"exit"}}}`

// An event reads the triggers of the enrollments of its profile by the page, and misses
// none.
func TestTriggersAreReadByThePage(t *testing.T) {
	b := setup(t, 2)
	flow := b.Live(overlapping)
	for _, order := range []string{"1", "2", "1", "2", "1"} {
		b.RecordEvent("c1", "cart", flowstest.Properties(`{"order":`+order+`}`))
	}
	b.RecordEvent("c2", "cart", flowstest.Properties(`{"order":1}`))
	b.Settle()
	for _, most := range []int{1, 200} {
		b.SetTriggerBytes(most)
		events := []intake.Event{{ProfileKey: "c2", Name: "seen", Properties: []byte(`{"order":3}`)},
			{ProfileKey: "c1", Name: "seen", Properties: []byte(`{"order":2}`)}}
		if most > 1 {
			events[0].Properties, events[1] = []byte(`{"order":1}`), intake.Event{ProfileKey: "c1", Name: "bought",
				Properties: []byte(`{"order":1}`)}
		}
		done, err := b.RecordAll(bg, b.Workspace, events)
		b.Must(err)
		if most == 1 && (done[0].Woken != 0 || done[1].Woken != 2 || done[1].Exited != 0) ||
			most > 1 && (done[0].Woken != 1 || done[1].Exited != 3) {
			t.Errorf("with %d bytes: %+v", most, done)
		}
	}
	b.WantCount(3, `select count(*) from enrollments
			where workspace_id = $1 and flow_id = $2 and status = 'exited'`, b.Workspace, flow)
}

// A profile with as many active enrollments as it may have is not enrolled in flows that
// allow overlap, with the reason, until one of them ends.
func TestActiveEnrollmentsOfAProfileAreBounded(t *testing.T) {
	b := setup(t, 2)
	b.SetMostActive(3)
	single := b.Live(`{"triggers":[{"type":"event","event":"once"}],"recurrence":{"policy":"once"},"start":"w","nodes":{
		"w":{"type":"delay","for":"P9D","next":"end"},"end":{"type":"exit"}}}`)
	first, second := b.Live(overlapping), b.Live(overlapping)
	outcomes := func(profile, event string) (reasons []string) {
		t.Helper()
		for _, r := range b.RecordEvent(profile, event, flowstest.Properties(`{"order":1}`)).Results {
			reasons = append(reasons, r.Outcome+" "+r.Reason)
		}
		return reasons
	}
	b.RecordEvent("c1", "cart", flowstest.Properties(`{"order":1}`)) // two enrollments
	if got := outcomes("c1", "once"); len(got) != 1 || got[0] != "enrolled " {
		t.Errorf("a flow without overlap: %v", got)
	}
	if got := outcomes("c1", "cart"); len(got) != 2 || got[0] != "refused too_many_active" || got[1] != got[0] {
		t.Errorf("beyond the bound: %v", got)
	}
	b.WantCount(2, `select count(*) from refusals where workspace_id = $1 and reason = $2`, b.Workspace, enrollment.TooManyActive)
	if got := outcomes("c2", "cart"); len(got) != 2 || got[0] != "enrolled " {
		t.Errorf("another profile: %v", got)
	}
	b.RecordEvent("c1", "bought", flowstest.Properties(`{"order":1}`))
	if got := outcomes("c1", "cart"); len(got) != 2 || got[0] != "enrolled " {
		t.Errorf("after the others ended: %v", got)
	}
	for _, flow := range []any{single, first, second} {
		if n := b.Count(`select count(*) from enrollments
			where workspace_id = $1 and flow_id = $2 and status = 'active'`, b.Workspace, flow); n == 0 {
			t.Errorf("no enrollment in %v", flow)
		}
	}
}
