package intake_test

import (
	"fmt"
	"testing"
	"time"

	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
)

// keyCase is an event of c1, at its own time, and its expected result.
type keyCase struct {
	at         string
	id         string
	properties string
	want       string // enrolled, duplicate or a reason
}

// Recurrence uses the event's own time in the flow's zone, whenever it is recorded.
func TestRecurrence(t *testing.T) {
	again := enrollment.AlreadyEnrolled
	b := setup(t, 0)
	for i, c := range []struct {
		what, recurrence string
		events           []keyCase
	}{
		{"once", `"policy":"once"`,
			[]keyCase{{at: "2025-01-01T00:00:00Z", want: enrollment.Enrolled}, {at: "2025-12-31T00:00:00Z", want: again}}},
		{"midnight in Berlin", `"policy":"daily","zone":"Europe/Berlin"`, []keyCase{
			{at: "2025-06-10T21:59:59.999999Z", want: enrollment.Enrolled}, {at: "2025-06-10T22:00:00Z", want: enrollment.Enrolled},
			{at: "2025-06-11T21:59:59.999999Z", want: again}, {at: "2025-06-10T00:00:00Z", want: again}}},
		{"midnight in New York", `"policy":"daily","zone":"America/New_York"`, []keyCase{
			{at: "2025-06-11T03:59:59Z", want: enrollment.Enrolled}, {at: "2025-06-11T04:00:00Z",
				want: enrollment.Enrolled}, {at: "2025-06-12T03:59:59Z", want: again}}},
		{"Berlin's 23 hours", `"policy":"daily","zone":"Europe/Berlin"`, []keyCase{
			{at: "2025-03-29T22:59:59Z", want: enrollment.Enrolled}, // still the 29th
			{at: "2025-03-29T23:00:00Z", want: enrollment.Enrolled}, {at: "2025-03-30T00:59:59Z",
				want: again}, {at: "2025-03-30T01:00:00Z", want: again},
			{at: "2025-03-30T21:59:59Z", want: again}, {at: "2025-03-30T22:00:00Z", want: enrollment.Enrolled}}},
		{"Berlin's 25 hours", `"policy":"daily","zone":"Europe/Berlin"`, []keyCase{
			{at: "2025-10-25T22:00:00Z", want: enrollment.Enrolled}, {at: "2025-10-26T00:30:00Z",
				want: again}, {at: "2025-10-26T01:30:00Z", want: again}, // half past two, twice
			{at: "2025-10-26T22:59:59Z", want: again}, {at: "2025-10-26T23:00:00Z", want: enrollment.Enrolled}}},
		{"New York's 23 hours", `"policy":"daily","zone":"America/New_York"`, []keyCase{
			{at: "2025-03-09T04:59:59Z", want: enrollment.Enrolled}, {at: "2025-03-09T05:00:00Z",
				want: enrollment.Enrolled}, {at: "2025-03-09T07:00:00Z", want: again},
			{at: "2025-03-10T03:59:59Z", want: again}, {at: "2025-03-10T04:00:00Z", want: enrollment.Enrolled}}},
		{"New York's 25 hours", `"policy":"daily","zone":"America/New_York"`, []keyCase{
			{at: "2025-11-02T04:00:00Z", want: enrollment.Enrolled}, {at: "2025-11-02T05:30:00Z",
				want: again}, {at: "2025-11-02T06:30:00Z", want: again},
			{at: "2025-11-03T04:59:59Z", want: again}, {at: "2025-11-03T05:00:00Z", want: enrollment.Enrolled}}},
		{"a retry after midnight", `"policy":"daily","zone":"Europe/Berlin"`, []keyCase{
			{at: "2025-06-10T21:59:59Z", id: "e1", want: enrollment.Enrolled}, {at: "2025-06-10T21:59:59Z", id: "e1", want: "duplicate"},
			{at: "2025-06-10T22:00:01Z", id: "e1", want: "duplicate"}, // sent again with another time, it is the same event
			{at: "2025-06-10T21:59:59Z", want: again},                 // without an id it is another event of the same day
			{at: "2025-06-10T22:00:01Z", id: "e2", want: enrollment.Enrolled}}},
		{"weeks begin on Monday", `"policy":"weekly","zone":"Europe/Berlin"`, []keyCase{
			{at: "2024-12-29T22:59:59Z", want: enrollment.Enrolled}, {at: "2024-12-29T23:00:00Z",
				want: enrollment.Enrolled}, {at: "2025-01-05T22:59:59Z", want: again}, // over the year's end
			{at: "2025-01-05T23:00:00Z", want: enrollment.Enrolled}}},
		{"months", `"policy":"monthly","zone":"America/New_York"`, []keyCase{
			{at: "2025-02-01T04:59:59Z", want: enrollment.Enrolled}, {at: "2025-02-01T05:00:00Z",
				want: enrollment.Enrolled}, {at: "2025-03-01T04:59:59Z", want: again},
			{at: "2025-03-01T05:00:00Z", want: enrollment.Enrolled}}},
		{"every event", `"policy":"per_event"`, []keyCase{
			{at: "2025-06-10T12:00:00Z", want: enrollment.Enrolled}, {at: "2025-06-10T12:00:00Z",
				want: enrollment.Enrolled}, {at: "2025-06-10T12:00:00Z", id: "e1", want: enrollment.Enrolled},
			{at: "2025-06-10T12:00:00Z", id: "e1", want: "duplicate"}}},
		{"fields", `"policy":"fields","fields":["order","shop"]`, []keyCase{
			{properties: `{"order":1.5,"shop":"a","more":1}`,
				want: enrollment.Enrolled}, {properties: `{"shop":"a","order":15e-1,"more":2}`, want: again},
			{properties: `{"order":"1.5","shop":"a"}`, want: enrollment.Enrolled}, {properties: `{"order":1.5,"shop":"b"}`,
				want: enrollment.Enrolled},
			{properties: `{"order":1.5}`, want: enrollment.MissingField}, {properties: `{"order":null,"shop":"a"}`,
				want: enrollment.MissingField}, {want: enrollment.MissingField},
			{properties: `{"order":{"a":1,"b":[2]},"shop":"a"}`,
				want: enrollment.Enrolled}, {properties: `{"order":{"b":[2.0],"a":1},"shop":"a"}`, want: again},
			{properties: `{"order":9007199254740992,"shop":"a"}`,
				want: enrollment.Enrolled}, {properties: `{"order":9007199254740993,"shop":"a"}`, want: enrollment.Enrolled}}},
	} {
		event := fmt.Sprint("event ", i)
		flow := b.Live(`{"triggers":[{"type":"event","event":"` + event + `"}],"overlap":"allow","recurrence":{` + c.recurrence + `},
			"start":"end","nodes":{"end":{"type":"exit"}}}`)
		enrolled := 0
		for j, e := range c.events {
			var when time.Time
			if e.at != "" {
				var err error
				when, err = time.Parse(time.RFC3339, e.at)
				b.Must(err)
			}
			if e.id != "" {
				e.id += c.what
			}
			r := b.RecordEvent("c1", event, flowstest.WithID(e.id), flowstest.At(when), flowstest.Properties(e.properties))
			got := "duplicate"
			if !r.Duplicate {
				got = r.Results[0].Outcome + r.Results[0].Reason
			}
			if want := e.want; got != want && got != enrollment.Refused+want {
				t.Errorf("%s, event %d of %s %s: %s, not %s", c.what, j+1, e.at, e.properties, got, want)
			}
			if e.want == enrollment.Enrolled {
				enrolled++
			}
		}
		b.WantCount(enrolled, `select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, b.Workspace, flow)
	}
	b.Settle()
	b.Invariants()
}
