package query_test

import (
	"testing"
	"time"

	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
	"lemma/flows/query"
)

// many records n events in separate transactions.
func (b *bundle) many(n int, e intake.Event) {
	b.T.Helper()
	all := make([]intake.Event, n)
	for i := range all {
		all[i] = e
	}
	_, err := b.RecordAll(bg, b.Workspace, all)
	b.Must(err)
}

// However many other events the profile has, the events named joined or signed_up are found.
func TestExplainFindsTheTrigger(t *testing.T) {
	b := setup(t, 1)
	b.RecordEvent("c1", "signed_up")
	b.RecordEvent("c1", "joined")
	b.many(25, intake.Event{ProfileKey: "c1", Name: "viewed"})
	text := `{"audience_id":"$audience","triggers":[{"type":"event","event":"signed_up"},
		{"type":"event","event":"joined","condition":"trigger.properties.n == 1.0"}],"recurrence":{"policy":"per_event"},
		"exit_on":[{"event":"viewed","condition":"event.properties.x == 1"}],"start":"wait",
			"nodes":{"wait":{"type":"delay","for":"P3D","next":"end"},"end":{"type":"exit"}}}`
	flow := b.Live(text)
	before := "The profile is not enrolled: its last event joined came at T, before version 1 was published."
	b.whyIs(flow, "c1", before, "2 events named joined or signed_up are kept of the profile; the last, joined, happened at T.")
	b.many(25, intake.Event{ProfileKey: "c1", Name: "joined"}) // refused: they have no n
	_, e := b.why(flow, "c1")
	if len(e.Events) != query.Explained || e.Events[0].Name != "joined" {
		t.Fatalf("%+v", e.Events)
	}
	b.whyIs(flow, "c1", "The profile is not enrolled: the trigger of T was refused as condition_error (the condition cannot be decided: "+
		"there is no n).",
		"At least 21 events named joined or signed_up are kept of the profile", "The event signed_up now would enroll the profile.",
		"The event joined now, like its last one, would be refused as condition_error")
}

// However many enrollments are newer, the active one is found, and the last ended one
// behind those that were refused at the entry.
func TestExplainFindsTheEnrollment(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"order","condition":"profile.country == 'US'"}],
		"recurrence":{"policy":"per_event"},"overlap":"allow",
		"start":"is","nodes":{"is":{"type":"branch","cases":[{"if":"trigger.properties.long == true","next":"wait"}],"else":"end"},
			"wait":{"type":"delay","for":"P30D","next":"end"},"end":{"type":"exit"}}}`)
	b.RecordEvent("c1", "order", flowstest.Properties(`{"long":true}`))
	b.Settle()
	b.many(21, intake.Event{ProfileKey: "c1", Name: "order", Properties: []byte(`{"long":false}`)})
	b.Settle()
	b.ExecDB(`update customers set country = 'DE'`)
	b.many(21, intake.Event{ProfileKey: "c1", Name: "order"})
	b.Settle()
	b.whyIs(flow, "c1", "The profile is enrolled: enrolled at T in version 1, it is at the node wait and waits until T.")
	_, e := b.why(flow, "c1")
	kinds := map[string]int{}
	for i, one := range e.Enrollments {
		if kinds[one.Status]++; i > 0 && one.EnrolledAt.After(e.Enrollments[i-1].EnrolledAt) {
			t.Error("not newest first")
		}
	}
	if kinds["waiting"] != 1 || kinds[enrollment.Completed] != query.Explained || kinds[enrollment.Refused] != query.Explained {
		t.Fatal(kinds)
	}
	b.Pass(31 * 24 * time.Hour)
	b.Settle()
	b.whyIs(flow, "c1", "The profile is not enrolled: its last enrollment was completed at T, and the trigger of T was refused as filtered "+
		"(the "+
		"trigger's condition is false).")
}

// An archived flow is explained after its audience was deleted.
func TestExplainWithoutItsAudience(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	b.Must(flowstest.Second(b.Archive(bg, b.Workspace, flow, nil)))
	b.Must(b.Tick(bg))
	b.Exec(`update batches set status = 'done', sent = size, finished_at = now()`)
	b.Must(b.Deps.Audiences.Delete(bg, b.Workspace, b.Audience))
	b.whyIs(flow, "c1", "The profile is not enrolled any more: its last enrollment ended as exited at T (flow_archived).",
		"The flow is archived", "Whether the profile was in the audience is not known: the audience was deleted.",
		"A trigger now would be refused as not_live.")
	b.whyIs(flow, "c2", "The profile is not enrolled: the flow is archived, and no trigger was recorded before.")
	b.Must(flowstest.Second(b.Another().Explain(bg, b.Workspace, flow, "c1"))) // a process that has never compiled it
}

// With recurrence fields, only a trigger with the same values is the same.
func TestExplainFields(t *testing.T) {
	b := setup(t, 1)
	const text = `{"audience_id":"$audience","triggers":[{"type":"event","event":"order","condition":"trigger.properties.id > 0.0"}],
		"recurrence":{"policy":"fields","fields":["shop","id"]},
		"start":"wait","nodes":{"wait":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`
	flow := b.Live(text)
	b.RecordEvent("c1", "order", flowstest.Properties(`{"id":1,"shop":"s"}`))
	b.Settle()
	same := "The event order now, like its last one, would be refused as already_enrolled: by the recurrence fields it is the same as the " +
		"enrollment of T."
	b.whyIs(flow, "c1", "The profile is enrolled: enrolled at T in version 1, it is at the node wait and waits until T.",
		same+"\nThe event order now with other values of shop, id would be refused as already_active: the version does not allow overlap.")
	b.Pass(25 * time.Hour)
	b.Settle()
	b.whyIs(flow, "c1", "The profile is not enrolled any more: its last enrollment was completed at T.",
		same+"\nThe event order now with other values of shop, id, otherwise like its last one, would enroll the profile.")
	if r := b.RecordEvent("c1", "order", flowstest.Properties(`{"id":2,"shop":"s"}`)); r.Results[0].Outcome != enrollment.Enrolled {
		t.Fatalf("%+v", r)
	}
}

// The prediction for an event uses the last event of its name, and the properties that the
// recurrence reads.
func TestExplainFieldsOfSeveralEvents(t *testing.T) {
	b := setup(t, 2)
	flow := b.Live(`{"triggers":[{"type":"event","event":"order"},{"type":"event","event":"offer"}],
		"recurrence":{"policy":"fields","fields":["shop","id"]},
		"start":"end","nodes":{"end":{"type":"exit"}}}`)
	b.whyIs(flow, "c1", "The profile is not enrolled: no event that triggers the flow was recorded of it.",
		"The event order now would enroll the profile, if it has the properties shop, id.\nThe event offer now would enroll the profile, if it "+
			"has the properties shop, id.")
	b.RecordEvent("c1", "order", flowstest.Properties(`{"id":1,"shop":"s"}`))
	b.RecordEvent("c1", "offer", flowstest.Properties(`{"id":1}`))
	b.Settle()
	b.whyIs(flow, "c1", "The profile is not enrolled: its last enrollment was completed at T, and the trigger of T was refused as "+
		"missing_field "+
		"(the recurrence of the flow needs a property that is not there: there is no property shop).",
		"The event order now, like its last one, would be refused as already_enrolled: by the recurrence fields it is the same as the "+
			"enrollment of T.\n"+
			"The event order now with other values of shop, id would enroll the profile.\n"+
			"The event offer now, like its last one, would be refused as missing_field: there is no property shop.")
	if r := b.RecordEvent("c1", "offer", flowstest.Properties(`{"id":2,"shop":"s"}`)).Results[0]; r.Outcome != enrollment.Enrolled {
		t.Fatalf("%+v", r)
	}
	b.RecordEvent("c2", "offer", flowstest.Properties(`{"id":3}`))
	b.RecordEvent("c2", "order", flowstest.Properties(`{"id":3,"shop":"s"}`))
	b.Exec(`delete from enrollments where profile_key = 'c2'`)
	b.whyIs(flow, "c2", "The profile is not enrolled: the trigger of T was refused as missing_field (the recurrence of the flow needs a "+
		"property that is not there: there is no property shop).",
		"The event order now, like its last one, would enroll the profile.\nThe event offer now, like its last one, would be refused as "+
			"missing_field: there is no property shop.")
}

// An enrollment of another recurrence is explained as it is decided.
func TestExplainAnotherRecurrence(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(flowstest.Recurring(`{"policy":"per_event"}`))
	b.RecordEvent("c1", "go")
	b.Settle()
	b.PublishNext(flow, flowstest.Recurring(`{"policy":"once"}`), flows.InFlight{})
	b.whyIs(flow, "c1", "The profile is not enrolled any more: its last enrollment was completed at T.",
		"A trigger now would be refused as already_enrolled: by the recurrence once it is the same as the enrollment of T.")
	if r := b.RecordEvent("c1", "go").Results[0]; r.Reason != enrollment.AlreadyEnrolled {
		t.Fatalf("%+v", r)
	}
}
