package flows_test

import (
	"strings"
	"testing"
	"time"

	"lemma/flows"
	"lemma/flows/flowstest"
)

// Resume!NoCallAfterResume: a worker has read a profile before a pause, and would write its
// message after the resume. It writes nothing, and the profile is read again, whatever the clock of
// the database does: it opted out in the pause.
func TestAnEnrollmentThatWasReadBeforeAPauseIsReadAgain(t *testing.T) {
	for name, c := range map[string]struct {
		verb  func(b *bundle, flow flows.Flow) error
		after string
	}{
		"resumed":             {verb: (*bundle).resume},
		"drained":             {verb: (*bundle).drain},
		"the clock goes back": {(*bundle).resume, `update flows set resumed_at = resumed_at - interval '1 day' where id = $1`},
		"the clock was ahead": {(*bundle).resume, `update flows set resumed_at = resumed_at + interval '1 day' where id = $1`},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 1)
			flow := b.Live(strings.Replace(flowstest.Welcome, `"type":"delay","for":"P3D"`, `"type":"delay","for":"PT1H"`, 1))
			b.RecordEvent("c1", "signed_up")
			paused := 0
			b.Hook.Do = func(stage string) {
				if stage != "evaluated" || paused > 0 {
					return
				}
				paused++
				f, err := b.Pause(bg, b.Workspace, flow, nil)
				b.Must(err)
				b.ExecDB(`update customers set opted_out = true`)
				b.Must(c.verb(b, f))
				if c.after != "" {
					b.Exec(c.after, flow)
				}
			}
			b.Settle()
			b.WantTrace(b.Enrollment(flow, "c1").ID, "enrolled@ checked@ skipped@hello")
			b.Exec(`update flows set catch_up_until = least(catch_up_until, resumed_at) where id = $1`, flow) // it lasts as long as the pause did
			b.Pass(2 * time.Hour)
			b.Settle()
			b.WantTrace(b.Enrollment(flow, "c1").ID, "enrolled@ checked@ skipped@hello resumed@wait skipped@nudge completed@end")
			b.WantCount(0, `select count(*) from batches where workspace_id = $1`, b.Workspace)
			b.Invariants()
		})
	}
}

// A flow is resumed with a catch_up of 0, and the clock is set back by less than what a repair
// mends. Its enrollments, and those of other flows, advance.
func TestAResumeAtOnceByAClockThatWasSetBack(t *testing.T) {
	b := setup(t, 2)
	flow, other := b.Live(flowstest.Welcome), b.Live(flowstest.HourAfter("go"))
	b.RecordEvent("c1", "signed_up")
	f, err := b.Pause(bg, b.Workspace, flow, nil)
	b.Must(err)
	b.Must(b.resume(f))
	b.Exec(`update flows set resumed_at = resumed_at + interval '30 seconds', catch_up_until = catch_up_until + interval '30 seconds'
		where id = $1`, flow)
	b.RecordEvent("c2", "go")
	b.Settle()
	b.WantTrace(b.Enrollment(flow, "c1").ID, "enrolled@ checked@ sent@hello")
	b.WantTrace(b.Enrollment(other, "c2").ID, "enrolled@ checked@")
}

func (b *bundle) resume(f flows.Flow) error {
	_, err := b.Resume(bg, b.Workspace, f.ID, new(time.Duration(0)), nil)
	return err
}

func (b *bundle) drain(f flows.Flow) error {
	_, err := b.Drain(bg, b.Workspace, f.ID, nil)
	return err
}
