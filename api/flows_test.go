package api

import (
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma"
)

// enrolled publishes the flow, records an event that enrolls the profile and returns
// the ids of the event and the enrollment.
func (b *bundle) enrolled(w world, profile string) (event, enrollment string) {
	b.T.Helper()
	if b.do("GET", "/v1/flows/"+w.flow, nil).is(200).json["live_version"] == nil {
		b.do("POST", "/v1/flows/"+w.flow+"/versions/1/publish", nil).is(202)
	}
	recorded := b.do("POST", "/v1/events", object{"profile_key": profile, "event": "signed_up"}).is(202)
	for _, r := range recorded.json["results"].([]any) {
		if result := r.(object); result["status"] == "enrolled" {
			return recorded.id(), result["enrollment_id"].(string)
		}
	}
	b.T.Fatalf("%s was not enrolled: %s", profile, recorded.body)
	return "", ""
}

// with returns the definition with one node changed.
func (w world) with(node string, change object) object {
	d := w.definition(nil)
	nodes := d["nodes"].(object)
	n, _ := nodes[node].(object)
	if n == nil {
		n = object{}
	}
	for name, value := range change {
		n[name] = value
		if value == nil {
			delete(n, name)
		}
	}
	nodes[node] = n
	return d
}

func (b *bundle) checkFlows(w world) {
	b.T.Helper()
	path := "/v1/flows/" + w.flow
	got := b.do("GET", path, nil).is(200)
	if got.text("status") != "draft" || got.json["live_version"] != nil || got.header.Get("ETag") != `"1"` {
		b.T.Errorf("a flow: ETag %s, %s", got.header.Get("ETag"), got.body)
	}
	if got := b.do("PATCH", path, object{"metadata": object{"ticket": "MKT-18"}}, header("If-Match", `"1"`)).
		is(200); got.text("name") != "Welcome" {
		b.T.Errorf("patched: %s", got.body)
	}
	b.do("PATCH", path, object{"name": "x"}, header("If-Match", `"1"`)).is(412)
	b.do("GET", "/v1/flows?limit=1", nil).is(200)
	b.do("GET", "/v1/flows?status=asleep", nil).fault(400, "?status", "*")
	if got := b.do("GET", "/v1/flows?status=live", nil).is(200); len(got.json["data"].([]any)) != 0 {
		b.T.Errorf("live flows: %s", got.body)
	}
	if got := b.do("GET", "/v1/flows?status=draft", nil).is(200); len(got.json["data"].([]any)) != 1 {
		b.T.Errorf("drafts: %s", got.body)
	}
	gone := b.do("POST", "/v1/flows", object{"name": "Gone", "metadata": object{"a": "b"}}).is(201)
	if gone.header.Get("Location") != "/v1/flows/"+gone.id() {
		b.T.Errorf("Location is %q", gone.header.Get("Location"))
	}
	b.do("POST", "/v1/flows", object{"name": "Gone"}).fault(409, "/name", "name_taken")
	b.do("GET", gone.header.Get("Location")+"/counts", nil).is(404) // there is no version
	b.do("DELETE", gone.header.Get("Location"), nil).is(204)
	b.do("GET", gone.header.Get("Location"), nil).is(404)
}

func (b *bundle) checkFlowVersions(w world) {
	b.T.Helper()
	path := "/v1/flows/" + w.flow
	if got := b.do("GET", path+"/versions/1/validate", nil).is(200); got.json["valid"] != true || len(got.json["errors"].([]any)) != 0 {
		b.T.Errorf("a good version: %s", got.body)
	}
	made := b.do("POST", path+"/versions",
		object{"definition": w.with("welcome", object{"template_id": idLike("tpl_"), "next": "rost"})}).is(201)
	if made.header.Get("Location") != path+"/versions/2" || made.header.Get("ETag") != `"1"` || made.text("status") != "draft" {
		b.T.Errorf("Location %q, ETag %s: %s", made.header.Get("Location"), made.header.Get("ETag"), made.body)
	}
	v2 := path + "/versions/2"
	report := b.do("GET", v2+"/validate", nil).is(200)
	pointers := map[string]bool{}
	for _, f := range report.json["errors"].([]any) {
		pointers[f.(object)["pointer"].(string)] = true
	}
	if report.json["valid"] != false || !pointers["/nodes/welcome/next"] || !pointers["/nodes/welcome/template_id"] {
		b.T.Errorf("a faulty version: %s", report.body)
	}
	for _, verb := range []string{"/publish", "/publish?dry_run=true", "/plan"} {
		if got := b.do("POST", v2+verb, nil).fault(422, "/definition/nodes/welcome/next", "*"); got.problem.Code != "version_invalid" {
			b.T.Errorf("%s: %s", verb, got.body)
		}
	}
	b.do("POST", v2+"/simulate", object{"profile_key": "c1"}).fault(422, "/definition/nodes/welcome/next", "*")
	changed := b.do("PUT", v2, object{"definition": w.with("rest", object{"for": "P3D"})}, header("If-Match", `"1"`)).is(200)
	if changed.header.Get("ETag") != `"2"` || changed.json["revision"] != 2.0 {
		b.T.Errorf("replaced: %s", changed.body)
	}
	b.do("PUT", v2, object{"definition": w.definition(nil)}, header("If-Match", `"1"`)).is(412)
	if got := b.do("GET", v2, nil).is(200); got.header.Get("ETag") != `"2"` || got.json["definition"].(object)["start"] != "welcome" {
		b.T.Errorf("a version: ETag %s, %s", got.header.Get("ETag"), got.body)
	}
	if got := b.do("GET", path+"/versions", nil).is(200); strings.Contains(string(got.body), "definition") ||
		len(got.json["data"].([]any)) != 2 {
		b.T.Errorf("versions: %s", got.body)
	}
	unwanted := b.do("POST", path+"/versions", object{"definition": w.definition(nil)}).is(201)
	b.do("DELETE", path+"/versions/3", nil, header("If-Match", `"2"`)).is(412)
	b.do("DELETE", path+"/versions/3", nil, header("If-Match", unwanted.header.Get("ETag"))).is(204)
	b.do("DELETE", path+"/versions/3", nil).is(404)
	b.do("GET", path+"/versions/3", nil).is(404)
	b.do("GET", path+"/versions/0", nil).is(404)
	b.do("GET", path+"/versions/x", nil).is(404)
	b.holdDiff(path + "/diff")
}

// holdDiff checks the diff to a newest version that waits a day longer than the one before.
func (b *bundle) holdDiff(path string) {
	b.T.Helper()
	want := object{"from_version": 1.0, "to_version": 2.0,
		"changes": []any{object{"pointer": "/nodes/rest/for", "op": "replace", "from": "P2D", "to": "P3D"}}}
	for _, query := range []string{"", "?from=1", "?from=1&to=2"} {
		if diff := cmp.Diff(want, b.do("GET", path+query, nil).is(200).json); diff != "" {
			b.T.Errorf("diff%s: %s", query, diff)
		}
	}
	b.do("GET", path+"?to=9", nil).is(404)
}

func (b *bundle) checkEvents(w world) {
	b.T.Helper()
	flow := "/v1/flows/" + w.flow
	etag := b.do("GET", flow, nil).is(200).header.Get("ETag")
	if got := b.do("POST", flow+"/versions/1/publish?dry_run=true", nil).is(200); got.json["enrolls"] != 0.0 ||
		got.json["live_version"] != nil {
		b.T.Errorf("a plan: %s", got.body)
	}
	b.do("POST", flow+"/versions/1/publish", object{"in_flight": object{"mode": "stay"}}, header("If-Match", `"0"`)).is(412)
	now := b.do("POST", flow+"/versions/1/publish", object{}, header("If-Match", etag)).is(202)
	if now.text("status") != "live" || now.json["live_version"] != 1.0 || now.header.Get("ETag") == etag ||
		now.header.Get("Location") != flow {
		b.T.Errorf("published: %s", now.body)
	}
	in := object{"profile_key": "c1", "event": "signed_up", "source_id": "signup-1", "properties": object{"plan": "pro", "seats": 3},
		"occurred_at": "2026-01-01T10:00:00+01:00"}
	recorded := b.do("POST", "/v1/events", in).is(202)
	if recorded.text("status") != "accepted" || len(recorded.json["results"].([]any)) != 1 ||
		recorded.header.Get("Location") != "/v1/events/"+recorded.id() {
		b.T.Errorf("recorded: %s", recorded.body)
	}
	again := b.do("POST", "/v1/events", in).is(202)
	if again.text("status") != "duplicate" || again.id() != recorded.id() {
		b.T.Errorf("recorded twice: %s", again.body)
	}
	got := b.do("GET", recorded.header.Get("Location"), nil).is(200)
	if got.text("source_id") != "signup-1" || got.text("occurred_at") != "2026-01-01T09:00:00Z" || len(got.json["results"].([]any)) != 1 {
		b.T.Errorf("an event: %s", got.body)
	}
	if diff := cmp.Diff(object{"plan": "pro", "seats": 3.0}, got.json["properties"]); diff != "" {
		b.T.Error(diff)
	}
	listed := b.do("GET", "/v1/events?profile_key=c1&event=signed_up", nil).is(200)
	if len(listed.json["data"].([]any)) != 1 {
		b.T.Errorf("events: %s", listed.body)
	}
	bulk := b.do("POST", "/v1/events/bulk",
		object{"events": []object{in, {"profile_key": "c2", "event": "signed_up"}, {"event": "x"}}}).is(202)
	if diff := cmp.Diff(object{"accepted": 1.0, "duplicate": 1.0, "invalid": 1.0, "overloaded": 0.0}, bulk.json["counts"]); diff != "" {
		b.T.Errorf("%s: %s", diff, bulk.body)
	}
}

func (b *bundle) checkEnrollments(w world) {
	b.T.Helper()
	flow := "/v1/flows/" + w.flow
	if would := b.do("POST", flow+"/enrollments?dry_run=true", object{"profile_key": "c3"}).is(200); would.text("status") != "enrolled" ||
		would.json["enrollment_id"] != nil || would.json["dry_run"] != true {
		b.T.Errorf("only asked: %s", would.body)
	}
	made := b.do("POST", flow+"/enrollments", object{"profile_key": "c3", "properties": object{"by": "hand"}}).is(201)
	path := "/v1/enrollments/" + made.text("enrollment_id")
	if made.text("status") != "enrolled" || made.json["dry_run"] != false || made.header.Get("Location") != path {
		b.T.Errorf("enrolled: Location %q, %s", made.header.Get("Location"), made.body)
	}
	again := b.do("POST", flow+"/enrollments", object{"profile_key": "c3"}).is(200)
	if again.text("status") != "refused" || again.text("enrollment_id") != made.text("enrollment_id") || again.header.Get("Location") != "" {
		b.T.Errorf("enrolled twice: %s", again.body)
	}
	bulk := b.do("POST", flow+"/enrollments/bulk",
		object{"enrollments": []any{object{"profile_key": "c3"}, object{"profile_key": "c4"}, "c5"}}).is(200)
	if diff := cmp.Diff(object{"enrolled": 1.0, "refused": 1.0, "invalid": 1.0}, bulk.json["counts"]); diff != "" {
		b.T.Errorf("%s: %s", diff, bulk.body)
	}
	got := b.do("GET", path, nil).is(200)
	if got.text("trigger_type") != "direct" || got.json["version"] != 1.0 || got.json["ended_at"] != nil {
		b.T.Errorf("an enrollment: %s", got.body)
	}
	if all := b.do("GET", "/v1/enrollments?status=active&version=1&flow_id="+w.flow, nil).is(200); len(all.json["data"].([]any)) != 4 {
		b.T.Errorf("enrollments: %s", all.body)
	}
	b.do("GET", "/v1/enrollments?profile_key=c3&node=rest", nil).is(200)
	b.do("GET", "/v1/flows/"+w.flow+"/enrollments", nil).is(200)
	if none := b.do("GET", "/v1/enrollments?flow_id=flw_x", nil).is(200); len(none.json["data"].([]any)) != 0 {
		b.T.Errorf("of a flow that there is not: %s", none.body)
	}
	b.do("POST", path+"/move", object{"node": "nowhere"}).fault(422, "/node", "unknown_node")
	if moved := b.do("POST", path+"/move", object{"node": "rest", "version": 1}).is(200); moved.text("node") != "rest" {
		b.T.Errorf("moved: %s", moved.body)
	}
	if left := b.do("POST", path+"/exit", object{"note": "asked by phone"}).is(200); left.text("exit_reason") != "manual" ||
		left.text("status") != "exited" {
		b.T.Errorf("taken out: %s", left.body)
	}
	b.do("POST", path+"/exit", nil).is(409)
	history := b.do("GET", path+"/history", nil).is(200)
	if steps := history.json["steps"].([]any); len(steps) != 3 || steps[0].(object)["event"] != "enrolled" ||
		!strings.Contains(string(history.body), "asked by phone") {
		b.T.Errorf("history: %s", history.body)
	}
	b.do("GET", "/v1/notifications?flow_id="+w.flow, nil).is(200)
	b.do("POST", "/v1/profiles/erase", object{"profile_key": "c4"}).is(200)
}

func (b *bundle) checkFlowVerbs(w world) {
	b.T.Helper()
	path := "/v1/flows/" + w.flow
	if got := b.do("GET", path+"/counts", nil).is(200); got.json["version"] != 1.0 || got.json["enrolled"] == 0.0 {
		b.T.Errorf("counts: %s", got.body)
	}
	b.do("GET", path+"/counts?version=2", nil).is(200)
	if got := b.do("GET", path+"/refusals?profile_key=c3&reason=already_enrolled", nil).is(200); len(got.json["data"].([]any)) == 0 {
		b.T.Errorf("refusals: %s", got.body)
	}
	if got := b.do("GET", path+"/explain?profile_key=c3", nil).is(200); got.text("summary") == "" ||
		len(got.json["enrollments"].([]any)) != 1 {
		b.T.Errorf("explained: %s", got.body)
	}
	b.simulate(path + "/versions/1/simulate")
	b.do("POST", path+"/versions/2/plan", object{"in_flight": object{"mode": "move", "map": object{"rest": nil}}}).is(200)
	if got := b.do("POST", path+"/versions/2/publish", object{"in_flight": object{"mode": "move"}}).is(202); got.json["live_version"] != 2.0 {
		b.T.Errorf("published: %s", got.body)
	}
	b.do("PUT", path+"/versions/2", object{"definition": w.definition(nil)}).is(409)
	if got := b.do("DELETE", path+"/versions/2", nil).is(409); got.problem.Code != "invalid_status" || got.problem.CurrentStatus != "live" {
		b.T.Errorf("a published version: %s", got.body)
	}
	if got := b.do("POST", path+"/rollback", object{"to_version": 1, "in_flight": object{"mode": "stay"}}).
		is(202); got.json["live_version"] != 1.0 {
		b.T.Errorf("rolled back: %s", got.body)
	}
	b.do("POST", path+"/rollback", object{"to_version": 9}).is(404)
	for _, verb := range []struct{ verb, body, status string }{
		{"pause", "", "paused"}, {"resume", `{"catch_up": "PT1M30S"}`, "live"}, {"pause", "{}", "paused"}, {"resume", "", "live"}, {"drain", "",
			"draining"}, {"archive", "", "archived"}} {
		if got := b.do("POST", path+"/"+verb.verb, verb.body).is(202); got.text("status") != verb.status {
			b.T.Errorf("after %s: %s", verb.verb, got.body)
		}
	}
	again := b.do("POST", path+"/pause", nil).is(409)
	if again.problem.Code != "invalid_status" || again.problem.CurrentStatus != "archived" || again.json["allowed_actions"] == nil {
		b.T.Errorf("paused at the end: %s", again.body)
	}
	b.do("DELETE", path, nil).is(409)
	log := b.do("GET", path+"/history", nil).is(200).json["data"].([]any)
	if first := log[0].(object); len(log) != 9 || first["action"] != "archived" || !strings.HasPrefix(first["api_key_id"].(string), "key_") {
		b.T.Errorf("history: %v", log)
	}
}

// simulate simulates a profile that buys a day later, which is the goal.
func (b *bundle) simulate(path string) {
	b.T.Helper()
	at := time.Now().UTC().Truncate(time.Second)
	got := b.do("POST", path,
		object{"profile_key": "c1", "trigger": object{"event": "signed_up", "properties": object{"plan": "pro"}}, "at": at,
			"events": []object{{"event": "bought", "occurred_at": at.Add(24 * time.Hour)}}}).is(200)
	if got.json["enrolled"] != true || got.text("exit_reason") != "goal" {
		b.T.Errorf("simulated: %s", got.body)
	}
	var nodes []any
	for _, one := range got.json["path"].([]any) {
		step := one.(object)
		if nodes = append(nodes, step["node"]); step["node"] == "welcome" && step["message"] != nil &&
			step["message"].(object)["address"] != "ada@shop.example" {
			b.T.Errorf("a message: %v", step)
		}
	}
	if !slices.Contains(nodes, any("welcome")) || !slices.Contains(nodes, any("rest")) {
		b.T.Errorf("by way of %v: %s", nodes, got.body)
	}
	b.do("POST", path, object{"profile_key": "c1", "trigger": object{"event": "signed_up"}, "webhooks": object{"rest": 200}}).
		fault(422, "/webhooks/rest", "unknown_node")
	if got := b.do("POST", path, object{"profile_key": "missing"}).is(200); got.json["enrolled"] != false ||
		got.text("reason") != "no_profile" {
		b.T.Errorf("of a missing profile: %s", got.body)
	}
}

func (b *bundle) checkEndpoints(w world) {
	b.T.Helper()
	path := "/v1/webhook_endpoints/" + w.endpoint
	got := b.do("GET", path, nil).is(200)
	if strings.Contains(string(got.body), "whsec_") {
		b.T.Errorf("an endpoint shows its secret: %s", got.body)
	}
	if h := got.json["health"].(object); h["pending"] != 0.0 || h["last_failure"] != nil {
		b.T.Errorf("nothing was sent yet: %s", got.body)
	}
	b.do("GET", "/v1/webhook_endpoints", nil).is(200)
	for _, state := range []string{"pending", "delivered", "failed"} {
		b.do("GET", path+"/messages?status="+state, nil).is(200)
	}
	b.do("GET", path+"/messages", nil).fault(400, "?status", "required")
	b.do("GET", path+"/messages?status=failed&cursor=x", nil).fault(400, "?cursor", "invalid_cursor")
	b.do("PATCH", path, object{"url": "https://crm.example.com/v2"}, header("If-Match", got.header.Get("ETag"))).is(200)
	b.do("PATCH", path, object{"name": "x"}, header("If-Match", got.header.Get("ETag"))).is(412)
	made := b.do("POST", "/v1/webhook_endpoints", object{"name": "Gone", "url": "https://x.example.com/"}, under("hook")).is(201)
	secret, location := made.text("secret"), made.header.Get("Location")
	if !strings.HasPrefix(secret, "whsec_") || location != "/v1/webhook_endpoints/"+made.id() {
		b.T.Errorf("Location %q: %s", location, made.body)
	}
	again := b.do("POST", "/v1/webhook_endpoints", object{"name": "Gone", "url": "https://x.example.com/"}, under("hook")).is(201)
	if again.json["secret"] != nil || again.id() != made.id() {
		b.T.Errorf("replayed: %s", again.body)
	}
	rotated := b.do("POST", location+"/rotate", nil, under("rotate")).is(200)
	if rotated.text("secret") == secret || b.do("POST", location+"/rotate", nil, under("rotate")).is(200).json["secret"] != nil {
		b.T.Errorf("rotated: %s", rotated.body)
	}
	b.WantCount(0, `select count(*) from idempotency_keys where convert_from(body, 'utf8') like '%whsec_%'`)
	b.do("POST", location+"/test", nil).is(202)
	b.do("POST", location+"/resend", object{"statuses": []string{"delivered"}}).is(200)
	event := lemma.NewID()
	b.Exec(`insert into events_out (workspace_id, id, type, origin_id, count, published_at, body)
		values ($1, $2, 'campaign.started', $2, 0, now(), '{}')`, b.Workspace, event)
	b.do("GET", "/v1/events_out/"+lemma.FormatID(lemma.PrefixEventOut, event), nil).is(200)
	b.do("DELETE", location, nil).is(204)
	b.do("GET", location, nil).is(404)
}
