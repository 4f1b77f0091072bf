package flows_test

import (
	"testing"
	"time"

	"lemma/flows"
	"lemma/flows/enrollment"
)

// A data source fails four times and then answers without the profile. The failures
// count as no lookup: the profile is looked up again, and enrolls once its row is there.
func TestFailuresOfASourceAreNoLookups(t *testing.T) {
	b := setup(t, 1, func(c *flows.Config) { c.BackOff = time.Minute })
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},
	"start":"wait","nodes":{"wait":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`)
	try := func() {
		b.opens()
		b.TimeOut()
	}
	fail := func() { b.ExecDB(`alter table customers rename to gone`) }
	answer := func() { b.ExecDB(`alter table gone rename to customers`) }
	fail()
	b.RecordEvent("late", "go")
	for range 4 {
		try()
	}
	if e := b.Enrollment(flow, "late"); e.BlockedReason == enrollment.NoProfile || e.Failures != 4 {
		t.Fatalf("the source has not failed: %+v", e)
	}
	answer()
	for lookup := 1; lookup < 3; lookup++ {
		try()
		if e := b.Enrollment(flow, "late"); e.BlockedReason != enrollment.NoProfile || e.Failures != lookup {
			t.Fatalf("after lookup %d: %+v", lookup, e)
		}
	}
	fail() // between two lookups
	try()
	answer()
	try()
	b.ExecDB(`insert into customers values ('late', 'late@shop.example', 'L', 'DE', 'Europe/Berlin')`)
	try()
	if e := b.Enrollment(flow, "late"); e.Status != enrollment.Waiting || e.Node != "wait" {
		t.Errorf("%+v", e)
	}
}
