package api

import (
	"fmt"
	"strings"
	"testing"
)

// A small request is not answered with a large list of its faults, which would
// also be kept under its Idempotency-Key.
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
		"unknown names":      {"/v1/templates", `{` + many(60_000, `"f#":1`) + `}`},
		"fewer of them":      {"/v1/templates", `{` + many(500, `"f#":1`) + `}`},
		"names given twice":  {"/v1/templates", `{` + many(40_000, `"f#":1,"f#":1`) + `}`},
		"items of a list":    {"/v1/api_keys", `{"name":"x","scopes":[` + many(80_000, `"s#"`) + `]}`},
		"fields of a config": {"/v1/providers", `{"name":"x","kind":"smtp","config":{"host":"h"},"rate_per_second":-1,` + many(300, `"x#":1`) + `}`},
	} {
		got := b.do("POST", test.path, test.body).is(422)
		if len(got.body) > 64<<10 || len(got.problem.Errors) == 0 || len(got.problem.Errors) > maxFaults {
			t.Errorf("%s: %d faults in %d bytes", what, len(got.problem.Errors), len(got.body))
		}
		if !strings.Contains(got.problem.Detail, "not all") {
			t.Errorf("%s: nothing says that there are more: %s", what, got.problem.Detail)
		}
	}
	item := `{"profile_key":"c1","event":"x",` + many(90, `"q#":1`) + `}`
	got := b.do("POST", "/v1/events/bulk", `{"events":[`+many(500, strings.ReplaceAll(item, "#", "#0"))+`]}`).is(202)
	if len(got.body) > 2<<20 {
		t.Errorf("events with unknown fields: answered with %d bytes", len(got.body))
	}
}
