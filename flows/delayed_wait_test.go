package flows_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/pgtest"
)

// waitsFor10m waits for an event for ten minutes, and then for another one as long, after
// whatever comes FIRST.
func waitsFor10m(first string) string {
	return strings.NewReplacer("FIRST", first).Replace(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],
		"recurrence":{"policy":"once"},"start":"first","nodes":{
		"first":{FIRST},
		"wait":{"type":"wait_for_event","event":"bought","timeout":"PT10M","next":"again","on_timeout":"late"},
		"again":{"type":"wait_for_event","event":"bought","timeout":"PT10M","next":"end","on_timeout":"late"},
		"late":{"type":"exit"},"end":{"type":"exit"}}}`)
}

const readsProfile = `"type":"branch","cases":[{"if":"profile.country == 'XX'","next":"end"}],"else":"wait"`

// paused passes an hour while a flow is paused. The events of meanwhile come first.
func (b *bundle) paused(flow uuid.UUID, meanwhile func()) {
	b.T.Helper()
	b.Must(flowstest.Second(b.Pause(bg, b.Workspace, flow, nil)))
	meanwhile()
	b.ago(time.Hour)
	b.Must(flowstest.Second(b.Resume(bg, b.Workspace, flow, new(time.Duration), nil)))
}

// blocked passes an hour in which the data source of a due enrollment fails, until it is
// retried.
func (b *bundle) blocked() {
	b.T.Helper()
	b.ExecDB(`alter table customers rename to elsewhere`)
	b.Must(flowstest.Second(b.RunOnce(bg)))
	b.WantCount(1, `select count(*) from enrollments where workspace_id = $1 and blocked_reason is not null`, b.Workspace)
	b.ago(time.Hour)
	b.ExecDB(`alter table elsewhere rename to customers`)
	b.Exec(`update enrollments set resume_at = now() where workspace_id = $1`, b.Workspace)
}

// workersAreLate passes time in which no worker runs.
func (b *bundle) workersAreLate(d time.Duration) {
	b.T.Helper()
	b.ago(d)
	b.Exec(`update flows set resumed_at = resumed_at - $2::interval, catch_up_until = catch_up_until - $2::interval where workspace_id = $1`,
		b.Workspace, d)
}

// The time of a wait is not spent by what kept the enrollment from it: a failing data
// source, a pause, or the release after one. Only a late worker takes from it.
func TestAWaitBeginsWhenItsEnrollmentIsDelayedNoMore(t *testing.T) {
	polled := strings.Replace(waitsFor10m(nothingFirst), `"type":"event","event":"go"`, `"type":"audience","every":"PT1H"`, 1)
	for name, c := range map[string]struct {
		flow, node string
		delay      func(b *bundle, flow uuid.UUID)
	}{
		"its entry was blocked": {waitsFor10m(nothingFirst), "wait", func(b *bundle, _ uuid.UUID) {
			b.RecordEvent("c1", "go")
			b.blocked()
		}},
		"the node before it was blocked": {waitsFor10m(`"type":"delay","for":"PT1M","next":"asks"},"asks":{` + readsProfile), "wait",
			func(b *bundle, _ uuid.UUID) {
				b.RecordEvent("c1", "go")
				b.Settle()
				b.ago(2 * time.Minute)
				b.blocked()
			}},
		"its entry was held by a pause": {waitsFor10m(nothingFirst), "wait", func(b *bundle, flow uuid.UUID) {
			b.RecordEvent("c1", "go")
			b.paused(flow, func() {})
		}},
		"the wait before it was ended in a pause": {waitsFor10m(nothingFirst), "again", func(b *bundle, flow uuid.UUID) {
			b.RecordEvent("c1", "go")
			b.Settle()
			b.paused(flow, func() { b.RecordEvent("c1", "bought") })
		}},
		"the wait before it was ended in a pause before it began": {waitsFor10m(nothingFirst), "again", func(b *bundle, flow uuid.UUID) {
			b.RecordEvent("c1", "go")
			b.paused(flow, func() { b.RecordEvent("c1", "bought") })
		}},
		"its entry was spread over the release": {polled, "wait", func(b *bundle, flow uuid.UUID) {
			b.Must(flowstest.Second(b.Pause(bg, b.Workspace, flow, nil)))
			b.Must(flowstest.Second(b.Resume(bg, b.Workspace, flow, new(20*time.Hour), nil)))
			b.PollFlow(flow)
			b.ago(time.Until(pgtest.One[time.Time](b.T, b.Pool, `select resume_at from enrollments where workspace_id = $1`, b.Workspace)))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 1)
			flow := b.Live(c.flow)
			c.delay(b, flow)
			b.workersAreLate(4 * time.Minute)
			b.Settle()
			e := b.Enrollment(flow, "c1")
			left := time.Until(b.deadline(e.ID)).Round(time.Minute)
			if e.Status != enrollment.Waiting || e.Node != c.node || left != 6*time.Minute {
				t.Errorf("%s at %s for %s: %s", e.Status, e.Node, left, b.Trace(e.ID))
			}
			if r := b.RecordEvent("c1", "bought"); r.Woken != 1 {
				t.Errorf("%d woken", r.Woken)
			}
		})
	}
}
