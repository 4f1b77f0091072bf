package api

import (
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"lemma"
	"lemma/audience"
)

// bad is a request that must be refused, with the pointer and code of its fault.
type bad struct {
	name         string
	method, path string
	body         any
	status       int
	pointer      string
	code         string
}

// Each of these requests gets a 4xx with the field's pointer and a detail, and changes
// nothing.
func TestBadInput(t *testing.T) {
	b := setup(t)
	w := b.world()
	audiences, campaign, template, flow := "/v1/audiences", "/v1/campaigns/"+w.campaign, "/v1/templates/"+w.template, "/v1/flows/"+w.flow
	aud := func(change object) object {
		in := object{"name": "Bad", "data_source_id": w.source, "sql": goodSQL, "key_column": "id", "email_column": "email"}
		maps.Copy(in, change)
		return in
	}
	sql := func(text string) object { return aud(object{"sql": text}) }
	cmp := w.newCampaign
	source := func(dsn string) object { return object{"name": "Bad", "kind": "postgres", "dsn": dsn} }
	mail := func(config object) object { return object{"name": "Bad", "kind": "smtp", "config": config} }
	tpl := func(html string) object { return object{"name": "Bad", "subject": "s", "html": html} }
	unknown := idLike("aud_")
	before := b.fingerprint()
	for _, c := range []bad{
		{"bytes that are no JSON", "POST", audiences, `{"name": nope}`, 400, "", "bad_json"},
		{"JSON that ends too early", "POST", audiences, `{"name": "x"`, 400, "", "bad_json"},
		{"no UTF-8", "POST", audiences, "{\"name\": \"\xff\"}", 400, "", "bad_json"},
		{"an empty body", "POST", audiences, "", 400, "", "body_required"},
		{"a body of white space", "POST", audiences, " \n", 400, "", "bad_json"},
		{"trailing bytes", "POST", audiences, `{} x`, 400, "", "trailing_bytes"},
		{"a second value", "POST", audiences, `{}{}`, 400, "", "trailing_bytes"},
		{"JSON that is too deep", "POST", template + "/render", `{"data": ` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`,
			400, "", "too_deep"},
		{"a name twice", "POST", audiences, `{"name": "a", "name": "b"}`, 422, "/name", "repeated"},
		{"a name twice, deep inside", "POST", "/v1/campaigns", `{"headers": {"X-A": "1", "X-A": "2"}}`, 422, "/headers/X-A", "repeated"},
		{"a name in other capitals", "POST", audiences, `{"name": "a", "NAME": "b"}`, 422, "/NAME", "unknown_field"},
		{"NUL in a text", "POST", audiences, `{"name": "a\u0000b"}`, 422, "/name", "nul"},
		{"NUL in free data", "POST", template + "/render", `{"data": {"a": ["\u0000"]}}`, 422, "/data/a/0", "nul"},
		{"a lone surrogate", "POST", audiences, `{"name": "a\ud800b"}`, 422, "/name", "bad_text"},
		{"a lone surrogate in a name", "POST", template + "/render", `{"data": {"\udfff": 1, "\ud800": 2}}`, 422, "/data/\ufffd", "bad_text"},
		{"an unknown field", "POST", audiences, aud(object{"colour": "red"}), 422, "/colour", "unknown_field"},
		{"an unknown field, deep inside", "POST", "/v1/providers", mail(object{"host": "x", "pass/word": "y"}),
			422, "/config/pass~1word", "unknown_field"},
		{"a wrong type", "POST", audiences, aud(object{"sql": 7}), 422, "/sql", "wrong_type"},
		{"a wrong type of a choice", "POST", "/v1/data_sources", object{"name": "x", "kind": 7, "dsn": "x"}, 422, "/kind", "wrong_type"},
		{"null where there must be something", "POST", audiences, aud(object{"name": nil}), 422, "/name", "wrong_type"},
		{"a fraction for a whole number", "POST", flow + "/rollback", `{"to_version": 1.5}`, 422, "/to_version", "wrong_type"},
		{"a whole number written oddly", "POST", flow + "/rollback", `{"to_version": 1.0}`, 422, "/to_version", "wrong_type"},
		{"a number beyond all bounds", "POST", flow + "/rollback", `{"to_version": 1e999}`, 422, "/to_version", "wrong_type"},
		{"a missing field", "POST", audiences, object{"name": "x"}, 422, "/key_column", "required"},
		{"an empty text", "POST", audiences, aud(object{"name": ""}), 422, "/name", "empty"},
		{"a text that is too long", "POST", audiences, aud(object{"name": strings.Repeat("x", 201)}), 422, "/name", "too_long"},
		{"a name of two lines", "POST", audiences, aud(object{"name": "a\nb"}), 422, "/name", "bad_format"},
		{"not one of the choices", "POST", "/v1/data_sources", object{"name": "x", "kind": "oracle", "dsn": "x"}, 422, "/kind", "not_allowed"},
		{"a number that is too large", "POST", "/v1/providers", mail(object{"host": "x", "port": 70000}), 422, "/config/port", "too_large"},
		{"a patch of nothing", "PATCH", campaign, object{}, 422, "", "empty"},
		{"too long a body", "POST", audiences, `{"name": "` + strings.Repeat("x", maxBody) + `"}`, 413, "", ""},

		{"an unknown id", "GET", audiences + "/" + unknown, nil, 404, "", ""},
		{"an id of another kind", "GET", audiences + "/" + w.source, nil, 404, "", ""},
		{"an unknown id in a body", "POST", audiences, aud(object{"data_source_id": idLike("ds_")}), 422, "/data_source_id", "unknown_id"},
		{"an id of another kind in a body", "POST", "/v1/campaigns", cmp(object{"audience_id": w.template}), 422, "/audience_id", "unknown_id"},
		{"an unknown version", "POST", "/v1/campaigns", cmp(object{"template_version": 9}), 422, "/template_version", "unknown_version"},

		{"SQL that does not parse", "POST", audiences, sql("selec id from customers"), 422, "/sql", audience.CodeQuery},
		{"SQL that writes", "POST", audiences, sql("delete from customers returning id, email"), 422, "/sql", audience.CodeQuery},
		{"SQL that writes inside", "POST", audiences, sql("with x as (delete from customers returning *) select id, email from x"),
			422, "/sql", audience.CodeQuery},
		{"two statements", "POST", audiences, sql("select id, email from customers; select 1"), 422, "/sql", audience.CodeQuery},
		{"SQL without the key column", "POST", audiences, sql("select email from customers"), 422, "/key_column", audience.CodeQuery},
		{"SQL without the address column", "POST", audiences, sql("select id from customers"), 422, "/email_column", audience.CodeQuery},
		{"SQL on what is not there", "POST", audiences + "/validate",
			object{"data_source_id": w.source, "sql": "select id, email from no_such", "key_column": "id", "email_column": "email"}, 422, "/sql",
			audience.CodeQuery},
		{"SQL that becomes wrong", "PATCH", audiences + "/" + w.audience, object{"sql": "select 1"}, 422, "/key_column", audience.CodeQuery},

		{"a template that does not parse", "POST", "/v1/templates", tpl("{{ name"), 422, "/html", "*"},
		{"a template with a tag that is not closed", "POST", template + "/versions", object{"subject": "s", "html": "{% if a %}x"},
			422, "/html", "*"},
		{"a template that loops without bound", "POST", "/v1/templates", tpl("{% for i in (1..1000000000) %}x{% endfor %}"), 422, "/html", "*"},
		{"a template with faults in each text", "POST", "/v1/templates/validate",
			object{"subject": "{{", "html": "{%", "text": "{{ a | no_such }}"}, 422, "/text", "*"},
		{"a template without a text", "POST", "/v1/templates", object{"name": "x", "subject": "s"}, 422, "*", "*"},
		{"a version of 0", "POST", template + "/render", `{"version": 0, "data": {}}`, 422, "/version", "too_small"},
		{"a render of an unknown version", "POST", template + "/render", `{"version": 7, "data": {}}`, 422, "/version", "unknown_version"},
		{"a render without data or audience", "POST", template + "/render", object{}, 422, "/audience_id", "required"},
		{"a render with data and an audience", "POST", template + "/render", object{"data": object{}, "audience_id": w.audience},
			422, "/data", "not_allowed"},
		{"a render for an unknown profile", "POST", template + "/render", object{"audience_id": w.audience, "profile_key": "zz"},
			422, "/profile_key", "unknown_profile"},

		{"a text that is no DSN", "POST", "/v1/data_sources", source("hello"), 422, "/dsn", "dsn_invalid"},
		{"an unknown carrier", "POST", "/v1/providers", object{"name": "x", "kind": "pigeon", "config": object{}}, 422, "/kind", "not_allowed"},
		{"a carrier without a host", "POST", "/v1/providers", mail(object{}), 422, "/config/host", "required"},
		{"a rate of 0", "POST", "/v1/providers", object{"name": "x", "kind": "smtp", "config": object{"host": "x"}, "rate_per_second": 0},
			422, "/rate_per_second", "too_small"},
		{"a taken name", "POST", "/v1/providers", smtpProvider, 409, "/name", "name_taken"},

		{"a header with a line break", "POST", "/v1/campaigns", cmp(object{"headers": object{"X-Name": "a\r\nBcc: all@example.com"}}),
			422, "/headers/X-Name", "single_line"},
		{"a header with a bare LF, patched in", "PATCH", campaign, object{"headers": object{"X-Name": "a\nb"}},
			422, "/headers/X-Name", "single_line"},
		{"a header name with a colon", "POST", "/v1/campaigns", cmp(object{"headers": object{"X: Y": "a"}}), 422, "/headers/X: Y", "header_name"},
		{"a header name with a line break", "POST", "/v1/campaigns", cmp(object{"headers": object{"X\r\nBcc": "a"}}),
			422, "/headers/X\r\nBcc", "header_name"},
		{"a header name with a dot and a slash", "POST", "/v1/campaigns", cmp(object{"headers": object{"X.a/b": "a"}}),
			422, "/headers/X.a~1b", "header_name"},
		{"a header without a name", "POST", "/v1/campaigns", cmp(object{"headers": object{"": "a"}}), 422, "/headers/", "header_name"},
		{"a header that Lemma writes", "POST", "/v1/campaigns", cmp(object{"headers": object{"dkim-SIGNATURE": "a"}}),
			422, "/headers/dkim-SIGNATURE", "not_reserved"},
		{"a sender of two lines", "POST", "/v1/campaigns", cmp(object{"from": object{"email": "a@b.example", "name": "x\ny"}}),
			422, "/from/name", "single_line"},
		{"a sender that is no address", "POST", "/v1/campaigns", cmp(object{"from": object{"email": "no address"}}),
			422, "/from/email", "address"},
		{"a sender with a line break", "PATCH", campaign, object{"from": object{"email": "a@b.example\r\n"}}, 422, "/from/email", "address"},
		{"a reply-to that is no address", "PATCH", campaign, object{"reply_to": "no address"}, 422, "/reply_to", "address"},
		{"Liquid in a sender's name", "PATCH", campaign, object{"from": object{"email": "a@b.example", "name": "{{ name }}"}},
			422, "/from/name", "not_rendered"},
		{"Liquid in a reply-to", "PATCH", campaign, object{"reply_to": "{{name}}@b.example"}, 422, "/reply_to", "not_rendered"},
		{"Liquid in a header that is not closed", "PATCH", campaign, object{"headers": object{"X-A": "{{ name"}},
			422, "/headers/X-A", "unclosed"},
		{"a limit of errors above 1", "PATCH", campaign, object{"template_error_limit": 2}, 422, "/template_error_limit", "too_large"},
		{"a deadline that is no time", "POST", "/v1/campaigns", cmp(object{"send_deadline": "tomorrow"}), 422, "/send_deadline", "bad_format"},
		{"a day that does not exist", "POST", "/v1/campaigns", cmp(object{"send_deadline": "2126-02-31T00:00:00Z"}),
			422, "/send_deadline", "bad_format"},
		{"an unknown strategy", "POST", "/v1/campaigns", cmp(object{"strategy": "exactly_once"}), 422, "/strategy", "not_allowed"},

		{"a schedule in the past", "POST", campaign + "/schedule", object{"at": "2020-01-01T00:00:00Z"}, 422, "/at", "in_the_past"},
		{"a schedule at a text that is no time", "POST", campaign + "/schedule", object{"at": "tomorrow at nine"}, 422, "/at", "bad_format"},
		{"a local time without a zone", "POST", campaign + "/schedule", object{"at": "2126-01-01T00:00:00"}, 422, "/timezone", "required"},
		{"an unknown zone", "POST", campaign + "/schedule", object{"at": "2126-01-01T00:00:00", "timezone": "Europe/Atlantis"},
			422, "/timezone", "invalid_zone"},
		{"the zone of the server by its file's name", "POST", campaign + "/schedule",
			object{"at": "2126-01-01T00:00:00", "timezone": "localtime"}, 422, "/timezone", "invalid_zone"},
		{"the zone of the server", "POST", campaign + "/schedule", object{"at": "2126-01-01T00:00:00", "timezone": "Local"},
			422, "/timezone", "invalid_zone"},
		{"a path for a zone", "POST", campaign + "/schedule", object{"at": "2126-01-01T00:00:00", "timezone": "../../etc/passwd"},
			422, "/timezone", "invalid_zone"},
		{"two zones at once", "POST", campaign + "/schedule", object{"at": "2126-01-01T00:00:00Z", "timezone": "Europe/Berlin"},
			422, "/timezone", "not_allowed"},

		{"resume of a draft", "POST", campaign + "/resume", nil, 409, "", ""},
		{"an unknown scope", "POST", "/v1/api_keys", object{"name": "x", "scopes": []string{"campaigns:read", "root"}},
			422, "/scopes/1", "not_allowed"},
		{"a key without scopes", "POST", "/v1/api_keys", object{"name": "x", "scopes": []string{}}, 422, "/scopes", "too_few"},

		{"a text that is no URL", "POST", "/v1/webhook_endpoints", object{"name": "x", "url": "nowhere"}, 422, "/url", "*"},
		{"a URL without TLS", "POST", "/v1/webhook_endpoints", object{"name": "x", "url": "http://x.example.com"}, 422, "/url", "*"},
		{"a URL with a password", "PATCH", "/v1/webhook_endpoints/" + w.endpoint, object{"url": "https://u:p@x.example.com"}, 422, "/url", "*"},
		{"a URL of a file", "POST", "/v1/webhook_endpoints", object{"name": "x", "url": "file:///etc/passwd"}, 422, "/url", "*"},

		{"a flow without a name", "POST", "/v1/flows", object{}, 422, "/name", "required"},
		{"a flow with a status", "POST", "/v1/flows", object{"name": "x", "status": "live"}, 422, "/status", "unknown_field"},
		{"an unknown mode", "POST", flow + "/versions/1/publish", object{"in_flight": object{"mode": "kill"}},
			422, "/in_flight/mode", "not_allowed"},
		{"a map to a number", "POST", flow + "/versions/1/plan", object{"in_flight": object{"mode": "move", "map": object{"a/b": 7}}},
			422, "/in_flight/map/a~1b", "wrong_type"},
		{"a map to an empty name", "POST", flow + "/versions/1/plan", object{"in_flight": object{"mode": "move", "map": object{"a": ""}}},
			422, "/in_flight/map/a", "empty"},
		{"an unknown version of a flow", "POST", flow + "/versions/2/publish", nil, 404, "", ""},
		{"a version in letters", "POST", flow + "/versions/one/publish", nil, 404, "", ""},
		{"a version beyond all bounds", "GET", flow + "/versions/99999999999999999999", nil, 404, "", ""},
		{"a rollback to version 0", "POST", flow + "/rollback", object{"to_version": 0}, 422, "/to_version", "too_small"},
		{"a rollback of a draft", "POST", flow + "/rollback", nil, 409, "", ""},
		{"a pause of a draft", "POST", flow + "/pause", nil, 409, "", ""},
		{"a catch-up that is no duration", "POST", flow + "/resume", object{"catch_up": "ten minutes"}, 422, "/catch_up", "bad_format"},
		{"a catch-up of months", "POST", flow + "/resume", object{"catch_up": "P1M"}, 422, "/catch_up", "bad_format"},
		{"a negative catch-up", "POST", flow + "/resume", object{"catch_up": "-PT1M"}, 422, "/catch_up", "*"},
		{"a catch-up of more than a year", "POST", flow + "/resume", object{"catch_up": "P400D"}, 422, "/catch_up", "out_of_range"},
		{"a diff from a fraction", "GET", flow + "/diff?from=1.5", nil, 400, "?from", "wrong_type"},
		{"a diff to version 0", "GET", flow + "/diff?to=0", nil, 400, "?to", "too_small"},
		{"an unknown reason of a refusal", "GET", flow + "/refusals?reason=mood", nil, 400, "?reason", "not_allowed"},
		{"an explain without a profile", "GET", flow + "/explain", nil, 400, "?profile_key", "required"},
		{"a simulation without a profile", "POST", flow + "/versions/1/simulate", object{}, 422, "/profile_key", "required"},
		{"a simulation at a text that is no time", "POST", flow + "/versions/1/simulate", object{"profile_key": "c1", "at": "now"},
			422, "/at", "bad_format"},
		{"a simulated event without a time", "POST", flow + "/versions/1/simulate",
			object{"profile_key": "c1", "events": []object{{"event": "x"}}}, 422, "/events/0/occurred_at", "required"},
		{"a simulated status above 599", "POST", flow + "/versions/1/simulate", object{"profile_key": "c1", "webhooks": object{"a": 700}},
			422, "/webhooks/a", "too_large"},
		{"a simulated status that is not final", "POST", flow + "/versions/1/simulate",
			object{"profile_key": "c1", "webhooks": object{"a": 100}}, 422, "/webhooks/a", "out_of_range"},

		{"an enrollment without a profile", "POST", flow + "/enrollments", object{}, 422, "/profile_key", "required"},
		{"an enrollment in 1970", "POST", flow + "/enrollments", object{"profile_key": "c1", "occurred_at": "1970-01-01T00:00:00Z"},
			422, "/occurred_at", "out_of_range"},
		{"an enrollment into an unknown flow", "POST", "/v1/flows/" + idLike("flw_") + "/enrollments", object{"profile_key": "c1"}, 404, "", ""},
		{"enrollments of an unknown status", "GET", "/v1/enrollments?status=dead", nil, 400, "?status", "not_allowed"},
		{"enrollments of a version that is no number", "GET", "/v1/enrollments?version=x", nil, 400, "?version", "wrong_type"},
		{"an invented cursor of enrollments", "GET", "/v1/enrollments?cursor=abc", nil, 400, "?cursor", "invalid_cursor"},
		{"an invented cursor of flows", "GET", "/v1/flows?cursor=abc", nil, 400, "?cursor", "invalid_cursor"},
		{"an invented cursor of flow versions", "GET", flow + "/versions?cursor=abc", nil, 400, "?cursor", "invalid_cursor"},
		{"an invented cursor of a flow's history", "GET", flow + "/history?cursor=abc", nil, 400, "?cursor", "invalid_cursor"},
		{"an invented cursor of refusals", "GET", flow + "/refusals?cursor=abc", nil, 400, "?cursor", "invalid_cursor"},
		{"an invented cursor of events", "GET", "/v1/events?profile_key=c1&cursor=abc", nil, 400, "?cursor", "invalid_cursor"},
		{"an invented cursor of endpoints", "GET", "/v1/webhook_endpoints?cursor=abc", nil, 400, "?cursor", "invalid_cursor"},
		{"events without a profile", "GET", "/v1/events", nil, 400, "?profile_key", "required"},
		{"a move without a node", "POST", "/v1/enrollments/" + idLike("enr_") + "/move", object{"version": 1}, 422, "/node", "required"},
		{"an erasure of an empty key", "POST", "/v1/profiles/erase", object{"profile_key": ""}, 422, "/profile_key", "empty"},

		{"a limit that is no number", "GET", "/v1/campaigns?limit=many", nil, 400, "?limit", "wrong_type"},
		{"a limit of 0", "GET", "/v1/campaigns?limit=0", nil, 400, "?limit", "too_small"},
		{"a limit above 200", "GET", "/v1/campaigns?limit=201", nil, 400, "?limit", "too_large"},
		{"an empty limit", "GET", "/v1/campaigns?limit=", nil, 400, "?limit", "empty"},
		{"two limits", "GET", "/v1/campaigns?limit=1&limit=2", nil, 400, "?limit", "repeated"},
		{"an invented cursor", "GET", "/v1/campaigns?cursor=abc", nil, 400, "?cursor", "invalid_cursor"},
		{"an invented cursor of keys", "GET", "/v1/api_keys?cursor=abc", nil, 400, "?cursor", "invalid_cursor"},
		{"an invented cursor of versions", "GET", template + "/versions?cursor=abc", nil, 400, "?cursor", "invalid_cursor"},
		{"an unknown status", "GET", "/v1/campaigns?status=flying", nil, 400, "?status", "not_allowed"},
		{"an unknown filter", "GET", "/v1/notifications?email=a", nil, 400, "?email", "unknown_parameter"},
		{"a header in the query", "PATCH", campaign + "?If-Match=1", object{"name": "x"}, 400, "?If-Match", "unknown_parameter"},
		{"a profile without a campaign", "GET", "/v1/notifications?profile_key=a", nil, 400, "?campaign_id", "required"},
		{"NUL in a query", "GET", "/v1/notifications?reason=%00", nil, 400, "?", "bad_query"},
		{"many parameters", "GET", "/v1/notifications?" + strings.Repeat("a&", 100) + "a", nil, 400, "?", "bad_query"},
		{"a long query", "GET", "/v1/notifications?reason=" + strings.Repeat("a", 16<<10), nil, 400, "?", "bad_query"},
		{"no UTF-8 in a query", "GET", "/v1/notifications?reason=%ff", nil, 400, "?", "bad_query"},
		{"a dry_run that is neither true nor false", "POST", campaign + "/send?dry_run=maybe", nil, 400, "?dry_run", "wrong_type"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := b.in(t)
			b.do(c.method, c.path, c.body).refuses(c)
			if c.method == "POST" && c.status != 409 { // an invalid key is refused, too
				b.do(c.method, c.path, c.body, header("Idempotency-Key", "bad "+"x")).fault(400, "Idempotency-Key:", "bad_format")
			}
		})
	}
	b.unchanged(before)
}

// refuses checks the status, and the pointer and code of a fault; * matches any.
func (a answered) refuses(c bad) {
	a.t.Helper()
	a.is(c.status)
	if a.problem.Detail == "" || a.problem.Code == "" || a.problem.RequestID == "" {
		a.t.Errorf("%s: no detail, code or request_id: %s", a.what, a.body)
	}
	if c.pointer == "" && c.code == "" {
		return
	}
	for _, f := range a.problem.Errors {
		if (c.pointer == "*" || f.Pointer == c.pointer) && (c.code == "*" || f.Code == c.code) && len(f.Detail) > 5 {
			return
		}
	}
	a.t.Errorf("%s: no %s at %q in %s", a.what, c.code, c.pointer, a.body)
}

func TestFaultsNameTheRemedy(t *testing.T) {
	b := setup(t)
	none := lemma.FormatID(lemma.PrefixAudience, lemma.NewID())
	for _, c := range []struct {
		method, path string
		body         object
		pointer      string
		detail       string
	}{
		{"PATCH", "/v1/workspace", object{"page": object{"color": "red"}}, "/page/color",
			"must be a colour as #rrggbb in lower case, such as #1f5fbf"},
		{"PATCH", "/v1/workspace", object{"page": object{"language": "pt"}}, "/page/language", `must be one of en, de, es, fr, it, nl, ""`},
		{"POST", "/v1/providers", object{"name": "x", "kind": "twilio", "config": object{"account_sid": "AC1"}}, "/config/account_sid",
			"must be AC and 32 hexadecimal digits"},
		{"POST", "/v1/providers", object{"name": "x", "kind": "apns", "config": object{"key_id": "ABC123DEFG4"}}, "/config/key_id",
			"must be the 10 letters and digits that Apple shows for the key"},
		{"PATCH", "/v1/audiences/" + none, object{"phone_region": "D"}, "/phone_region", "must have 2 characters"},
		{"POST", "/v1/iterations/power", object{"base_rate": 5, "effect": 1}, "/base_rate", "must be less than 1"},
		{"POST", "/v1/iterations/power", object{"base_rate": 0.5, "effect": 0}, "/effect",
			"must not be between -0.000001 and 0.000001, and base_rate + effect must be between 0 and 1"},
	} {
		got := b.do(c.method, c.path, c.body).fault(422, c.pointer, "*")
		for _, f := range got.problem.Errors {
			if f.Pointer == c.pointer && f.Detail != c.detail {
				t.Errorf("%s: %s", c.pointer, f.Detail)
			}
		}
	}
}

// No answer repeats a secret that was sent in a wrong field or a wrong form, since
// answers end up in logs and screenshots.
func TestRefusalsDoNotEchoSecrets(t *testing.T) {
	b := setup(t)
	const secret = "hunter2hunter2"
	long := strings.Repeat(secret, 1000)
	wrong := map[string]answered{
		"a wrong type":   b.do("POST", "/v1/data_sources", object{"name": "x", "kind": "postgres", "dsn": []string{secret}}),
		"a wrong choice": b.do("POST", "/v1/data_sources", object{"name": "x", "kind": secret, "dsn": "x"}),
		"an invalid DSN": b.do("POST", "/v1/data_sources", object{"name": "x", "kind": "postgres", "dsn": "postgres://u:" + secret + "@:x:/"}),
		"a MySQL DSN":    b.do("POST", "/v1/data_sources", object{"name": "x", "kind": "mysql", "dsn": "u:" + secret + "@tcp(h"}),
		"bad JSON":       b.do("POST", "/v1/data_sources", `{"dsn": "`+secret+`", `+secret),
		"a long password": b.do("POST", "/v1/providers",
			object{"name": "x", "kind": "smtp", "config": object{"host": "x"}, "secrets": object{"password": strings.Repeat(secret, 200)}}),
		"a wrong password": b.do("POST", "/v1/providers", object{"name": "x", "kind": "smtp", "config": object{"host": "x"}, "secrets": secret}),
	}
	for kind, secrets := range map[string][]object{
		"fcm":     {{"service_account": secret}, {"service_account": object{"private_key": secret}, "key": secret}},
		"apns":    {{"private_key": long}, {"private_key": []string{secret}}, {"key": secret}},
		"webpush": {{"vapid_private_key": long}, {"vapid_private_key": object{"d": secret}}},
		"twilio":  {{"auth_token": long}, {"api_key_sid": secret, "api_key_secret": long}},
		"ses":     {{"access_key_id": long, "secret_access_key": secret}, {"session_token": []string{secret}}},
		"http":    {{"signing_secret": long}, {"headers": object{"Authorization": []string{secret}}}, {"webhook_secret": long}},
	} {
		for i, one := range secrets {
			wrong[fmt.Sprint(kind, " ", i)] = b.do("POST", "/v1/providers",
				object{"name": "x", "kind": kind, "config": object{}, "secrets": one})
		}
	}
	for name, got := range wrong {
		if got.status < 400 || got.status >= 500 {
			t.Errorf("%s: %d", name, got.status)
		}
		if strings.Contains(string(got.body), secret) {
			t.Errorf("%s: %s", name, got.body)
		}
	}
	if strings.Contains(b.log.String(), secret) {
		t.Error("a secret is in the log")
	}
}

func TestForbiddenSources(t *testing.T) {
	b := setupWith(t, audience.Options{})
	for _, dsn := range []string{"postgres://u:p@127.0.0.1:5432/x", "postgres://u:p@169.254.169.254:5432/x", "postgres://u:p@[::1]:5432/x",
		"postgres://u:p@10.0.0.1/x",
		"postgres://u@/x?host=/var/run/postgresql"} {
		b.do("POST", "/v1/data_sources", source(dsn)).fault(422, "/dsn", "dsn_invalid")
	}
	made := b.do("POST", "/v1/data_sources", source("postgres://u:p@localhost:5432/x")).is(201) // the name is resolved when it is dialled
	path := made.header.Get("Location")
	b.do("PATCH", path, object{"dsn": "postgres://u:p@127.0.0.1/x"}).fault(422, "/dsn", "dsn_invalid")
	b.do("POST", path+"/test", nil).fault(422, "/dsn", audience.CodeRefused)
	b.do("GET", path+"/schema", nil).fault(422, "/dsn", audience.CodeRefused)
	if got := b.do("GET", path, nil).is(200); got.text("status") != "failed" || got.text("test_error") == "" {
		t.Errorf("after the test: %s", got.body)
	}
	b.do("POST", "/v1/audiences", object{"name": "x", "data_source_id": made.id(), "sql": "select 1", "key_column": "a", "email_column": "b"}).
		fault(422, "/data_source_id", audience.CodeRefused)
	b.WantCount(1, `select (select count(*) from audiences) + (select count(*) from data_sources)`)
}

func source(dsn string) object { return object{"name": "x", "kind": "postgres", "dsn": dsn} }

func TestSlowQuery(t *testing.T) {
	b := setup(t)
	w := b.world()
	slow := b.do("POST", "/v1/audiences",
		object{"name": "Slow", "data_source_id": w.source, "sql": "select id, email, pg_sleep(30)::text as nap from customers",
			"key_column": "id", "email_column": "email"}).is(201).header.Get("Location")
	brief := b.deps
	brief.Audiences = b.NewAudiences(audience.Options{AllowPrivate: true, AllowUnix: true, QueryTimeout: 300 * time.Millisecond,
		RunTimeout: 300 * time.Millisecond})
	b.server = New(brief, Options{Connections: 64, Log: slog.New(slog.DiscardHandler)})
	b.do("GET", slow+"/preview", nil).fault(422, "/sql", audience.CodeTimeout)
	b.do("GET", slow+"/counts", nil).fault(422, "/sql", audience.CodeTimeout)
}

// A template with a variable that the audience lacks is refused before a send.
func TestUnknownVariables(t *testing.T) {
	b := setup(t)
	w := b.world()
	tpl := b.do("POST", "/v1/templates", object{"name": "Odd", "subject": "{{ shoe_size }}", "text": "x"}).is(201).id()
	made := b.do("POST", "/v1/campaigns", w.newCampaign(object{"template_id": tpl})).is(201)
	path := made.header.Get("Location")
	for _, verb := range []string{"/send", "/send?dry_run=true", "/preview"} {
		method := "POST"
		if verb == "/preview" {
			method = "GET"
		}
		got := b.do(method, path+verb, nil).fault(422, "/template_id", "unknown_variable")
		if !strings.Contains(string(got.body), "shoe_size") {
			t.Errorf("%s does not name the variable: %s", verb, got.body)
		}
	}
	b.do("POST", path+"/schedule", object{"at": "2126-01-01T00:00:00Z"}).fault(422, "/template_id", "unknown_variable")
	b.do("POST", "/v1/templates/"+tpl+"/render", object{"audience_id": w.audience}).fault(422, "/audience_id", "unknown_variable")
	if got := b.do("GET", path, nil); got.text("status") != "draft" {
		t.Errorf("the campaign is %s", got.text("status"))
	}
}
