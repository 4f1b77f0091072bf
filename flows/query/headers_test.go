package query_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma/flows/flowstest"
	"lemma/flows/intake"
	"lemma/flows/query"
	"lemma/pgtest"
)

// withHeaders gives all send nodes headers.
func withHeaders(definition, headers string) string {
	return strings.ReplaceAll(definition, `$send`, `$send,"headers":`+headers)
}

// The columns that headers use are stored with the message like those of its template, and
// a simulation shows the headers.
func TestHeadersOfANodeAreRendered(t *testing.T) {
	b := setup(t, 2)
	flow := b.Live(withHeaders(flowstest.Welcome, `{"X-Country":"{{ country }}","X-Plan":"{{ trigger.properties.plan }}","X-Fixed":"1"}`))
	b.RecordEvent("c1", "signed_up", flowstest.Properties(`{"plan":"pro"}`))
	b.Settle()
	payload := pgtest.One[string](b.T, b.Pool, `select payload from notifications where workspace_id = $1`, b.Workspace)
	var data struct {
		Name, Country string
		Trigger       struct{ Properties map[string]string }
	}
	b.Must(json.Unmarshal([]byte(payload), &data))
	if data.Name != "N1" || data.Country != "US" || data.Trigger.Properties["plan"] != "pro" {
		t.Error(payload)
	}
	s := b.simulate(flow, 0,
		query.Simulation{ProfileKey: "c2", Trigger: intake.Event{Name: "signed_up", Properties: json.RawMessage(`{"plan":"free"}`)}})
	for _, step := range s.Path {
		if m := step.Message; m != nil {
			if d := cmp.Diff([][2]string{{"X-Country", "DE"}, {"X-Fixed", "1"}, {"X-Plan", "free"}}, m.Headers[2:]); d != "" || m.Error != "" {
				t.Errorf("%s %s", m.Error, d)
			}
			return
		}
	}
	t.Fatalf("no message in %+v", s.Path)
}

func TestHeadersOfANodeAreChecked(t *testing.T) {
	b := setup(t, 1)
	for headers, want := range map[string]string{
		`{"X-A":"{{ nickname }}"}`: "/nodes/hello/headers unknown_column",
		`{"X-A":"{{ name"}`:        "/nodes/hello/headers/X-A unclosed",
		`{"X-A":"{{ name }}"}`:     "",
	} {
		report, err := b.Validate(context.Background(), b.Workspace, b.NewDraft(withHeaders(flowstest.Welcome, headers)).ID, 1)
		b.Must(err)
		got := ""
		for _, f := range report.Faults {
			if strings.HasPrefix(f.Pointer, "/nodes/hello") {
				got = f.Pointer + " " + f.Code
			}
		}
		if got != want {
			t.Errorf("%s: %q, want %q", headers, got, want)
		}
	}
}
