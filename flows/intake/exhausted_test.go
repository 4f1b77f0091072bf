package intake_test

import (
	"fmt"
	"testing"
	"time"

	"lemma"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
)

// When the conditions of a bulk take too long, the events that follow are not recorded
// and have no effect: they can be sent again, and some are recorded each time.
func TestBulksEndWhenTheirConditionsTakeTooLong(t *testing.T) {
	b := setup(t, 0)
	const trigger = `{"triggers":[{"type":"event","event":"cart","condition":"trigger.properties.?n.orValue(1) > 0"}],
		"recurrence":{"policy":"once"},"start":"buy","nodes":{
		"buy":{"type":"wait_for_event","event":"bought","condition":"event.at >= trigger.at","timeout":"PT1H","next":"end","on_timeout":"end"},
			"end":{"type":"exit"}}}`
	const exit = `{"triggers":[{"type":"event","event":"cart"}],"exit_on":[{"event":"bought","condition":"event.at >= trigger.at"}],
		"recurrence":{"policy":"once"},"start":"wait","nodes":{
		"wait":{"type":"delay","for":"PT1H","next":"end"},"end":{"type":"exit"}}}`
	waits, ends := b.Live(trigger), b.Live(exit)
	b.SetConditionTime(time.Nanosecond)
	const profiles = 5
	overloaded := 0.0
	for _, event := range []string{"cart", "bought"} {
		all := []intake.Event{{ProfileKey: "missing", Name: "ignored"}} // no condition is evaluated for it
		for i := range profiles {
			all = append(all, intake.Event{ProfileKey: fmt.Sprint("c", i), Name: event, ID: fmt.Sprint(event, i)})
		}
		all = append(all, intake.Event{ProfileKey: "c0", Name: event, ID: event + " again"}) // in a round of its own
		for sent := 0; len(all) > 0; sent++ {
			done, err := b.RecordAll(bg, b.Workspace, all)
			b.Must(err)
			var again []intake.Event
			for i, r := range done {
				switch {
				case r.Overloaded():
					again = append(again, all[i])
					overloaded++
					if lemma.KindOf(r.Err) != lemma.Unavailable || len(r.Results) > 0 || r.Exited+r.Woken > 0 {
						t.Errorf("%s of %s: %+v", event, all[i].ProfileKey, r)
					}
				case r.Err != nil:
					t.Error(r.Err)
				}
			}
			if n := flowstest.Counted(b.Metrics.Events.WithLabelValues("condition_time")); n != overloaded {
				t.Errorf("%v events are counted", n)
			}
			if len(again) == len(all) || sent == 0 && len(all)-len(again) != 2 {
				t.Fatalf("%s: of %d events %d are left", event, len(all), len(again))
			}
			for i := range again {
				b.WantCount(0, `select count(*) from trigger_events where source_id = $1`, again[i].ID)
			}
			all = again
		}
		b.Settle()
	}
	for i := range profiles {
		profile := fmt.Sprint("c", i)
		if got := b.Trace(b.Enrollment(waits, profile).ID); got != "enrolled@ checked@ resumed@buy completed@end" {
			t.Errorf("%s waits: %s", profile, got)
		}
		if got := b.Trace(b.Enrollment(ends, profile).ID); got != "enrolled@ checked@ exited@wait" {
			t.Errorf("%s: %s", profile, got)
		}
	}
}

// A repetition, in one bulk, of an event that was not recorded since conditions took too long
// is not recorded either: it must be sent again.
func TestRepetitionsOfEventsThatWereNotRecorded(t *testing.T) {
	b := setup(t, 0)
	b.Live(`{"triggers":[{"type":"event","event":"cart","condition":"trigger.properties.?n.orValue(1) > 0"}],
		"recurrence":{"policy":"once"},"start":"end","nodes":{"end":{"type":"exit"}}}`)
	b.SetConditionTime(time.Nanosecond)
	var all []intake.Event
	for range 2 {
		for i := range 3 {
			all = append(all, intake.Event{ProfileKey: fmt.Sprint("c", i), Name: "cart", ID: fmt.Sprint("event ", i)})
		}
	}
	done, err := b.RecordAll(bg, b.Workspace, all)
	b.Must(err)
	for i, r := range done {
		recorded := b.Count(`select count(*) from trigger_events where source_id = $1`, all[i].ID) == 1
		if r.Overloaded() == recorded || r.Duplicate != (recorded && i >= 3) {
			t.Errorf("%d: recorded %t, overloaded %t, duplicate %t", i, recorded, r.Overloaded(), r.Duplicate)
		}
	}
	if !done[1].Overloaded() {
		t.Error("the conditions did not take too long")
	}
}

// Events that many flows listen to are recorded until they have enrolled often. Those that
// follow have no effect, and can be sent again.
func TestBulksEndWhenTheyEnrollTooOften(t *testing.T) {
	b := setup(t, 0)
	for range 2 {
		b.Live(`{"triggers":[{"type":"event","event":"cart"}],"recurrence":{"policy":"once"},
			"start":"end","nodes":{"end":{"type":"exit"}}}`)
	}
	b.SetMostOffered(3)
	var all []intake.Event
	for _, profile := range []string{"c0", "c1", "c0", "c2", "c3", "c4"} { // the second of c0 is in a round of its own
		all = append(all, intake.Event{ProfileKey: profile, Name: "cart", ID: fmt.Sprint("event ", len(all))})
	}
	for _, want := range []int{2, 2, 2} {
		done, err := b.RecordAll(bg, b.Workspace, all)
		b.Must(err)
		var again []intake.Event
		for i, r := range done {
			if r.Overloaded() {
				again = append(again, all[i])
			} else if b.Must(r.Err); len(r.Results) != 2 {
				t.Errorf("%+v", r)
			}
			b.WantCount(map[bool]int{false: 1, true: 0}[r.Overloaded()], `select count(*) from trigger_events where source_id = $1`, all[i].ID)
		}
		if len(all)-len(again) != want {
			t.Errorf("of %d events %d are left, want %d fewer", len(all), len(again), want)
		}
		all = again
	}
	b.WantCount(10, `select count(*) from enrollments`)
	if n := flowstest.Counted(b.Metrics.Events.WithLabelValues("too_many_enrollments")); n != 6 {
		t.Errorf("%v events are counted", n)
	}
}
