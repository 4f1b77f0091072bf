package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/workspaces"
)

// Every operation refuses requests without a key, unknown fields and parameters, and
// malformed bodies, by the contract.
func TestEveryOperationRefuses(t *testing.T) {
	b := setup(t)
	w := b.world()
	good := w.goodBodies()
	before := b.fingerprint()
	long := `{"name": "` + strings.Repeat("x", maxBody) + `"}`
	for _, o := range operations() {
		t.Run(o.id, func(t *testing.T) {
			b := b.in(t)
			body := good[o.id]
			b.do(o.method, o.path, body, header("Authorization", "")).is(401)
			b.do(o.method, o.path, body, header("Authorization", "Bearer lk_unknown")).is(401)
			b.do(o.method, o.path, body, header("Authorization", "Basic abc")).is(401)
			b.do(o.method, o.path, body, header("Accept", "text/html")).is(406)
			b.do(o.method, o.path+"?no_such=1", body).fault(400, "?no_such", "unknown_parameter")
			b.do(o.method, o.path+"?a=%zz", body).fault(400, "?", "bad_query")
			if !o.conditional {
				b.do(o.method, o.path+o.query, body, header("If-Match", `"1"`)).fault(400, "If-Match:", "not_supported")
			}
			if !o.body {
				b.do(o.method, o.path+o.query, `{"name": "x"}`).is(400)
				return
			}
			if o.upload {
				b.do(o.method, o.path, `{}`).is(415)
				return
			}
			b.do(o.method, o.path, `{"name": `).fault(400, "", "bad_json")
			b.do(o.method, o.path, `{} {}`).fault(400, "", "trailing_bytes")
			if o.union {
				b.do(o.method, o.path, `{"no_such": 1}`).fault(422, "/kind", "required")
				b.do(o.method, o.path, `{"no_such": 1, "kind": "smtp"}`).fault(422, "/no_such", "unknown_field")
			} else {
				b.do(o.method, o.path, `{"no_such": 1}`).fault(422, "/no_such", "unknown_field")
			}
			b.do(o.method, o.path, `[]`).fault(422, "", "wrong_type")
			b.do(o.method, o.path, `null`).is(422)
			b.do(o.method, o.path, `{"x": 1, "x": 2}`).fault(422, "/x", "repeated")
			b.do(o.method, o.path, long).is(413)
			b.do(o.method, o.path, `{}`, header("Content-Type", "text/plain")).is(415)
			b.do(o.method, o.path, `{}`, header("Content-Type", "")).is(415)
			b.do(o.method, o.path, `{}`, header("Content-Type", "application/json; charset=latin1")).is(415)
			b.do(o.method, o.path, `{}`, header("Content-Encoding", "gzip")).is(415)
		})
	}
	b.unchanged(before)
}

// Each operation needs the scopes that the contract lists. The refusal names the scope
// that is missing.
func TestScopes(t *testing.T) {
	b := setup(t)
	w := b.world()
	good := w.goodBodies()
	before := b.fingerprint()
	for _, o := range operations() {
		for _, scope := range o.scopes {
			rest := slices.DeleteFunc(slices.Clone(workspaces.Scopes), func(s string) bool { return s == scope || s == workspaces.Admin })
			got := b.do(o.method, o.path+o.query, good[o.id], as(b.key(b.Workspace, rest...))).is(403)
			if got.problem.Code != "missing_scope" || !strings.Contains(got.problem.Detail, scope) ||
				!strings.Contains(got.header.Get("WWW-Authenticate"), scope) {
				t.Errorf("%s without %s: %s", o.id, scope, got.body)
			}
		}
		if o.hasID() {
			b.do(o.method, o.path+o.query, good[o.id], as(b.key(b.Workspace, o.scopes...))).is(404) // the scopes suffice; the id is unknown
		}
	}
	b.unchanged(before)
	enough := b.do("GET", "/v1/workspace", nil, as(b.key(b.Workspace, "templates:read"))).is(200)
	if diff := cmp.Diff([]any{"templates:read"}, enough.json["key"].(object)["scopes"]); diff != "" {
		t.Error(diff)
	}
}

// Some options of an operation need further scopes.
func TestScopesOfOptions(t *testing.T) {
	b := setup(t)
	w := b.world()
	path := "/v1/templates/" + w.template + "/render"
	reader, sender := as(b.key(b.Workspace, "templates:read")), as(b.key(b.Workspace, "campaigns:send"))
	b.do("POST", path, object{"data": object{"name": "Ada"}}, reader).is(200)
	b.do("POST", path, object{"audience_id": w.audience}, reader).is(403)
	b.do("POST", "/v1/campaigns/"+w.campaign+"/send?dry_run=true", nil, sender).is(403)
	b.do("POST", "/v1/campaigns/"+w.campaign+"/send", nil, sender).is(202)
}

// A key cannot create or revoke a key that has scopes beyond its own.
func TestKeysCreateNoMoreThanTheirScopes(t *testing.T) {
	b := setup(t)
	maker := as(b.key(b.Workspace, "keys:write", "campaigns:read"))
	b.do("POST", "/v1/api_keys", object{"name": "same", "scopes": []string{"campaigns:read"}}, maker).is(201)
	for _, scope := range []string{"campaigns:send", "admin"} {
		if got := b.do("POST", "/v1/api_keys", object{"name": "more", "scopes": []string{"campaigns:read", scope}}, maker).
			is(403); !strings.Contains(got.problem.Detail, scope) {
			t.Errorf("%s: %s", scope, got.body)
		}
	}
	for what, id := range map[string]string{"an admin's key": b.keyID("admin"),
		"a key with one scope more": b.keyID("campaigns:read", "campaigns:send"), "a key with another scope": b.keyID("audiences:read")} {
		if got := b.do("DELETE", "/v1/api_keys/"+id, nil, maker).is(403); got.problem.Code != "missing_scope" ||
			got.header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: %s", what, got.body)
		}
	}
	b.WantCount(0, `select count(*) from api_keys where revoked_at is not null`)
	b.do("DELETE", "/v1/api_keys/"+b.keyID("campaigns:read"), nil, maker).is(204)
	b.do("DELETE", "/v1/api_keys/"+b.keyID("campaigns:read", "audiences:read"), nil).is(204) // by an admin
	b.do("DELETE", "/v1/api_keys/"+lemma.FormatID(lemma.PrefixKey, lemma.NewID()), nil, maker).is(404)
	b.WantCount(0, `select count(*) from api_keys where name = 'more'`)
}

// For an id of another workspace, every operation answers as for an id that never
// existed, and changes nothing.
func TestAnotherWorkspacesIDs(t *testing.T) {
	b := setup(t)
	w := b.world()
	good := w.goodBodies()
	campaign, id := b.fannedOut(w)
	event, enrollment := b.enrolled(w, "c1")
	ids := map[string]string{"ds": w.source, "aud": w.audience, "tpl": w.template, "prv": w.provider, "cmp": w.campaign,
		"ntf": b.orphan(campaign, id), "key": b.firstOf("/v1/api_keys")["id"].(string), "whe": w.endpoint, "flw": w.flow, "top": w.topic,
		"sup": b.do("POST", "/v1/suppressions", good["createSuppression"]).is(201).id(), "evt": event, "enr": enrollment,
		"exp": b.do("POST", "/v1/exports", object{"type": "events", "format": "csv"}).is(202).id(),
		"itr": b.do("POST", "/v1/campaigns", w.newCampaign(object{"experiment": experimentWith(nil)})).is(201).text("iteration_id")}
	out := lemma.NewID()
	b.Exec(`insert into events_out (workspace_id, id, type, origin_id, count) values ($1, $2, 'campaign.started', $3, 1)`, b.Workspace, out,
		lemma.NewID())
	ids[lemma.PrefixEventOut] = lemma.FormatID(lemma.PrefixEventOut, out)
	before := b.fingerprint()
	for _, o := range operations() {
		if !o.hasID() {
			continue
		}
		parts := strings.Split(o.path, "/")
		never := b.do(o.method, o.path+o.query, good[o.id]).is(404)
		prefix, _, _ := strings.Cut(parts[3], "_")
		parts[3] = ids[prefix]
		theirs := b.do(o.method, strings.Join(parts, "/")+o.query, good[o.id], as(b.other)).is(404)
		if theirs.problem.Detail != never.problem.Detail || theirs.problem.Code != never.problem.Code {
			t.Errorf("%s distinguishes another workspace's id from an unknown one: %s", o.id, theirs.body)
		}
		parts[3] = "nonsense"
		b.do(o.method, strings.Join(parts, "/")+o.query, good[o.id]).is(404)
	}
	b.unchanged(before)
}

// An id of another workspace in a body or a filter is unknown.
func TestAnotherWorkspacesIDsInBodies(t *testing.T) {
	b := setup(t)
	w := b.world()
	other := as(b.other)
	audience := object{"name": "x", "data_source_id": w.source, "sql": goodSQL, "key_column": "id", "email_column": "email"}
	b.do("POST", "/v1/audiences", audience, other).fault(422, "/data_source_id", "unknown_id")
	delete(audience, "name")
	b.do("POST", "/v1/audiences/validate", audience, other).fault(422, "/data_source_id", "unknown_id")
	tpl := b.do("POST", "/v1/templates", object{"name": "x", "subject": "s", "text": "t"}, other).is(201).id()
	prv := b.do("POST", "/v1/providers", smtpProvider, other).is(201).id()
	b.do("POST", "/v1/templates/"+tpl+"/render", object{"audience_id": w.audience}, other).fault(422, "/audience_id", "unknown_id")
	mine := object{"template_id": tpl, "provider_id": prv}
	for _, theirs := range []string{"audience", "template", "provider"} {
		in := w.newCampaign(mine)
		if theirs != "audience" {
			delete(mine, theirs+"_id")
			in = w.newCampaign(mine)
		}
		got := b.do("POST", "/v1/campaigns", in, other).is(422)
		if len(got.problem.Errors) != 1 || got.problem.Errors[0].Code != "unknown_id" {
			t.Errorf("%s: %s", theirs, got.body)
		}
	}
	campaign, _ := b.fannedOut(w)
	if got := b.do("GET", "/v1/notifications?campaign_id="+campaign, nil, other).is(200); len(got.json["data"].([]any)) != 0 {
		t.Errorf("another workspace sees %s", got.body)
	}
	for _, path := range []string{"/v1/data_sources", "/v1/audiences", "/v1/campaigns", "/v1/notifications"} {
		if got := b.do("GET", path, nil, other).is(200); len(got.json["data"].([]any)) != 0 {
			t.Errorf("%s: another workspace sees %s", path, got.body)
		}
	}
	b.WantCount(0, `select count(*) from campaigns where workspace_id <> $1`, b.Workspace)
}

func TestPathsAndMethods(t *testing.T) {
	b := setup(t)
	for _, path := range []string{"/", "/v1", "/v1/", "/v2/campaigns", "/v1/campaigns/", "/v1/campaigns/x/fly", "/v1/no_such"} {
		if got := b.do("GET", path, nil).is(404); got.problem.Code != "no_such_path" {
			t.Errorf("%s: %s", path, got.body)
		}
	}
	for path, want := range map[string]string{"/v1/campaigns": "GET, HEAD, POST", "/v1/campaigns/cmp_x": "GET, HEAD, PATCH, DELETE",
		"/v1/campaigns/cmp_x/send": "POST",
		"/healthz":                 "GET, HEAD", "/v1/workspace": "GET, HEAD, PATCH", "/v1/flows/flw_x/versions/1": "GET, HEAD, PUT, DELETE"} {
		got := b.do("OPTIONS", path, nil).is(405)
		if allow := got.header.Get("Allow"); allow != want || got.problem.Code != "method_not_allowed" {
			t.Errorf("%s: Allow is %q, %s", path, allow, got.body)
		}
	}
}

func TestUnknownKindsOfToken(t *testing.T) {
	b := setup(t)
	got := b.do("GET", "/v1/workspace", nil, header("Authorization", "")).is(401)
	if h := got.header.Get("WWW-Authenticate"); h != `Bearer realm="lemma"` {
		t.Errorf("without a key: %s", h)
	}
	got = b.do("GET", "/v1/workspace", nil, as("lk_wrong")).is(401)
	if h := got.header.Get("WWW-Authenticate"); !strings.Contains(h, `error="invalid_token"`) {
		t.Errorf("with a wrong key: %s", h)
	}
	b.do("GET", "/v1/workspace", nil, header("Authorization", "bearer "+b.token)).is(200)
	r := httptest.NewRequest(http.MethodGet, "/v1/workspace", nil)
	r.Header["Authorization"] = []string{"Bearer " + b.token, "Bearer " + b.other}
	w := httptest.NewRecorder()
	if b.server.ServeHTTP(w, r); w.Code != 401 {
		t.Errorf("two keys at once: %d", w.Code)
	}
}

// fingerprint returns a hash of each table, and the number of revoked keys.
func (b *bundle) fingerprint() string {
	b.T.Helper()
	var all []string
	for _, table := range []string{"data_sources", "audiences", "templates", "template_versions", "providers", "campaigns", "notifications",
		"resolutions", "idempotency_keys",
		"flows", "flow_versions", "flow_log", "enrollments", "enrollment_steps", "trigger_events", "refusals", "webhook_endpoints"} {
		var sum string
		b.Must(b.Pool.QueryRow(b.T.Context(),
			fmt.Sprintf(`select coalesce(md5(string_agg(x::text, ',' order by x::text)), '') from %s x`, table)).Scan(&sum))
		all = append(all, table+" "+sum)
	}
	all = append(all, fmt.Sprint("revoked ", b.Count(`select count(*) from api_keys where revoked_at is not null`)))
	return strings.Join(all, "\n")
}

func (b *bundle) unchanged(before string) {
	b.T.Helper()
	if diff := cmp.Diff(before, b.fingerprint()); diff != "" {
		b.T.Errorf("a refused request changed something:\n%s", diff)
	}
}

// keyID creates a key and returns its id.
func (b *bundle) keyID(scopes ...string) string {
	b.T.Helper()
	key, _, err := b.deps.Workspaces.CreateKey(b.T.Context(), b.Workspace, workspaces.NewKey{ID: lemma.NewID(), Name: "test", Scopes: scopes})
	b.Must(err)
	return lemma.FormatID(lemma.PrefixKey, key.ID)
}
