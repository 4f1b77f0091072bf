package query_test

import (
	"strings"
	"testing"
	"time"

	"lemma/flows/flowstest"
	"lemma/flows/query"
	"lemma/pgtest"
)

// What would happen now is by the clock of the database, whatever that of the process: a daily
// recurrence refuses a profile that was enrolled on the same day of the database.
func TestNowIsTheTimeOfTheDatabase(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(strings.ReplaceAll(flowstest.Minimal, "per_event", "daily"))
	now := time.Date(2019, 5, 1, 10, 0, 0, 0, time.UTC)
	pgtest.SetClock(t, b.Pool, now)
	b.RecordEvent("c1", "hi")
	b.Settle()
	_, e := b.why(flow, "c1")
	if all := strings.Join(e.Facts, "\n"); !strings.Contains(all, "now would be refused as") {
		t.Errorf("%s", all)
	}
	made, err := b.Simulate(t.Context(), b.Workspace, flow, 1, query.Simulation{ProfileKey: "c1"})
	b.Must(err)
	if len(made.Path) == 0 || made.Path[0].At.Sub(now).Abs() > time.Minute {
		t.Errorf("the simulation begins at %+v", made.Path)
	}
}
