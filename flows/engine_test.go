package flows_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/flows/enrollment"
	"lemma/flows/execution"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
	"lemma/pgtest"
)

// A trigger enrolls, the first message is written, the enrollment waits, and the second
// message is written afterwards.
func TestAnEnrollmentFromTriggerToEnd(t *testing.T) {
	b := setup(t, 3)
	flow := b.Live(flowstest.Welcome)
	r := b.RecordEvent("c1", "signed_up", flowstest.WithID("e1"))
	if len(r.Results) != 1 || r.Results[0].Outcome != enrollment.Enrolled {
		t.Fatalf("%+v", r)
	}
	b.Settle()
	e := b.Enrollment(flow, "c1")
	if e.Node != "wait" || e.Status != "waiting" || b.Notifications() != 1 {
		t.Fatalf("%+v, %d notifications", e, b.Notifications())
	}
	if left := time.Until(*e.ResumeAt); left < 71*time.Hour || left > 72*time.Hour {
		t.Fatalf("it waits for %s", left)
	}
	b.Settle()
	if b.Notifications() != 1 {
		t.Fatal("it did not wait")
	}
	b.Pass(72 * time.Hour)
	b.Settle()
	if e = b.Enrollment(flow, "c1"); e.Status != enrollment.Completed || e.Node != "end" || b.Notifications() != 2 {
		t.Fatalf("%+v, %d notifications", e, b.Notifications())
	}
	if got, want := b.Trace(e.ID), "enrolled@ checked@ sent@hello resumed@wait sent@nudge completed@end"; got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	b.WantCount(2, `select count(*) from batches where workspace_id = $1 and size = 1`, b.Workspace)
	b.WantCount(2, `select count(*) from notification_status where workspace_id = $1 and flow_id = $2 and enrollment_id = $3
		and node in ('hello', 'nudge')`, b.Workspace, flow, e.ID)
}

// A repeated event counts once: one by one, in one bulk, and concurrently.
func TestAnEventIsRecordedOnce(t *testing.T) {
	b := setup(t, 3)
	flow := b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up", flowstest.WithID("e1"))
	if r := b.RecordEvent("c1", "signed_up", flowstest.WithID("e1")); !r.Duplicate || len(r.Results) != 0 {
		t.Fatalf("%+v", r)
	}
	all, err := b.RecordAll(context.Background(), b.Workspace,
		[]intake.Event{{ProfileKey: "c2", Name: "signed_up", ID: "e2"}, {ProfileKey: "c2", Name: "signed_up", ID: "e2"}})
	b.Must(err)
	if all[0].Duplicate || !all[1].Duplicate || len(all[0].Results) != 1 {
		t.Fatalf("%+v", all)
	}
	_, err = b.RecordAll(context.Background(), b.Workspace, []intake.Event{{ProfileKey: "x1", Name: "z"}, {ProfileKey: "x2", Name: "a"},
		{ProfileKey: "x3", Name: "m"}, {ProfileKey: "x4", Name: "a"}})
	b.Must(err)
	for profile, want := range map[string]string{"x1": "z", "x2": "a", "x3": "m", "x4": "a"} {
		b.WantCount(1, `delete from trigger_events where workspace_id = $1 and profile_key = $2 and name = $3 returning 1`, b.Workspace, profile,
			want)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			_, _ = b.Record(context.Background(), b.Workspace, intake.Event{ProfileKey: "c3", Name: "signed_up", ID: "e3"})
		})
	}
	wg.Wait()
	b.WantCount(3, `select count(*) from trigger_events where workspace_id = $1`, b.Workspace)
	b.WantCount(3, `select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, b.Workspace, flow)
	b.WantCount(0, `select count(*) from refusals where workspace_id = $1`, b.Workspace)
}

// Every trigger that does not enroll is recorded with its reason and the conflicting
// enrollment.
func TestRefusalsHaveReasons(t *testing.T) {
	b := setup(t, 9)
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"order",
		"condition":"trigger.properties.total > 10.0 && profile.country == 'DE'"}],
		"recurrence":{"policy":"fields","fields":["order_id"]},"start":"wait","nodes":{"wait":{"type":"delay","for":"P1D","next":"end"},
			"end":{"type":"exit"}}}`)
	plain := b.Live(`{"triggers":[{"type":"event","event":"order","condition":"trigger.properties.total > 10.0"}],
		"recurrence":{"policy":"once"},
		"start":"wait","nodes":{"wait":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`)
	of := func(r intake.Recorded, flow uuid.UUID) intake.Result {
		for _, one := range r.Results {
			if one.FlowID == flow {
				return one
			}
		}
		return intake.Result{}
	}
	rich := flowstest.Properties(`{"total":11,"order_id":"o1"}`)
	if r := of(b.RecordEvent("c2", "order", rich), plain); r.Outcome != enrollment.Enrolled {
		t.Fatalf("%+v", r)
	}
	first := b.Enrollment(plain, "c2").ID
	if r := of(b.RecordEvent("c2", "order", rich),
		plain); r.Reason != enrollment.AlreadyEnrolled || r.EnrollmentID == nil || *r.EnrollmentID != first {
		t.Fatalf("%+v", r)
	}
	if r := of(b.RecordEvent("c2", "order", flowstest.Properties(`{"total":11,"order_id":"o2"}`)),
		flow); r.Reason != enrollment.AlreadyActive || r.EnrollmentID == nil {
		t.Fatalf("%+v", r)
	}
	if r := of(b.RecordEvent("c4", "order", flowstest.Properties(`{"total":9}`)), plain); r.Reason != enrollment.Filtered {
		t.Fatalf("%+v", r)
	}
	if r := of(b.RecordEvent("c4", "order", flowstest.Properties(`{"total":"many"}`)), plain); r.Reason != enrollment.ConditionError {
		t.Fatalf("%+v", r)
	}
	if r := of(b.RecordEvent("c4", "order", flowstest.Properties(`{"total":12}`)), flow); r.Reason != enrollment.MissingField {
		t.Fatalf("%+v", r)
	}
	// Conditions on the profile are evaluated at the entry, and a refusal releases the key.
	if r := of(b.RecordEvent("c3", "order", rich), flow); r.Outcome != enrollment.Enrolled {
		t.Fatalf("%+v", r)
	}
	b.Settle()
	if e := b.Enrollment(flow, "c3"); e.Status != enrollment.Refused || e.ExitReason != enrollment.Filtered {
		t.Fatalf("%+v", e)
	}
	b.ExecDB(`update customers set country = 'DE' where id = 'c3'`)
	if r := of(b.RecordEvent("c3", "order", rich), flow); r.Outcome != enrollment.Enrolled {
		t.Fatalf("the key of a refused enrollment is not free: %+v", r)
	}
	if _, err := b.Pause(context.Background(), b.Workspace, plain, nil); err != nil {
		t.Fatal(err)
	}
	if r := of(b.RecordEvent("c8", "order", rich), plain); r.Reason != enrollment.IsPaused {
		t.Fatalf("%+v", r)
	}
	for reason, want := range map[string]int{enrollment.AlreadyEnrolled: 2, enrollment.AlreadyActive: 1, enrollment.Filtered: 2,
		enrollment.ConditionError: 1, enrollment.MissingField: 2, enrollment.IsPaused: 1} {
		if n := b.Count(`select count(*) from refusals where workspace_id = $1 and reason = $2`, b.Workspace, reason); n < 1 {
			t.Errorf("%d refusals are %s, about %d were expected", n, reason, want)
		}
	}
}

// A profile that is not in the audience is looked up a few times, since an event may
// arrive before the row, and then refused.
func TestNoProfile(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(flowstest.Welcome)
	b.RecordEvent("ghost", "signed_up")
	b.RecordEvent("late", "signed_up")
	b.Settle()
	if e := b.Enrollment(flow, "ghost"); e.Status != enrollment.Active || e.BlockedReason != "no_profile" {
		t.Fatalf("%+v", e)
	}
	b.ExecDB(`insert into customers (id, email, name) values ('late', 'late@shop.example', 'L')`)
	for range execution.MaxLookups {
		b.Pass(time.Hour)
		b.Settle()
	}
	if e := b.Enrollment(flow, "ghost"); e.Status != enrollment.Refused || e.ExitReason != enrollment.NoProfile {
		t.Fatalf("%+v", e)
	}
	if e := b.Enrollment(flow, "late"); e.Node != "wait" {
		t.Fatalf("%+v", e)
	}
	b.WantCount(1, `select count(*) from refusals where workspace_id = $1 and reason = 'no_profile'`, b.Workspace)
}

// A source that is down delays only the enrollments that need it.
func TestASourceThatIsDownDelaysItsOwn(t *testing.T) {
	b := setup(t, 3)
	needy := b.Live(flowstest.Welcome)
	other := b.Live(`{"triggers":[{"type":"event","event":"signed_up"}],"recurrence":{"policy":"once"},"start":"wait",
		"nodes":{"wait":{"type":"delay","for":"PT1H","next":"end"},"end":{"type":"exit"}}}`)
	b.ExecDB(`alter table customers rename to gone`)
	b.RecordEvent("c1", "signed_up")
	for range 5 {
		_, err := b.RunOnce(context.Background())
		b.Must(err)
	}
	if e := b.Enrollment(other, "c1"); e.Status != "waiting" {
		t.Fatalf("%+v", e)
	}
	e := b.Enrollment(needy, "c1")
	if e.Node != "" || e.BlockedReason == "" || e.Failures == 0 {
		t.Fatalf("%+v", e)
	}
	b.ExecDB(`alter table gone rename to customers`)
	b.Pass(time.Hour)
	b.Settle()
	if e := b.Enrollment(needy, "c1"); e.Node != "wait" || e.BlockedReason != "" {
		t.Fatalf("%+v", e)
	}
}

// Skipped profiles advance, with the reason; a profile that has left the audience exits.
func TestProfilesThatCannotBeSentTo(t *testing.T) {
	b := setup(t, 4)
	flow := b.Live(flowstest.Welcome)
	b.ExecDB(`update customers set opted_out = true where id = 'c1'`)
	b.ExecDB(`update customers set email = ' ' where id = 'c2'`)
	for i := 1; i <= 4; i++ {
		b.RecordEvent(fmt.Sprintf("c%d", i), "signed_up")
	}
	b.Settle()
	b.ExecDB(`delete from customers where id = 'c4'`)
	b.Pass(72 * time.Hour)
	b.Settle()
	for profile, want := range map[string]string{
		"c1": "enrolled@ checked@ skipped@hello resumed@wait skipped@nudge completed@end",
		"c2": "enrolled@ checked@ skipped@hello resumed@wait skipped@nudge completed@end",
		"c3": "enrolled@ checked@ sent@hello resumed@wait sent@nudge completed@end",
		"c4": "enrolled@ checked@ sent@hello resumed@wait exited@nudge",
	} {
		if got := b.Trace(b.Enrollment(flow, profile).ID); got != want {
			t.Errorf("%s: %s", profile, got)
		}
	}
	if e := b.Enrollment(flow, "c4"); e.ExitReason != enrollment.ExitNoProfile {
		t.Fatalf("%+v", e)
	}
	b.WantCount(4, `select count(*) from notifications where workspace_id = $1
		and skip_reason in ('unsubscribed', 'missing_address')`, b.Workspace)
}

// The trigger's data reaches the template; no other data of the profile is stored.
func TestTemplatesSeeTheTrigger(t *testing.T) {
	b := setup(t, 1)
	tpl, err := b.Deps.Templates.Create(context.Background(), b.Workspace,
		flowstest.NewTemplate("{{ name }}: {{ trigger.properties.item }}"))
	b.Must(err)
	b.Template = tpl.ID
	b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up", flowstest.Properties(`{"item":"hat"}`))
	b.Settle()
	payload := pgtest.One[string](b.T, b.Pool, `select payload from notifications where workspace_id = $1`, b.Workspace)
	var data map[string]any
	b.Must(json.Unmarshal([]byte(payload), &data))
	if data["name"] != "N1" || data["country"] != nil || data["trigger"].(map[string]any)["properties"].(map[string]any)["item"] != "hat" {
		t.Fatal(payload)
	}
}
