package api

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"lemma/api/strict"
)

// The answer to a small request has no large list of faults, since it would also be
// kept under the Idempotency-Key.
func TestFaultsAreBounded(t *testing.T) {
	b := setup(t)
	many := func(n int, item string) string {
		var list []string
		for i := range n {
			list = append(list, strings.ReplaceAll(item, "#", fmt.Sprint(i)))
		}
		return strings.Join(list, ",")
	}
	for what, test := range map[string]struct{ path, body string }{
		"unknown names":     {"/v1/templates", `{` + many(19_000, `"f#":1`) + `}`},
		"fewer of them":     {"/v1/templates", `{` + many(500, `"f#":1`) + `}`},
		"names given twice": {"/v1/templates", `{` + many(9_000, `"f#":1,"f#":1`) + `}`},
		"items of a list":   {"/v1/api_keys", `{"name":"x","scopes":[` + many(19_000, `"s#"`) + `]}`},
		"fields of a config": {"/v1/providers", `{"name":"x","kind":"smtp","config":{"host":"h"},"rate_per_second":-1,` +
			many(300, `"x#":1`) + `}`},
	} {
		got := b.do("POST", test.path, test.body).is(422)
		if len(got.body) > 64<<10 || len(got.problem.Errors) == 0 || len(got.problem.Errors) > strict.MaxFaults {
			t.Errorf("%s: %d faults in %d bytes", what, len(got.problem.Errors), len(got.body))
		}
		if !strings.Contains(got.problem.Detail, "not all") {
			t.Errorf("%s: the detail does not mention further faults: %s", what, got.problem.Detail)
		}
	}
	// The path of each fault has 54 KB, and 108 KB in an answer.
	deep, end := strings.Repeat(`{"`+strings.Repeat("\u2028", 300)+`":`, 60), strings.Repeat("}", 60)
	twice := `{"data":` + deep + `{` + many(120, `"a#":1,"a#":2`) + `}` + end + `}`
	got := b.do("POST", "/v1/templates/validate", twice).is(422)
	if len(got.body) > 128<<10 || !strings.Contains(got.problem.Detail, "not all") {
		t.Errorf("a deep value: %d bytes, %.200s", len(got.body), got.problem.Detail)
	}
	events := many(19, `{"profile_key":"c1","event":"x","data":`+deep+`{`+strings.ReplaceAll(many(5, `"a#":1,"a#":2`), "#", "a")+`}`+end+`}`)
	if got := b.do("POST", "/v1/events/bulk", `{"events":[`+events+`]}`).is(202); len(got.body) > 3<<20 {
		t.Errorf("deep values of items: %d bytes", len(got.body))
	}
	item := `{"profile_key":"c1","event":"x",` + many(90, `"q#":1`) + `}`
	got = b.do("POST", "/v1/events/bulk", `{"events":[`+many(500, strings.ReplaceAll(item, "#", "#0"))+`]}`).is(202)
	if len(got.body) > 2<<20 {
		t.Errorf("events with unknown fields: answered with %d bytes", len(got.body))
	}
}

// Without bounds, a body of 1 MiB with one long name, which is part of the pointer of
// each of its many values, takes 20 GB. One with many small values takes 70 MB.
func TestDecodingIsBounded(t *testing.T) {
	deep := func(levels int, inner string) string {
		name := strings.Repeat("x", strict.MaxName)
		return strings.Repeat(`{"`+name+`":`, levels) + inner + strings.Repeat("}", levels)
	}
	for what, test := range map[string]struct {
		body  string
		fault string
	}{
		"a long name":          {`{"` + strings.Repeat("x", 20_000) + `":[` + strings.Repeat("1,", 10_000) + `1]}`, "name_too_long"},
		"values":               {deep(50, "["+strings.Repeat("1,", 19_900)+"1]"), ""},
		"too many values":      {deep(50, "["+strings.Repeat("1,", 20_000)+"1]"), "too_many_values"},
		"small objects":        {`{"x":[` + strings.Repeat(`{"a":0},`, 130_000) + `1]}`, "too_many_values"},
		"empty lists":          {`{"x":[` + strings.Repeat(`[],`, 340_000) + `1]}`, "too_many_values"},
		"names given twice":    {deep(50, "{"+strings.Repeat(`"a":1,`, 19_000)+`"a":1}`), "repeated"},
		"NULs":                 {deep(50, "["+strings.Repeat(`"\u0000",`, 19_000)+"1]"), "nul"},
		"lone surrogates":      {deep(50, "["+strings.Repeat(`"\ud800",`, 19_000)+"1]"), "bad_text"},
		"names of them, twice": {deep(50, "{"+strings.Repeat(`"\ud800":1,`, 19_000)+`"a":1}`), "bad_text"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := strict.Decode([]byte(test.body))
		runtime.ReadMemStats(&after)
		if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 60 {
			t.Errorf("%s: took %d MB", what, took)
		}
		p, _ := explain(cmp.Or(err, errors.New("none")))
		if found := len(p.Errors) > 0; found != (test.fault != "") || found && p.Errors[0].Code != test.fault ||
			len(p.Errors) > strict.MaxFaults {
			t.Errorf("%s: %d faults, %.200v", what, len(p.Errors), p.Errors)
		}
	}
}

// The items of a bulk are decoded one by one, but counted together.
func TestItemsAreBounded(t *testing.T) {
	b := setup(t)
	b.do("POST", "/v1/events/bulk", `{"events":[`+strings.Repeat("1,", 300_000)+`1]}`).fault(400, "", "too_many_values")
	item := `{"profile_key":"c1","event":"x","properties":{"x":[` + strings.Repeat(`{"a":0},`, 30_000) + `1]}}`
	got := b.do("POST", "/v1/events/bulk", `{"events":[`+item+`,{"profile_key":"c1","event":"x"}]}`).is(202)
	if !strings.Contains(string(got.body), `"too_many_values"`) || got.json["counts"].(map[string]any)["accepted"] != 1.0 {
		t.Errorf("%s", got.body)
	}
}
