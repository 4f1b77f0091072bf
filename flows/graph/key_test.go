package graph

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
)

func recurring(t testing.TB, recurrence string) *Graph {
	t.Helper()
	return compileText(t, `{"recurrence": `+recurrence+`, "start": "x", "nodes": {"x": {"type": "exit"}}}`)
}

func occurrence(t testing.TB, at string) Occurrence {
	t.Helper()
	when, err := time.Parse(time.RFC3339, at)
	if err != nil {
		t.Fatal(err)
	}
	return Occurrence{ProfileKey: "p1", Event: uuid.MustParse("01931f00-0000-7000-8000-000000000003"), At: when,
		Properties: map[string]any{"order": "o1"}}
}

func keyOf(t testing.TB, g *Graph, o Occurrence) uuid.UUID {
	t.Helper()
	key, err := g.Key(o)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Golden: a changed key would enroll every profile a second time.
func TestKeysAreFixed(t *testing.T) {
	t.Parallel()
	for recurrence, want := range map[string]string{
		`{"policy": "once"}`:                         "7518babb-ee6a-a033-0478-da985bbdfb77",
		`{"policy": "daily", "zone": "Europe/Kyiv"}`: "c2f25005-59fd-c139-b325-54e65c803fab",
		`{"policy": "weekly"}`:                       "556f52e7-ae35-7d58-45c5-bc5f78e22e0d",
		`{"policy": "monthly"}`:                      "339d6574-a63a-851d-ebd4-f2c257390bc6",
		`{"policy": "per_event"}`:                    "5609e5b2-55b6-b654-d194-5bdd80ee4dbe",
		`{"policy": "fields", "fields": ["order"]}`:  "20db114d-081f-d37b-4187-541a2bd9779b",
	} {
		if got := keyOf(t, recurring(t, recurrence), occurrence(t, "2026-11-21T12:00:00Z")).String(); got != want {
			t.Errorf("%s: got %s, want %s", recurrence, got, want)
		}
	}
}

func TestDaysOfKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what, recurrence, one, other string
		same                         bool
	}{
		{"once, a year apart", `{"policy": "once"}`, "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z", true},
		{"a day's first and last second", `{"policy": "daily"}`, "2026-11-21T00:00:00Z", "2026-11-21T23:59:59Z", true},
		{"around midnight", `{"policy": "daily"}`, "2026-11-21T23:59:59Z", "2026-11-22T00:00:00Z", false},
		{"around midnight in Kathmandu", `{"policy": "daily", "zone": "Asia/Kathmandu"}`, "2026-11-21T18:14:59Z", "2026-11-21T18:15:00Z",
			false},
		{"around UTC's midnight in Kathmandu", `{"policy": "daily", "zone": "Asia/Kathmandu"}`, "2026-11-21T23:59:59Z",
			"2026-11-22T00:00:00Z", true},
		{"the same instant written with an offset", `{"policy": "daily"}`, "2026-11-21T23:30:00Z", "2026-11-22T00:30:00+01:00", true},
		{"Berlin's day of 23 hours", `{"policy": "daily", "zone": "Europe/Berlin"}`, "2026-03-28T23:00:00Z", "2026-03-29T21:59:59Z", true},
		{"the end of Berlin's day of 23 hours", `{"policy": "daily", "zone": "Europe/Berlin"}`, "2026-03-29T21:59:59Z",
			"2026-03-29T22:00:00Z", false},
		{"Berlin's day of 25 hours", `{"policy": "daily", "zone": "Europe/Berlin"}`, "2026-10-24T22:00:00Z", "2026-10-25T22:59:59Z", true},
		{"the end of Berlin's day of 25 hours", `{"policy": "daily", "zone": "Europe/Berlin"}`, "2026-10-25T22:59:59Z",
			"2026-10-25T23:00:00Z", false},
		{"a day without midnight", `{"policy": "daily", "zone": "America/Sao_Paulo"}`, "2018-11-04T02:59:59Z", "2018-11-04T03:00:00Z",
			false},
		{"an hour that comes before itself", `{"policy": "daily", "zone": "America/New_York"}`, "2026-11-01T05:30:00Z",
			"2026-11-01T06:30:00Z", true},
		{"a week over the year's end", `{"policy": "weekly"}`, "2026-12-28T00:00:00Z", "2027-01-03T23:59:59Z", true},
		{"two weeks", `{"policy": "weekly"}`, "2027-01-03T23:59:59Z", "2027-01-04T00:00:00Z", false},
		{"week 1 of two years", `{"policy": "weekly"}`, "2025-12-29T00:00:00Z", "2027-01-04T00:00:00Z", false},
		{"a month", `{"policy": "monthly"}`, "2026-11-01T00:00:00Z", "2026-11-30T23:59:59Z", true},
		{"two months", `{"policy": "monthly"}`, "2026-11-30T23:59:59Z", "2026-12-01T00:00:00Z", false},
		{"a month in Lord Howe", `{"policy": "monthly", "zone": "Australia/Lord_Howe"}`, "2026-11-30T12:59:59Z", "2026-11-30T13:00:00Z",
			false},
	} {
		g := recurring(t, c.recurrence)
		if same := keyOf(t, g, occurrence(t, c.one)) == keyOf(t, g, occurrence(t, c.other)); same != c.same {
			t.Errorf("%s: the same: %v, want %v", c.what, same, c.same)
		}
	}
}

func TestKeysOfEventsAndFields(t *testing.T) {
	t.Parallel()
	perEvent, fields := recurring(t, `{"policy": "per_event"}`), recurring(t, `{"policy": "fields", "fields": ["order", "shop"]}`)
	o := occurrence(t, "2026-11-21T12:00:00Z")
	again := o
	again.Event = uuid.MustParse("01931f00-0000-7000-8000-000000000004")
	if keyOf(t, perEvent, o) == keyOf(t, perEvent, again) {
		t.Error("two events have one key")
	}
	if keyOf(t, recurring(t, `{"policy": "once"}`), o) != keyOf(t, recurring(t, `{"policy": "once"}`), again) {
		t.Error("once has two keys")
	}
	with := func(properties string) Occurrence { o.Properties = object(t, properties); return o }
	same := keyOf(t, fields, with(`{"order": {"b": 1.50, "a": [null, true]}, "shop": 1}`))
	if same != keyOf(t, fields, with(`{"shop": 10e-1, "x": 1, "order": {"a": [null, true], "b": 15e-1}}`)) {
		t.Error("equal values have two keys")
	}
	for _, other := range []string{
		`{"order": {"b": 1.5, "a": [null, true]}, "shop": "1"}`, `{"order": {"b": 1.5, "a": [null, false]}, "shop": 1}`,
		`{"order": {"b": 1.51, "a": [null, true]}, "shop": 1}`,
	} {
		if same == keyOf(t, fields, with(other)) {
			t.Errorf("%s has the key of another", other)
		}
	}
	if keyOf(t, fields, with(`{"order": 9007199254740992, "shop": 1}`)) == keyOf(t, fields,
		with(`{"order": 9007199254740993, "shop": 1}`)) {
		t.Error("two ids beyond 2^53 have one key")
	}
	for _, lacking := range []string{`{"order": 1}`, `{"order": 1, "shop": null}`, `{}`} {
		_, err := fields.Key(with(lacking))
		var e *lemma.Error
		if !errors.As(err, &e) || e.Kind != lemma.Invalid || e.Code != "missing_field" {
			t.Errorf("%s: %v", lacking, err)
		}
		if want := "the recurrence of the flow needs a property that is not there: there is no property shop"; lacking != "{}" &&
			lemma.Public(err) != want {
			t.Errorf("%s: %s", lacking, lemma.Public(err))
		}
	}
}

// A key does not depend on how its numbers were decoded.
func TestCanonicalNumbers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"0": "0", "-0": "0", "0.00": "0", "0e5": "0", "1": "1e0", "1.0": "1e0", "10": "1e1", "100e-1": "1e1", "1.50": "15e-1",
		"-1.5E+3": "-15e2", "0.001": "1e-3",
		"9007199254740993": "9007199254740993e0", "1e400": "1e400", "1e99999999999999999999999": "1e99999999999999999999999",
	} {
		if got := string(appendCanonical(nil, json.Number(text))); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
		var f any
		if err := json.Unmarshal([]byte(text), &f); err == nil && len(text) < 16 {
			if got := string(appendCanonical(nil, f)); got != want {
				t.Errorf("%s as float64: got %s, want %s", text, got, want)
			}
		}
	}
	if got := string(appendCanonical(nil,
		[]any{1, int64(20), map[string]any{"b": "\n", "a": nil}})); got != `[1e0,2e1,{"a":null,"b":"\n"}]` {
		t.Error(got)
	}
}

func BenchmarkKey(b *testing.B) {
	g := recurring(b, `{"policy": "daily", "zone": "Europe/Kyiv"}`)
	o := occurrence(b, "2026-11-21T12:00:00Z")
	b.ReportAllocs()
	for b.Loop() {
		_, _ = g.Key(o)
	}
}
