package api

import (
	"strings"
	"testing"
)

// A key that may save audiences and flows, but not read rows, receives no text of the
// source in an error, and no part of a query is evaluated for it.
func TestKeysThatMayNotReadRowsSeeNoTextsOfSources(t *testing.T) {
	b := setup(t)
	w := b.world()
	b.ExecDB(`create function leak() returns text language plpgsql stable security definer as $$ begin
		raise exception 'canary %', (select email from customers where id = 'c1'); end $$`)
	writer := as(b.key(b.Workspace, "data_sources:read", "audiences:read", "audiences:write", "flows:read", "flows:write", "flows:publish"))
	draft := func(sql string) object {
		return object{"data_source_id": w.source, "sql": sql, "key_column": "id", "email_column": "email"}
	}
	leaking := "select id, email from customers where id = leak()"
	if got := b.do("POST", "/v1/audiences/validate", draft(leaking), writer).is(200); got.json["estimated_rows"] != nil {
		t.Errorf("planned for a key that may not read rows: %s", got.body)
	}
	if got := b.do("POST", "/v1/audiences/validate", draft(leaking)).fault(422, "/sql", "*"); !strings.Contains(string(got.body),
		"canary ada@shop.example") {
		t.Errorf("an admin is shown %s", got.body)
	}
	wrong := "select id, email from customers where no_such_column = 1"
	named := draft(wrong)
	named["name"] = "Wrong"
	flow := b.do("POST", "/v1/flows", object{"name": "Branch"}).is(201).id()
	definition := w.definition(object{"start": "ask", "nodes": object{
		"ask": object{"type": "branch", "cases": []object{{"sql": "select id from customers where no_such_column = 1", "next": "done"}},
			"else": "done"}, "done": object{"type": "exit"}}})
	b.do("POST", "/v1/flows/"+flow+"/versions", object{"definition": definition}).is(201)
	for path, body := range map[string]any{"/v1/audiences/validate": draft(wrong), "/v1/audiences": named,
		"/v1/flows/" + flow + "/versions/1/validate": nil, "/v1/flows/" + flow + "/versions/1/publish": nil} {
		method := "POST"
		if strings.HasSuffix(path, "/1/validate") {
			method = "GET"
		}
		if got := string(b.do(method, path, body, writer).body); strings.Contains(got, "no_such_column") ||
			!strings.Contains(got, "SQLSTATE 42703") {
			t.Errorf("%s shows %s", path, got)
		}
		if got := string(b.do(method, path, body).body); !strings.Contains(got, "no_such_column") {
			t.Errorf("%s shows an admin %s", path, got)
		}
	}
}

// A plan counts the profiles that match a condition of a draft. By many such counts a key
// could read rows, so a key without audiences:query receives none.
func TestPlansCountForKeysThatMayQuery(t *testing.T) {
	b := setup(t)
	w := b.world()
	text := w.definition(object{"triggers": []object{{"type": "audience", "every": "PT1H", "condition": "profile.id == 'c1'"}}})
	plan := "/v1/flows/" + b.do("POST", "/v1/flows", object{"name": "Polls", "definition": text}).is(201).id() + "/versions/1/plan"
	for _, c := range []struct {
		scopes []string
		counts bool
	}{{[]string{"flows:read", "flows:write"}, false}, {[]string{"flows:read", "audiences:query"}, true}} {
		got := b.do("POST", plan, object{}, as(b.key(b.Workspace, c.scopes...))).is(200)
		reason, _ := got.json["enrolls_unknown_reason"].(string)
		if _, counted := got.json["enrolls"].(float64); counted != c.counts || strings.HasPrefix(reason, "missing_scope") == c.counts {
			t.Errorf("%v: %s", c.scopes, got.body)
		}
	}
}
