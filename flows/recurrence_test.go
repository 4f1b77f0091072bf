package flows

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

func recurring(recurrence string) string {
	return strings.Replace(`{"triggers":[{"type":"event","event":"go"}],"recurrence":R,"start":"end","nodes":{"end":{"type":"exit"}}}`, "R", recurrence, 1)
}

// Another recurrence is another rule, and not a reason to enroll everybody
// again: what a profile was enrolled for before counts under the new rule as if
// it had always held.
func TestAnotherRecurrenceHonoursWhatWasEnrolled(t *testing.T) {
	b := setup(t, 0)
	monday := time.Date(2024, 11, 18, 10, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		before, after string
		first, second time.Duration // after monday
		one, two      string        // properties
		enrolled      bool
	}{
		"daily to once":                             {before: `"daily"`, after: `"once"`, second: 72 * time.Hour},
		"per event to once":                         {before: `"per_event"`, after: `"once"`},
		"per event to daily, the same day":          {before: `"per_event"`, after: `"daily"`, second: time.Hour},
		"per event to daily, another day":           {before: `"per_event"`, after: `"daily"`, second: 24 * time.Hour, enrolled: true},
		"once to daily, the same day":               {before: `"once"`, after: `"daily"`, second: time.Hour},
		"once to daily, another day":                {before: `"once"`, after: `"daily"`, second: 24 * time.Hour, enrolled: true},
		"daily to weekly, the same week":            {before: `"daily"`, after: `"weekly"`, second: 72 * time.Hour},
		"weekly to monthly, another week":           {before: `"weekly"`, after: `"monthly"`, second: 8 * 24 * time.Hour},
		"monthly to daily":                          {before: `"monthly"`, after: `"daily"`, second: 24 * time.Hour, enrolled: true},
		"once to per event":                         {before: `"once"`, after: `"per_event"`, enrolled: true},
		"daily in UTC to daily in Kiritimati, same": {before: `"daily"`, after: `"daily","zone":"Pacific/Kiritimati"`, first: time.Hour, second: 23 * time.Hour},
		"and another day there":                     {before: `"daily"`, after: `"daily","zone":"Pacific/Kiritimati"`, first: -time.Hour, second: time.Hour, enrolled: true},
		"fields in another order":                   {before: `"fields","fields":["a","b"]`, after: `"fields","fields":["b","a"]`, one: `{"a":1,"b":2}`, two: `{"b":2.0,"a":1}`},
		"fewer fields, the same value":              {before: `"fields","fields":["a","b"]`, after: `"fields","fields":["a"]`, one: `{"a":1.50,"b":2}`, two: `{"a":15e-1}`},
		"fewer fields, another value":               {before: `"fields","fields":["a","b"]`, after: `"fields","fields":["a"]`, one: `{"a":1,"b":2}`, two: `{"a":2,"b":2}`, enrolled: true},
		"more fields, the same values":              {before: `"fields","fields":["a"]`, after: `"fields","fields":["a","b"]`, one: `{"a":1,"b":{"x":[1]}}`, two: `{"a":1,"b":{"x":[1.0]}}`},
		"more fields, other values":                 {before: `"fields","fields":["a"]`, after: `"fields","fields":["a","b"]`, one: `{"a":1,"b":2}`, two: `{"a":1,"b":3}`, enrolled: true},
		"per event to fields":                       {before: `"per_event"`, after: `"fields","fields":["a"]`, one: `{"a":"x"}`, two: `{"a":"x"}`},
		"per event to fields, none before":          {before: `"per_event"`, after: `"fields","fields":["a"]`, one: `{}`, two: `{"a":"x"}`, enrolled: true},
		"fields to once":                            {before: `"fields","fields":["a"]`, after: `"once"`, one: `{"a":1}`, two: `{"a":2}`},
	} {
		event := strings.ReplaceAll(name, " ", "_")
		version := func(policy string) string {
			return strings.Replace(recurring(`{"policy":`+policy+`}`), `"go"`, `"`+event+`"`, 1)
		}
		flow := b.live(version(c.before))
		tell := func(profile string, after time.Duration, text string) Result {
			if text == "" {
				text = "{}"
			}
			return b.tell(profile, event, at(monday.Add(after)), properties(text)).Results[0]
		}
		first := tell("c1", c.first, c.one)
		b.settleDown()
		b.publish(flow, version(c.after), InFlight{})
		got := tell("c1", c.second, c.two)
		if c.enrolled != (got.Outcome == Enrolled) {
			t.Errorf("%s: %+v", name, got)
			continue
		}
		if !c.enrolled && (got.Reason != AlreadyEnrolled || got.EnrollmentID == nil || *got.EnrollmentID != *first.EnrollmentID) {
			t.Errorf("%s: refused as %s because of %v, not %s", name, got.Reason, got.EnrollmentID, first.EnrollmentID)
		}
		if other := tell("c2", c.second, c.two); other.Outcome != Enrolled {
			t.Errorf("%s: somebody else is refused: %+v", name, other)
		}
	}
	b.invariants()
}

// Who is on the way counts, who was refused at the entry does not, and who was
// erased was enrolled all the same.
func TestWhomAnotherRecurrenceCounts(t *testing.T) {
	b := setup(t, 1)
	text := func(policy string) string {
		return strings.NewReplacer(`"triggers"`, `"audience_id":"$audience","triggers"`, `"event":"go"`, `"event":"go","condition":"profile.name == 'N1'"`).
			Replace(strings.Replace(recurring(`{"policy":"`+policy+`"}`), `"end":{"type":"exit"}`, `"end":{"type":"delay","for":"P1D","next":"out"},"out":{"type":"exit"}`, 1))
	}
	flow := b.live(text("daily"))
	b.run(b.shop, `insert into customers (id, name) values ('refused', 'x'), ('erased', 'N1')`)
	for _, profile := range []string{"c1", "refused", "erased"} {
		b.tell(profile, "go")
	}
	b.settleDown()
	b.must(second(b.Erase(bg, b.ws, "erased")))
	b.run(b.shop, `update customers set name = 'N1'`)
	b.publish(flow, text("once"), InFlight{})
	for profile, want := range map[string]string{"c1": AlreadyEnrolled, "refused": "", "erased": AlreadyEnrolled} {
		got := b.tell(profile, "go").Results[0]
		if got.Reason != want || profile == "erased" && got.EnrollmentID != nil {
			t.Errorf("%s: %+v", profile, got)
		}
	}
	// Back again: the day under the first rule is the day it was.
	b.must(second(b.Rollback(bg, b.ws, flow, nil, nil, InFlight{}, nil)))
	if got := b.tell("refused", "go").Results[0]; got.Reason != AlreadyEnrolled {
		t.Errorf("%+v", got)
	}
}

// A trigger beside the publish of another recurrence falls before it or after
// it: one that enrolled before counts after.
func TestATriggerBesideAnotherRecurrence(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(recurring(`{"policy":"per_event"}`))
	v, err := b.CreateVersion(bg, b.ws, flow, b.definition(recurring(`{"policy":"once"}`)))
	b.must(err)
	tx, done := b.holdTrigger(Event{ProfileKey: "c1", Name: "go"})
	publishing := start(func() error { return second(b.Publish(bg, b.ws, flow, v.Version, nil, InFlight{}, nil)) })
	b.until(0, publishing.done)
	var two Recorded
	telling := start(func() (err error) { two, err = b.Record(bg, b.ws, Event{ProfileKey: "c1", Name: "go"}); return err })
	b.until(1, telling.done)
	b.must(tx.Commit(bg))
	<-publishing.done
	<-telling.done
	b.must(publishing.err)
	b.must(telling.err)
	if got := two.Results[0]; got.Reason != AlreadyEnrolled || *got.EnrollmentID != *done[0].Results[0].EnrollmentID {
		t.Errorf("%+v", got)
	}
}

// lookOnce looks at the audience of a flow once.
func (b *bundle) lookOnce(flow uuid.UUID) int {
	b.t.Helper()
	before := b.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, flow)
	b.run(b.pool, `update flow_polls set next_at = now() where flow_id = $1`, flow)
	b.must(b.Tick(bg))
	b.polls.running.Wait()
	return b.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, flow) - before
}

// What the first look at the audience would enroll is told before, and is so.
func TestThePlanTellsWhomTheAudienceWouldEnroll(t *testing.T) {
	b := setup(t, 7)
	text := func(policy, more string) string {
		return fmt.Sprintf(`{"audience_id":"$audience","triggers":[{"type":"audience","every":"PT1H"%s}],"recurrence":{"policy":"%s"},"start":"wait","nodes":{
			"wait":{"type":"delay","for":"PT1H","next":"end"},"end":{"type":"exit"}}}`, more, policy)
	}
	flow := b.live(text("daily", `,"condition":"profile.country == 'DE'"`)) // three of seven
	if n := b.lookOnce(flow); n != 3 {
		t.Fatalf("%d are enrolled", n)
	}
	b.settleDown()
	b.pass(2 * time.Hour)
	b.settleDown()
	b.run(b.shop, `insert into customers (id, country) values ('', 'DE')`) // no key: nobody's
	for _, c := range []struct {
		policy, more string
		want         int
	}{{"once", "", 4}, {"once", `,"condition":"profile.country == 'DE'"`, 0}, {"weekly", "", 0}} {
		v, err := b.CreateVersion(bg, b.ws, flow, b.definition(text(c.policy, c.more)))
		b.must(err)
		plan, err := b.Plan(bg, b.ws, flow, v.Version, InFlight{})
		b.must(err)
		_, err = b.Publish(bg, b.ws, flow, v.Version, nil, InFlight{}, nil)
		b.must(err)
		if n := b.lookOnce(flow); plan.Enrolls == nil || n != int(*plan.Enrolls) || n != c.want {
			t.Errorf("%+v: %d are enrolled, the plan said %v", c, n, plan.Enrolls)
		}
	}
	// A source that does not answer leaves the plan a plan.
	b.run(b.shop, `alter table customers rename to gone`)
	v, err := b.CreateVersion(bg, b.ws, flow, b.definition(text("monthly", "")))
	b.must(err)
	if plan, err := b.Plan(bg, b.ws, flow, v.Version, InFlight{}); err != nil || plan.Enrolls != nil || plan.Unknown == "" {
		t.Errorf("%+v, %v", plan, err)
	}
}

func TestRecurrenceWarnings(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(recurring(`{"policy":"fields","fields":["a","b"]}`))
	for recurrence, warned := range map[string]bool{
		`{"policy":"fields","fields":["b","a"]}`: false, `{"policy":"fields","fields":["a"]}`: true, `{"policy":"once"}`: true,
	} {
		v, err := b.CreateVersion(bg, b.ws, flow, b.definition(recurring(recurrence)))
		b.must(err)
		got, err := b.Validate(bg, b.ws, flow, v.Version)
		b.must(err)
		if warned != strings.Contains(strings.Join(got.Warnings, " "), "recurrence differs") {
			t.Errorf("%s: %q", recurrence, got.Warnings)
		}
	}
}
