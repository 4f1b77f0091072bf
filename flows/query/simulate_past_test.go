package query_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"lemma/flows/execution"
	"lemma/flows/intake"
	"lemma/flows/query"
)

// Branches see what the engine would see: the times and properties of the events that were
// recorded first and last, in whichever order a request lists them.
func TestSimulatedPastEvents(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(`{"triggers":[],"recurrence":{"policy":"once"},"start":"wait","nodes":{
		"wait":{"type":"delay","for":"PT5H","next":"ask"},
		"ask":{"type":"branch","cases":[{"if":"events.bought.last.total == 3","next":"end"}],"else":"lost"},
		"lost":{"type":"exit"},"end":{"type":"exit"}}}`)
	var events []intake.Event
	for _, hour := range []int{2, 3, 1, 6} {
		events = append(events, intake.Event{Name: "bought", OccurredAt: noon.Add(time.Duration(hour) * time.Hour),
			Properties: json.RawMessage(fmt.Sprintf(`{"total":%d}`, hour))})
	}
	s := b.simulate(flow, 0, query.Simulation{ProfileKey: "any", Events: events})
	i := slices.IndexFunc(s.Path, func(p execution.SimulatedStep) bool { return p.Node == "ask" && p.Next == "end" })
	if i < 0 {
		t.Fatalf("%v", brief(s))
	}
	got, err := json.Marshal(s.Path[i].Data["events"])
	b.Must(err)
	want, err := json.Marshal(map[string]any{"bought": map[string]any{"times": 3, "first_at": noon.Add(time.Hour),
		"last_at": noon.Add(3 * time.Hour), "last": map[string]int{"total": 3}}})
	b.Must(err)
	if string(got) != string(want) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
