package api

import (
	"strings"
	"testing"

	"lemma/workspaces"
)

// wantSQLRefused checks an answer to a key that lacks the scope to write SQL.
func (a answered) wantSQLRefused(pointer string) {
	a.t.Helper()
	a.fault(403, pointer, "missing_scope")
	if a.problem.Code != "missing_scope" || !strings.Contains(a.problem.Detail, "audiences:write") ||
		!strings.Contains(a.header.Get("WWW-Authenticate"), `scope="audiences:write"`) {
		a.t.Errorf("%s", a.body)
	}
}

// The SQL of a metric is written only by keys that may write audiences. Others may repeat
// what the campaign has, and remove it.
func TestScopeOfSQLInMetrics(t *testing.T) {
	b := setup(t)
	w := b.world()
	few, more := as(b.key(b.Workspace, "campaigns:write")), as(b.key(b.Workspace, "campaigns:write", "audiences:write"))
	with := func(sql, source string) object {
		return object{"experiment": experimentWith(object{"metric": object{"data_source_id": source, "sql": sql}})}
	}
	const bought = "select id from customers where :cut_off_at > now()"
	const other = bought + " and name > 'M'"
	const pointer = "/experiment/metric/sql"
	before := b.fingerprint()
	b.do("POST", "/v1/campaigns", w.newCampaign(with(bought, w.source)), few).wantSQLRefused(pointer)
	b.do("PATCH", "/v1/campaigns/"+w.campaign, with(bought, w.source), few).wantSQLRefused(pointer)
	b.unchanged(before)
	b.do("POST", "/v1/campaigns", w.newCampaign(object{"experiment": experimentWith(nil)}), few).is(201) // no SQL

	path := "/v1/campaigns/" + b.do("POST", "/v1/campaigns", w.newCampaign(with(bought, w.source)), more).is(201).id()
	second := b.do("POST", "/v1/data_sources", object{"name": "Copy", "kind": "postgres", "dsn": b.DSN}).is(201).id()
	b.do("POST", "/v1/campaigns", w.newCampaign(with(bought, w.source)), few).wantSQLRefused(pointer) // that of another campaign
	b.do("PATCH", path, with(other, w.source), few).wantSQLRefused(pointer)
	b.do("PATCH", path, with(bought, second), few).wantSQLRefused(pointer)
	repeated := with(bought, w.source)
	repeated["experiment"].(object)["min_sample"] = 7
	b.do("PATCH", path, repeated, few).is(200)
	b.WantCount(7, `select min_sample from iterations where sql is not null`)
	b.do("PATCH", path, with(other, w.source), more).is(200)
	b.do("PATCH", path, object{"experiment": nil}, few).is(200)
	b.do("PATCH", path, with(other, w.source), few).wantSQLRefused(pointer) // it is gone
}

// SQL in branches is written only by keys that may write audiences. Others may repeat what
// the version itself, the live version or the newest version has on the same data source.
func TestScopeOfSQLInBranches(t *testing.T) {
	b := setup(t)
	w := b.world()
	few, more := as(b.key(b.Workspace, "flows:write")), as(b.key(b.Workspace, "flows:write", "audiences:write"))
	with := func(node object) object {
		node["else"], node["type"] = "done", "branch"
		definition := w.definition(nil)
		definition["nodes"].(object)["rest"] = node
		return object{"definition": definition}
	}
	cases := func(all ...string) object {
		found := []object{{"if": "true", "next": "done"}}
		for _, sql := range all {
			found = append(found, object{"sql": sql, "next": "done"})
		}
		return object{"cases": found}
	}
	on := func(source string, node object) object { node["data_source_id"] = source; return node }
	named := func(name string, body object) object { body["name"] = name; return body }
	const one, two = "select profile_key from people", "select profile_key from people where profile_key > '5'"
	const pointer = "/definition/nodes/rest/cases/1/sql"

	before := b.fingerprint()
	versions := "/v1/flows/" + w.flow + "/versions"
	b.do("POST", "/v1/flows", named("New", with(cases(one))), few).wantSQLRefused(pointer)
	b.do("POST", versions, with(cases(one)), few).wantSQLRefused(pointer)
	b.do("PUT", versions+"/1", with(cases(one)), few).wantSQLRefused(pointer)
	b.unchanged(before)
	b.do("POST", "/v1/flows", named("Plain", with(cases())), few).is(201) // no SQL
	b.do("POST", versions, object{"definition": object{"nodes": 7}}, few).fault(422, "/definition/nodes", "*")

	b.do("POST", versions, with(cases(one)), more).is(201)
	repeated := with(cases(one))
	repeated["definition"].(object)["triggers"] = []object{{"type": "event", "event": "came_back"}}
	b.do("POST", versions, repeated, few).is(201)
	b.do("PUT", versions+"/3", with(cases(one)), few).is(200)
	b.do("PUT", versions+"/1", with(cases(one)), few).is(200) // the newest version has it
	b.do("POST", versions, with(cases(one, two)), few).wantSQLRefused("/definition/nodes/rest/cases/2/sql")
	b.do("POST", versions, with(on(w.source, cases(one))), few).wantSQLRefused(pointer)
	other := with(cases(one))
	other["definition"].(object)["audience_id"] = "aud_other"
	b.do("POST", versions, other, few).wantSQLRefused(pointer)

	// The live version and the replaced one count too, but no other.
	publisher := as(b.key(b.Workspace, "flows:read", "flows:publish"))
	b.do("GET", versions+"/3/validate", nil, publisher).is(200)
	b.do("POST", versions+"/3/publish", nil, publisher).is(202)
	b.do("POST", versions, with(on(w.source, cases(two))), more).is(201)
	b.do("POST", versions, with(cases()), few).is(201)
	b.do("POST", versions, with(cases(one)), few).is(201)
	b.do("POST", versions, with(on(w.source, cases(two))), few).wantSQLRefused(pointer)
	b.do("PUT", versions+"/4", with(on(w.source, cases(two))), few).is(200)
	b.do("DELETE", versions+"/6", nil, few).is(204)
	b.do("POST", versions, with(cases(one)), few).is(201) // the newest has none, the live one has it

	all := as(b.key(b.Workspace, workspaces.Admin))
	b.do("POST", "/v1/flows", named("New", with(cases(two))), all).is(201)
	b.do("PUT", versions+"/1", with(cases(two)), few).wantSQLRefused(pointer) // version 1 of another flow has it
}
