package api

import (
	"strings"
	"testing"
	"time"
)

// An answer lists all faults of a request, each once, in the order of their pointers.
func TestAllFaultsAtOnce(t *testing.T) {
	b := setup(t)
	got := b.do("POST", "/v1/campaigns", `{"name": 7, "from": {"email": 1, "nick": "x"}, "headers": [], "strategy": "x", "extra": 1}`).is(422)
	var pointers []string
	for _, f := range got.problem.Errors {
		pointers = append(pointers, f.Pointer+" "+f.Code)
	}
	want := "/audience_id required, /extra unknown_field, /from/email wrong_type, /from/nick unknown_field, /headers wrong_type, " +
		"/name wrong_type, /provider_id required, /strategy not_allowed, /template_id required"
	if have := strings.Join(pointers, ", "); have != want {
		t.Errorf("got  %s\nwant %s", have, want)
	}
	got = b.do("GET", "/v1/campaigns?limit=x&status=y&z=1", nil).is(400)
	if len(got.problem.Errors) != 3 {
		t.Errorf("query: %s", got.body)
	}
	got = b.do("POST", "/v1/campaigns",
		`{"name": "x", "audience_id": "a", "template_id": "b", "provider_id": "c", "from": {"email": "a@b.example"}}`).is(422)
	if len(got.problem.Errors) != 3 {
		t.Errorf("ids: %s", got.body)
	}
	got = b.do("POST", "/v1/campaigns", `{"name": "x", "audience_id": "a", "template_id": "b", "provider_id": "c",
		"from": {"email": "xyz", "name": "a\nb"},
		"reply_to": "abc", "headers": {"To": "x", "X-A": "a\nb"}}`).is(422)
	if len(got.problem.Errors) != 5 {
		t.Errorf("tags: %s", got.body)
	}
}

// Faults in JSON, SQL and Liquid have a line and a column.
func TestFaultsHaveAPosition(t *testing.T) {
	b := setup(t)
	w := b.world()
	for name, c := range map[string]struct {
		got          answered
		line, column int
	}{
		"bad JSON":       {b.do("POST", "/v1/audiences", "{\n  \"näme\": nope\n}"), 2, 11},
		"an extra comma": {b.do("POST", "/v1/audiences", "{\"a\": [1,,2]}"), 1, 10},
		"trailing bytes": {b.do("POST", "/v1/audiences", "{}\n x"), 2, 2},
		"SQL": {b.do("POST", "/v1/audiences/validate", object{"data_source_id": w.source, "sql": "select id,\n email, nme\nfrom customers",
			"key_column": "id", "email_column": "email"}), 2, 9},
		"Liquid": {b.do("POST", "/v1/templates/validate", object{"subject": "s", "html": "<p>\n  {{ name | no_such }}</p>"}), 2, 13},
	} {
		found := false
		for _, f := range c.got.problem.Errors {
			found = found || f.Line == c.line && f.Column == c.column
		}
		if !found {
			t.Errorf("%s: want line %d, column %d: %s", name, c.line, c.column, c.got.body)
		}
	}
}

// Details of faults have numbers without an exponent, the parameters that exist, and
// only examples of times that are accepted.
func TestDetailsOfFaults(t *testing.T) {
	b := setup(t)
	w := b.world()
	flow := "/v1/flows/" + w.flow
	for _, c := range []struct {
		method, path string
		body         any
		want         string
	}{
		{"POST", flow + "/rollback", object{"to_version": 99999999999}, "must be at most 2147483647"},
		{"GET", "/v1/campaigns?limit=0", nil, "must be at least 1"},
		{"POST", flow + "/versions/1/publish?dry=true", nil, "there is no such parameter here; there are dry_run"},
		{"POST", flow + "/pause?dry_run=true", nil, "there is no such parameter here"},
	} {
		if got := b.do(c.method, c.path, c.body); len(got.problem.Errors) != 1 || got.problem.Errors[0].Detail != c.want {
			t.Errorf("%s: no detail %q: %s", c.path, c.want, got.body)
		}
	}
	detail := b.do("POST", "/v1/events", object{"profile_key": "c1", "event": "x", "occurred_at": "today"}).
		fault(422, "/occurred_at", "bad_format").problem.Errors[0].Detail
	for word := range strings.FieldsSeq(detail) {
		if _, err := time.Parse(time.RFC3339, word); err == nil && strings.HasPrefix(word, "21") {
			t.Errorf("the example of a time is refused itself: %s", detail)
		}
	}
}
