package query_test

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/query"
)

var clockTimes = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC`)

// why is the summary of an explanation, with T for every time.
func (b *bundle) why(flow uuid.UUID, profile string) (string, query.Explanation) {
	b.T.Helper()
	e, err := b.Explain(context.Background(), b.Workspace, flow, profile)
	b.Must(err)
	return clockTimes.ReplaceAllString(e.Summary, "T"), e
}

func (b *bundle) whyIs(flow uuid.UUID, profile, want string, facts ...string) {
	b.T.Helper()
	got, e := b.why(flow, profile)
	if got != want {
		b.T.Errorf("got  %s\nwant %s", got, want)
	}
	all := clockTimes.ReplaceAllString(strings.Join(e.Facts, "\n"), "T")
	for _, fact := range facts {
		if !strings.Contains(all, fact) {
			b.T.Errorf("missing fact: %s\n%s", fact, all)
		}
	}
}

// Each reason why a profile is not enrolled has its sentence.
func TestExplain(t *testing.T) {
	b := setup(t, 9)
	ctx := context.Background()
	draft := b.NewDraft(flowstest.Welcome).ID
	b.whyIs(draft, "c1", "The profile is not enrolled: nothing of this flow was published yet.", "The flow is a draft")

	flow := b.Live(flowstest.Welcome)
	b.whyIs(flow, "c1", "The profile is not enrolled: no event that triggers the flow was recorded of it.", "live, with version 1",
		"The profile is in the audience.",
		"The event signed_up enrolls.", "No event named signed_up is kept of the profile; events are kept for 30 days.", "never enrolled",
		"The event signed_up now would enroll the profile.")
	b.whyIs(flow, "missing", "The profile is not enrolled: it is not in the audience.", "there is no row with this key",
		"would be refused as no_profile")

	b.RecordEvent("c1", "signed_up")
	b.whyIs(flow, "c1", "The profile is enrolled: enrolled at T in version 1, it has not entered yet and is due.")
	b.Settle()
	b.whyIs(flow, "c1", "The profile is enrolled: enrolled at T in version 1, it is at the node wait and waits until T.",
		"1 event named signed_up is kept of the profile; the last, signed_up, happened at T.",
		"would be refused as already_enrolled: by the recurrence once")
	b.RecordEvent("c1", "signed_up")
	b.Pass(80 * time.Hour)
	b.Settle()
	_, e := b.why(flow, "c1")
	if len(e.Enrollments) != 1 || len(e.Refusals) != 1 || len(e.Events) != 2 {
		t.Fatalf("%+v", e)
	}
	b.whyIs(flow, "c1", "The profile is not enrolled: its last enrollment was completed at T, and the trigger of T was refused as "+
		"already_enrolled (the recurrence of the flow lets this profile enroll no more for now).",
		"Triggers of the profile were refused: 1 as already_enrolled; the last at T.")

	b.Must(flowstest.Second(b.Pause(ctx, b.Workspace, flow, nil)))
	b.RecordEvent("c2", "signed_up")
	b.whyIs(flow, "c2", "The profile is not enrolled: the trigger of T was refused as paused (the flow is paused).", "The flow is paused",
		"A trigger now would be refused as paused.")
	b.whyIs(flow, "c3", "The profile is not enrolled: the flow is paused, and no trigger was recorded before.")
	b.Must(flowstest.Second(b.Archive(ctx, b.Workspace, flow, nil)))
	b.whyIs(flow, "c3", "The profile is not enrolled: the flow is archived, and no trigger was recorded before.", "The flow is archived",
		"refused as not_live")
}

// Conditions are evaluated now: those on the profile with the current profile, those on
// the trigger with its last event.
func TestExplainConditions(t *testing.T) {
	b := setup(t, 4)
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"order",
		"condition":"trigger.properties.total > 10.0 && profile.country == 'DE'"},
		{"type":"audience","every":"PT5M","condition":"profile.name\n == 'N2'"}],
		"recurrence":{"policy":"once"},"start":"wait","nodes":{"wait":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`)
	b.whyIs(flow, "c1", "The profile is not enrolled: the trigger on the audience would refuse it as filtered.",
		"The event order enrolls, if trigger.properties.total > 10.0 && profile.country == 'DE'.",
		"The audience is polled every 5m0s, and its profiles enroll, if profile.name == 'N2'.",
		"The event order now would be decided by its condition, which cannot be evaluated without more data.",
		"The next poll of the audience would be refused as filtered: its condition is false.")
	b.whyIs(flow, "c2", "The profile is not enrolled: the audience was not polled since it is in it.",
		"The next poll of the audience would enroll the profile.")
	b.RecordEvent("c1", "order", flowstest.Properties(`{"total": 20}`))
	b.Settle()
	b.whyIs(flow, "c1", "The profile is not enrolled: the trigger of T was refused as filtered (the trigger's condition is false).",
		"The event order now, like its last one, would be refused as filtered: its condition is false.", "was refused when it entered")
	b.ExecDB(`update customers set country = 'DE' where id = 'c1'`)
	b.whyIs(flow, "c1", "The profile is not enrolled: the trigger of T was refused as filtered (the trigger's condition is false).",
		"The event order now, like its last one, would enroll the profile.")
}

// The explanation shows what blocks an enrollment, and a source that does not answer.
func TestExplainBlocked(t *testing.T) {
	b := setup(t, 2, func(c *flows.Config) { c.BackOff, c.MaxBackOff = time.Hour, time.Hour })
	flow := b.Live(flowstest.Welcome)
	b.ExecDB(`alter table customers rename to gone`)
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	b.whyIs(flow, "c1",
		"The profile is enrolled: enrolled at T in version 1, it has not entered yet and is blocked by source_changed until T.",
		"is not known: it cannot be read (source_changed: ")
	b.whyIs(flow, "c2", "The profile is not enrolled: no event that triggers the flow was recorded of it.", "is not known")
}

// An event before the first publish did not enroll, and the explanation names that.
func TestExplainAnEarlyEvent(t *testing.T) {
	b := setup(t, 1)
	b.RecordEvent("c1", "signed_up")
	flow := b.Live(flowstest.Welcome)
	b.whyIs(flow, "c1", "The profile is not enrolled: its last event signed_up came at T, before version 1 was published.")
	without := b.Live(`{"triggers":[],"recurrence":{"policy":"once"},"start":"end","nodes":{"end":{"type":"exit"}}}`)
	b.whyIs(without, "c1", "The profile is not enrolled: the flow has no trigger, and no direct request enrolled the profile.",
		"The version reads no profile, so it needs no audience.", "profiles enroll only by direct request", "No event enrolls")
}

func TestExplainBadInput(t *testing.T) {
	b := setup(t, 0)
	flow := b.NewDraft(flowstest.Minimal).ID
	b.Wants(lemma.NotFound, flowstest.Second(b.Explain(context.Background(), b.Workspace, lemma.NewID(), "c1")))
	for _, key := range []string{"", "a\x00", "\xff", strings.Repeat("k", 256)} {
		if e := b.Wants(lemma.Invalid, flowstest.Second(b.Explain(context.Background(), b.Workspace, flow,
			key))); flowstest.Pointers(e) != "?profile_key invalid_key" {
			t.Errorf("%q: %s", key, flowstest.Pointers(e))
		}
	}
	before := b.RowCounts()
	b.why(flow, "c1")
	if d := cmp.Diff(before, b.RowCounts()); d != "" {
		t.Errorf("an explanation leaves traces: %s", d)
	}
}

// Of an erased profile only the recurrence is reported.
func TestExplainAnErasedProfile(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(flowstest.HourAfter("hi"))
	b.RecordEvent("c1", "hi")
	b.Settle()
	b.Must(flowstest.Second(b.Erase(bg, b.Workspace, "c1")))
	b.whyIs(flow, "c1", "The profile is not enrolled: a profile with this key was erased.",
		"A profile with this key was enrolled and has been erased.",
		"A trigger now would be refused as already_enrolled: by the recurrence once it is the same as the enrollment of an erased profile.")
	if r := b.RecordEvent("c1", "hi").Results[0]; r.Reason != enrollment.AlreadyEnrolled || r.EnrollmentID != nil {
		t.Errorf("the enrollment of an erased profile is shown: %+v", r)
	}
}
