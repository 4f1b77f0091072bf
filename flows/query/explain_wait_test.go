package query_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/flows/flowstest"
)

const waitsForAPurchase = `{"triggers":[{"type":"event","event":"cart"}],"recurrence":{"policy":"once"},"start":"buy","nodes":{
	"buy":{"type":"wait_for_event","event":"bought","timeout":"PT1H","next":"end","on_timeout":"end"},"end":{"type":"exit"}}}`

// awaits is what the list and the enrollment itself show, which must agree.
func (b *bundle) awaits(flow uuid.UUID, profile string) string {
	b.T.Helper()
	listed := b.Enrollment(flow, profile)
	read, err := b.GetEnrollment(bg, b.Workspace, listed.ID)
	b.Must(err)
	if read.Awaits != listed.Awaits {
		b.T.Errorf("%s awaits %q, and %q in the list", profile, read.Awaits, listed.Awaits)
	}
	return listed.Awaits
}

// The event of c1 comes in a pause, the time of c2 passes in it, and c3 goes on
// waiting. Neither c1 nor c2 waits any more, in the pause and in the release after it.
func TestExplainAWaitThatEndedInAPause(t *testing.T) {
	b := setup(t, 3)
	flow := b.Live(waitsForAPurchase)
	b.RecordOfAll(3, "cart")
	b.Settle()
	b.Must(flowstest.Second(b.Pause(bg, b.Workspace, flow, nil)))
	b.RecordEvent("c1", "bought")
	b.Exec(`update enrollments set resume_at = now(), waiting_since = now() - interval '1 hour' where profile_key = 'c2'`)
	const at = "The profile is enrolled: enrolled at T in version 1, it is at the node buy"
	is := func(when, end string) {
		t.Helper()
		b.whyIs(flow, "c1", at+", where the event bought came at T, and is "+end)
		b.whyIs(flow, "c2", at+", where the wait for the event bought ended at T, and is "+end)
		b.whyIs(flow, "c3", at+" and waits for the event bought, until T at the latest.")
		for profile, want := range map[string]string{"c1": "", "c2": "", "c3": "bought"} {
			if got := b.awaits(flow, profile); got != want {
				t.Errorf("%s: %s awaits %q", when, profile, got)
			}
		}
	}
	is("in the pause", "due.")
	b.Exec(`update flows set paused_at = now() - interval '1 hour'`)
	b.Must(flowstest.Second(b.Resume(bg, b.Workspace, flow, new(time.Hour), nil)))
	is("in the release", "due, and is released after the pause by T.")
}

// A wait that has ended and is blocked shows both.
func TestExplainAWaitThatEndedAndIsBlocked(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(waitsForAPurchase)
	b.RecordOfAll(1, "cart")
	b.Settle()
	b.RecordEvent("c1", "bought")
	came := *b.Enrollment(flow, "c1").ResumeAt
	b.Exec(`update enrollments set first_due_at = resume_at, resume_at = now() + interval '1 minute', blocked_reason = 'internal', failures
		= 1`)
	if got := b.awaits(flow, "c1"); got != "" {
		t.Errorf("it awaits %q", got)
	}
	text, e := b.why(flow, "c1")
	if !strings.HasSuffix(text, "at the node buy, where the event bought came at T, and is blocked by internal until T.") ||
		!strings.Contains(e.Summary, "came at "+came.UTC().Format(time.DateTime)+" UTC") {
		t.Error(e.Summary)
	}
}
