package intake_test

import (
	"strings"
	"testing"
	"time"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
	"lemma/pgtest"
)

// A trigger without a time has that of the database, whatever the clock of the process: a
// daily recurrence enrolls a profile once on a day of the database, and again on the next.
func TestATriggerWithoutATimeHasThatOfTheDatabase(t *testing.T) {
	b := setup(t, 2)
	flow := b.Live(strings.ReplaceAll(flowstest.Minimal, "per_event", "daily"))
	enrolled := func(result intake.Result) bool { return result.Outcome == enrollment.Enrolled }
	for _, c := range []struct {
		at   string
		want bool
	}{{"2019-05-01T10:00:00Z", true}, {"2019-05-01T23:59:59Z", false}, {"2019-05-02T00:00:00Z", true}} {
		at, err := time.Parse(time.RFC3339, c.at)
		b.Must(err)
		pgtest.SetClock(t, b.Pool, at)
		if event := b.RecordEvent("c1", "hi"); enrolled(event.Results[0]) != c.want {
			t.Errorf("at %s the event's result is %+v", c.at, event.Results[0])
		}
		direct, err := b.Enroll(bg, b.Workspace, flow, intake.Enrolling{ProfileKey: "c2", Retry: lemma.NewID().String()}, false)
		if b.Must(err); enrolled(direct) != c.want {
			t.Errorf("at %s the result of the enrollment is %+v", c.at, direct)
		}
		b.Settle()
		b.WantCount(1, `select count(*) from trigger_events where workspace_id = $1 and name = 'hi' and occurred_at = $2`, b.Workspace, at)
	}
}

// How far a trigger's own time may be ahead is by the clock of the database, whatever that of
// the process.
func TestTheTimeOfATriggerIsComparedWithThatOfTheDatabase(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(flowstest.Minimal)
	now := time.Now().AddDate(0, 0, 2)
	pgtest.SetClock(t, b.Pool, now)
	for _, ahead := range []time.Duration{intake.LatestAhead - time.Hour, intake.LatestAhead + time.Hour} {
		e, refused := intake.Event{ProfileKey: "c1", Name: "hi", OccurredAt: now.Add(ahead)}, ahead > intake.LatestAhead
		_, err := b.Record(bg, b.Workspace, e)
		all, failed := b.RecordAll(bg, b.Workspace, []intake.Event{e})
		b.Must(failed)
		_, direct := b.Enroll(bg, b.Workspace, flow, intake.Enrolling{ProfileKey: "c1", OccurredAt: e.OccurredAt}, false)
		for what, err := range map[string]error{"event": err, "bulk": all[0].Err, "enrollment": direct} {
			if (lemma.KindOf(err) == lemma.Invalid) != refused || !refused && err != nil {
				t.Errorf("%s, %s ahead: %v", what, ahead, err)
			}
		}
	}
}
