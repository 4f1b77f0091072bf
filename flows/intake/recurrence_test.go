package intake_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
)

// A changed recurrence does not enroll all profiles again: earlier enrollments count as if
// the new recurrence had always applied.
func TestAnotherRecurrenceHonoursWhatWasEnrolled(t *testing.T) {
	b := setup(t, 0)
	monday := time.Date(2024, 11, 18, 10, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		before, after string
		first, second time.Duration // after monday
		one, two      string        // properties
		enrolled      bool
	}{
		"daily to once":                    {before: `"daily"`, after: `"once"`, second: 72 * time.Hour},
		"per event to once":                {before: `"per_event"`, after: `"once"`},
		"per event to daily, the same day": {before: `"per_event"`, after: `"daily"`, second: time.Hour},
		"per event to daily, another day":  {before: `"per_event"`, after: `"daily"`, second: 24 * time.Hour, enrolled: true},
		"once to daily, the same day":      {before: `"once"`, after: `"daily"`, second: time.Hour},
		"once to daily, another day":       {before: `"once"`, after: `"daily"`, second: 24 * time.Hour, enrolled: true},
		"daily to weekly, the same week":   {before: `"daily"`, after: `"weekly"`, second: 72 * time.Hour},
		"weekly to monthly, another week":  {before: `"weekly"`, after: `"monthly"`, second: 8 * 24 * time.Hour},
		"monthly to daily":                 {before: `"monthly"`, after: `"daily"`, second: 24 * time.Hour, enrolled: true},
		"once to per event":                {before: `"once"`, after: `"per_event"`, enrolled: true},
		"daily in UTC to daily in Kiritimati, same": {before: `"daily"`, after: `"daily","zone":"Pacific/Kiritimati"`, first: time.Hour,
			second: 23 * time.Hour},
		"and another day there": {before: `"daily"`, after: `"daily","zone":"Pacific/Kiritimati"`, first: -time.Hour,
			second: time.Hour, enrolled: true},
		"daily to daily in Los Angeles, another day there": {before: `"daily"`, after: `"daily","zone":"America/Los_Angeles"`,
			first: -8 * time.Hour, second: 10 * time.Hour, enrolled: true},
		"weekly to weekly in Los Angeles, another week there": {before: `"weekly"`, after: `"weekly","zone":"America/Los_Angeles"`,
			first: -8 * time.Hour, second: 10 * time.Hour, enrolled: true},
		"monthly in Los Angeles to monthly, another month in UTC": {before: `"monthly","zone":"America/Los_Angeles"`, after: `"monthly"`,
			first: 12*24*time.Hour + 20*time.Hour, second: 12 * 24 * time.Hour, enrolled: true},
		"fields in another order": {before: `"fields","fields":["a","b"]`, after: `"fields","fields":["b","a"]`,
			one: `{"a":1,"b":2}`, two: `{"b":2.0,"a":1}`},
		"fewer fields, the same value": {before: `"fields","fields":["a","b"]`, after: `"fields","fields":["a"]`,
			one: `{"a":1.50,"b":2}`, two: `{"a":15e-1}`},
		"fewer fields, another value": {before: `"fields","fields":["a","b"]`, after: `"fields","fields":["a"]`,
			one: `{"a":1,"b":2}`, two: `{"a":2,"b":2}`, enrolled: true},
		"more fields, the same values": {before: `"fields","fields":["a"]`, after: `"fields","fields":["a","b"]`,
			one: `{"a":1,"b":{"x":[1]}}`, two: `{"a":1,"b":{"x":[1.0]}}`},
		"more fields, other values": {before: `"fields","fields":["a"]`, after: `"fields","fields":["a","b"]`,
			one: `{"a":1,"b":2}`, two: `{"a":1,"b":3}`, enrolled: true},
		"per event to fields": {before: `"per_event"`, after: `"fields","fields":["a"]`, one: `{"a":"x"}`,
			two: `{"a":"x"}`},
		"per event to fields, none before": {before: `"per_event"`, after: `"fields","fields":["a"]`, one: `{}`,
			two: `{"a":"x"}`, enrolled: true},
		"fields to once": {before: `"fields","fields":["a"]`, after: `"once"`, one: `{"a":1}`, two: `{"a":2}`},
	} {
		event := strings.ReplaceAll(name, " ", "_")
		version := func(policy string) string {
			return strings.Replace(flowstest.Recurring(`{"policy":`+policy+`}`), `"go"`, `"`+event+`"`, 1)
		}
		flow := b.Live(version(c.before))
		record := func(profile string, after time.Duration, text string) intake.Result {
			if text == "" {
				text = "{}"
			}
			return b.RecordEvent(profile, event, flowstest.At(monday.Add(after)), flowstest.Properties(text)).Results[0]
		}
		first := record("c1", c.first, c.one)
		b.Settle()
		b.PublishNext(flow, version(c.after), flows.InFlight{})
		got := record("c1", c.second, c.two)
		if c.enrolled != (got.Outcome == enrollment.Enrolled) {
			t.Errorf("%s: %+v", name, got)
			continue
		}
		if !c.enrolled && (got.Reason != enrollment.AlreadyEnrolled || got.EnrollmentID == nil || *got.EnrollmentID != *first.EnrollmentID) {
			t.Errorf("%s: refused as %s because of %v, not %s", name, got.Reason, got.EnrollmentID, first.EnrollmentID)
		}
		if other := record("c2", c.second, c.two); other.Outcome != enrollment.Enrolled {
			t.Errorf("%s: another profile is refused: %+v", name, other)
		}
	}
	b.Invariants()
}

// An enrollment whose steps were dropped by their retention counts as of its own time.
func TestAnotherRecurrenceWithoutSteps(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.Recurring(`{"policy":"per_event"}`))
	b.RecordEvent("c1", "go")
	b.Settle()
	b.Exec(`delete from enrollment_steps`)
	b.Exec(`delete from events_out`) // which have one item for each step
	b.PublishNext(flow, flowstest.Recurring(`{"policy":"monthly"}`), flows.InFlight{})
	for profile, want := range map[string]string{"c1": enrollment.AlreadyEnrolled, "c2": ""} {
		if got := b.RecordEvent(profile, "go").Results[0]; got.Reason != want {
			t.Errorf("%s: %+v", profile, got)
		}
	}
}

// An enrollment whose steps were dropped cannot be compared by fields: its profile enrolls
// once more for the same values, of which validate warns, and not again.
func TestFieldsWithoutSteps(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.Recurring(`{"policy":"per_event"}`))
	order := flowstest.Properties(`{"order":"4711"}`)
	b.RecordEvent("c1", "go", order)
	b.Settle()
	b.Exec(`delete from enrollment_steps`)
	b.Exec(`delete from events_out`)
	fields := flowstest.Recurring(`{"policy":"fields","fields":["order"]}`)
	v, err := b.CreateVersion(bg, b.Workspace, flow, b.Definition(fields))
	b.Must(err)
	if got, err := b.Validate(bg, b.Workspace, flow, v.Version); err != nil ||
		!strings.Contains(strings.Join(got.Warnings, " "), "once more for the same values") {
		t.Errorf("%q, %v", got.Warnings, err)
	}
	b.Must(b.DeleteVersion(bg, b.Workspace, flow, v.Version, nil))
	b.PublishNext(flow, fields, flows.InFlight{})
	for i, want := range []string{"", enrollment.AlreadyEnrolled, enrollment.AlreadyEnrolled} {
		if got := b.RecordEvent("c1", "go", order).Results[0]; got.Reason != want {
			t.Errorf("event %d: %+v", i, got)
		}
		b.Settle()
	}
	b.WantCount(2, `select count(*) from enrollments where profile_key = 'c1'`)
}

// An active enrollment counts, one that was refused at the entry does not, and one of an
// erased profile does.
func TestCountsOfAnotherRecurrence(t *testing.T) {
	b := setup(t, 1)
	text := func(policy string) string {
		return strings.NewReplacer(`"triggers"`, `"audience_id":"$audience","triggers"`, `"event":"go"`,
			`"event":"go","condition":"profile.name == 'N1'"`).
			Replace(strings.Replace(flowstest.Recurring(`{"policy":"`+policy+`"}`), `"end":{"type":"exit"}`,
				`"end":{"type":"delay","for":"P1D","next":"out"},"out":{"type":"exit"}`, 1))
	}
	flow := b.Live(text("daily"))
	b.ExecDB(`insert into customers (id, name) values ('refused', 'x'), ('erased', 'N1')`)
	for _, profile := range []string{"c1", "refused", "erased"} {
		b.RecordEvent(profile, "go")
	}
	b.Settle()
	b.Must(flowstest.Second(b.Erase(bg, b.Workspace, "erased")))
	b.ExecDB(`update customers set name = 'N1'`)
	b.PublishNext(flow, text("once"), flows.InFlight{})
	for profile, want := range map[string]string{"c1": enrollment.AlreadyEnrolled, "refused": "", "erased": enrollment.AlreadyEnrolled} {
		got := b.RecordEvent(profile, "go").Results[0]
		if got.Reason != want || profile == "erased" && got.EnrollmentID != nil {
			t.Errorf("%s: %+v", profile, got)
		}
	}
	// After a rollback the day under the first recurrence is unchanged.
	b.Must(flowstest.Second(b.Rollback(bg, b.Workspace, flow, nil, nil, flows.InFlight{}, nil)))
	if got := b.RecordEvent("refused", "go").Results[0]; got.Reason != enrollment.AlreadyEnrolled {
		t.Errorf("%+v", got)
	}
}

// A trigger concurrent with the publish of another recurrence falls before or after it:
// one that enrolled before counts after.
func TestATriggerBesideAnotherRecurrence(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.Recurring(`{"policy":"per_event"}`))
	v, err := b.CreateVersion(bg, b.Workspace, flow, b.Definition(flowstest.Recurring(`{"policy":"once"}`)))
	b.Must(err)
	tx, done := b.holdTrigger(intake.Event{ProfileKey: "c1", Name: "go"})
	publishing := flowstest.Start(func() error {
		return flowstest.Second(b.Publish(bg, b.Workspace, flow, v.Version, nil, flows.InFlight{}, nil))
	})
	b.Until(0, publishing.Done)
	var two intake.Recorded
	reporting := flowstest.Start(func() (err error) {
		two, err = b.Record(bg, b.Workspace, intake.Event{ProfileKey: "c1", Name: "go"})
		return err
	})
	b.Until(1, reporting.Done)
	b.Must(tx.Commit(bg))
	<-publishing.Done
	<-reporting.Done
	b.Must(publishing.Err)
	b.Must(reporting.Err)
	if got := two.Results[0]; got.Reason != enrollment.AlreadyEnrolled || *got.EnrollmentID != *done[0].Results[0].EnrollmentID {
		t.Errorf("%+v", got)
	}
}

// The plan counts the profiles that the first poll of the audience then enrolls.
func TestThePlanCountsWhatTheAudienceWouldEnroll(t *testing.T) {
	b := setup(t, 7)
	text := func(policy, more string) string {
		return fmt.Sprintf(`{"audience_id":"$audience","triggers":[{"type":"audience","every":"PT1H"%s}],"recurrence":{"policy":"%s"},
			"start":"wait","nodes":{
			"wait":{"type":"delay","for":"PT1H","next":"end"},"end":{"type":"exit"}}}`, more, policy)
	}
	flow := b.Live(text("daily", `,"condition":"profile.country == 'DE'"`)) // three of seven
	if n := b.PollFlow(flow); n != 3 {
		t.Fatalf("%d are enrolled", n)
	}
	b.Settle()
	b.Pass(2 * time.Hour)
	b.Settle()
	b.ExecDB(`insert into customers (id, country) values ('', 'DE')`) // no usable key
	for _, c := range []struct {
		policy, more string
		want         int
	}{{"once", "", 4}, {"once", `,"condition":"profile.country == 'DE'"`, 0}, {"weekly", "", 0}} {
		v, err := b.CreateVersion(bg, b.Workspace, flow, b.Definition(text(c.policy, c.more)))
		b.Must(err)
		plan, err := b.Plan(bg, b.Workspace, flow, v.Version, flows.InFlight{})
		b.Must(err)
		_, err = b.Publish(bg, b.Workspace, flow, v.Version, nil, flows.InFlight{}, nil)
		b.Must(err)
		if n := b.PollFlow(flow); plan.Enrolls == nil || n != int(*plan.Enrolls) || n != c.want {
			t.Errorf("%+v: %d are enrolled, the plan has %v", c, n, plan.Enrolls)
		}
	}
	// A source that does not answer does not fail the plan.
	b.ExecDB(`alter table customers rename to gone`)
	v, err := b.CreateVersion(bg, b.Workspace, flow, b.Definition(text("monthly", "")))
	b.Must(err)
	if plan, err := b.Plan(bg, b.Workspace, flow, v.Version, flows.InFlight{}); err != nil || plan.Enrolls != nil || plan.Unknown == "" {
		t.Errorf("%+v, %v", plan, err)
	}
}

func TestRecurrenceWarnings(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.Recurring(`{"policy":"fields","fields":["a","b"]}`))
	for recurrence, warned := range map[string]bool{
		`{"policy":"fields","fields":["b","a"]}`: false, `{"policy":"fields","fields":["a"]}`: true, `{"policy":"once"}`: true,
	} {
		v, err := b.CreateVersion(bg, b.Workspace, flow, b.Definition(flowstest.Recurring(recurrence)))
		b.Must(err)
		got, err := b.Validate(bg, b.Workspace, flow, v.Version)
		b.Must(err)
		if warned != strings.Contains(strings.Join(got.Warnings, " "), "recurrence differs") {
			t.Errorf("%s: %q", recurrence, got.Warnings)
		}
	}
}

// The events of a profile in one transaction are compared with its earlier enrollments, the newest ones, which
// are read once.
func TestATriggerIsComparedWithTheNewest(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.Recurring(`{"policy":"per_event"}`))
	order := flowstest.Properties(`{"order":"4711"}`)
	first := b.RecordEvent("c1", "go", order).Results[0]
	b.Settle()
	b.PublishNext(flow, flowstest.Recurring(`{"policy":"fields","fields":["order"]}`), flows.InFlight{})
	newer := func(n int) {
		b.Exec(`insert into enrollments (workspace_id, id, flow_id, version, shard, uniqueness_key, overlap_key, profile_key, status, node,
				source, enrolled_at, ended_at)
			select workspace_id, gen_random_uuid(), flow_id, version, shard, gen_random_uuid(), gen_random_uuid(), profile_key, status, node,
				'direct', enrolled_at + i * interval '1 microsecond', ended_at
			from enrollments, generate_series(1, $2::int) i where id = $1`, *first.EnrollmentID, n)
	}
	again := make([]intake.Event, 3)
	for i := range again {
		again[i] = intake.Event{ProfileKey: "c1", Name: "go", Properties: []byte(`{"order":"4711"}`)}
	}
	newer(intake.MostCompared - 1)
	n, seen := b.Traced(flow)
	reads := 0
	seen.Stop = func(sql string) {
		if strings.Contains(sql, "order by enrolled_at desc") {
			reads++
		}
	}
	all, err := n.RecordAll(bg, b.Workspace, again)
	b.Must(err)
	for i, r := range all {
		if got := r.Results[0]; got.Reason != enrollment.AlreadyEnrolled || got.EnrollmentID == nil || *got.EnrollmentID != *first.EnrollmentID {
			t.Errorf("event %d: %+v", i, got)
		}
	}
	if reads != 1 {
		t.Errorf("the earlier enrollments were read %d times", reads)
	}
	if counted := flowstest.Counted(n.Metrics.Compared); counted != 1 {
		t.Errorf("%v comparisons are limited", counted)
	}
	newer(1)
	if got := b.RecordEvent("c1", "go", order).Results[0]; got.Outcome != enrollment.Enrolled {
		t.Errorf("beyond the newest: %+v", got)
	}
	b.Exec(`delete from enrollments where source = 'direct'`) // which are in no count
}
