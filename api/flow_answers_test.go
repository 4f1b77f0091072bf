package api

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma/pgtest"
)

// A skipped notification of a flow has no batch, but names its flow and node.
func TestSkippedOfFlows(t *testing.T) {
	b := setup(t)
	w := b.world()
	enrollments := map[string]string{}
	for _, profile := range []string{"c3", "c4", "c6"} {
		_, enrollments[profile] = b.enrolled(w, profile)
	}
	for range 5 {
		_, err := b.deps.Flows.RunOnce(t.Context())
		b.Must(err)
	}
	addresses := map[string]any{"c3": nil, "c4": "not an address", "c6": "eve@shop.example"}
	for profile, reason := range map[string]string{"c3": "missing_address", "c4": "invalid_address", "c6": "unsubscribed"} {
		found := b.firstOf("/v1/notifications?status=skipped&flow_id=" + w.flow + "&profile_key=" + profile)
		want := object{"campaign_id": nil, "flow_id": w.flow, "enrollment_id": enrollments[profile], "node": "welcome", "reason": reason,
			"address": addresses[profile]}
		for name, value := range want {
			if found[name] != value {
				t.Errorf("%s of %s is %v, want %v", name, profile, found[name], value)
			}
		}
		explained := b.do("GET", "/v1/notifications/"+found["id"].(string)+"/explain", nil).is(200)
		if explained.json["bound"] != 0.0 || explained.json["deliveries"].(object)["at_most"] != 0.0 {
			t.Errorf("no message to %s was ever to be sent: %s", profile, explained.body)
		}
	}
	campaign, _ := b.fannedOut(w)
	if one := b.firstOf("/v1/notifications?status=skipped&campaign_id=" + campaign); one["flow_id"] != nil || one["node"] != nil ||
		one["campaign_id"] != campaign {
		t.Errorf("skipped by a campaign: %v", one)
	}
}

// A notification of a flow names its flow, enrollment and node, and no campaign.
func TestNotificationsOfFlows(t *testing.T) {
	b := setup(t)
	w := b.world()
	_, enrollment := b.enrolled(w, "c1")
	list := "/v1/notifications?flow_id=" + w.flow
	for range 5 {
		_, err := b.deps.Flows.RunOnce(t.Context())
		b.Must(err)
	}
	found := b.firstOf(list)
	want := object{"campaign_id": nil, "flow_id": w.flow, "enrollment_id": enrollment, "node": "welcome", "profile_key": "c1"}
	for name, value := range want {
		if found[name] != value {
			t.Errorf("%s is %v, want %v", name, found[name], value)
		}
	}
	b.do("GET", "/v1/notifications/"+found["id"].(string)+"/explain", nil).is(200)
	if one := b.firstOf(list + "&profile_key=c1"); one["id"] != found["id"] {
		t.Errorf("found by the person: %v", one)
	}
	for _, none := range []string{"/v1/notifications?flow_id=" + idLike("flw_"), "/v1/notifications?flow_id=flw_x", list + "&profile_key=c2"} {
		if got := b.do("GET", none, nil).is(200); len(got.json["data"].([]any)) != 0 {
			t.Errorf("%s finds %s", none, got.body)
		}
	}
	history := b.do("GET", "/v1/enrollments/"+enrollment+"/history", nil).is(200)
	if !strings.Contains(string(history.body), found["id"].(string)) {
		t.Errorf("its history does not name it: %s", history.body)
	}
	campaign, _ := b.fannedOut(w)
	if one := b.firstOf("/v1/notifications?campaign_id=" + campaign); one["campaign_id"] != campaign || one["flow_id"] != nil {
		t.Errorf("a campaign's: %v", one)
	}
}

// The scopes for a flow do not include those for its enrollments.
func TestScopesOfFlows(t *testing.T) {
	b := setup(t)
	w := b.world()
	reader, path := as(b.key(b.Workspace, "flows:read")), "/v1/flows/"+w.flow
	b.do("GET", path+"/counts", nil, reader).is(200)
	for _, personal := range []string{path + "/refusals", path + "/explain?profile_key=c1", "/v1/enrollments", "/v1/events?profile_key=c1"} {
		b.do("GET", personal, nil, reader).is(403)
	}
	writer := as(b.key(b.Workspace, "flows:write"))
	b.do("POST", path+"/versions/1/publish", nil, writer).is(403)
	b.do("POST", path+"/versions/1/publish?dry_run=true", nil, writer).is(403)
}

// A fault of a definition has a pointer into the body, in every endpoint that reports it.
func TestFaultsOfDefinitions(t *testing.T) {
	b := setup(t)
	w := b.world()
	before := b.fingerprint()
	versions := "/v1/flows/" + w.flow + "/versions"
	for _, c := range []bad{
		{"an unknown field", "POST", versions, object{"definition": w.definition(object{"colour": "red"})},
			422, "/definition/colour", "unknown_field"},
		{"an unknown field of a node", "POST", versions, object{"definition": w.with("rest", object{"fro/m": 1})},
			422, "/definition/nodes/rest/fro~1m", "unknown_field"},
		{"a wrong type", "POST", versions, object{"definition": w.definition(object{"start": 7})}, 422, "/definition/start", "wrong_type"},
		{"a wrong type in a node, put", "PUT", versions + "/1", object{"definition": w.with("rest", object{"for": 7})},
			422, "/definition/nodes/rest/for", "wrong_type"},
		{"a weight that is not whole", "POST", versions,
			object{"definition": w.with("rest", object{"type": "split", "for": nil, "next": nil, "arms": []object{{"weight": 1.5}}})}, 422,
			"/definition/nodes/rest/arms/0/weight", "wrong_type"},
		{"a name twice", "POST", versions, `{"definition": {"start": "a", "start": "b"}}`, 422, "/definition/start", "repeated"},
		{"a new flow's", "POST", "/v1/flows", object{"name": "x", "definition": w.definition(object{"overlap": true})},
			422, "/definition/overlap", "wrong_type"},
		{"no definition", "POST", versions, object{}, 422, "/definition", "required"},
		{"a list", "POST", versions, `{"definition": []}`, 422, "/definition", "wrong_type"},
		{"null", "POST", versions, `{"definition": null}`, 422, "/definition", "wrong_type"},
		{"too long", "POST", versions, object{"definition": w.with("rest", object{"name": strings.Repeat("x", 300<<10)})},
			422, "/definition", "*"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := b.in(t)
			b.do(c.method, c.path, c.body).refuses(c)
		})
	}
	b.unchanged(before)
}

// A repeated request returns the version that was made before its process crashed. Events
// and enrollments without a source_id are recorded once.
func TestFlowRequestsDoneAgain(t *testing.T) {
	b := setup(t)
	w := b.world()
	b.enrolled(w, "c9")
	path := "/v1/flows/" + w.flow
	for name, c := range map[string]struct {
		path string
		in   any
	}{
		"version": {path + "/versions", object{"definition": w.with("rest", object{"for": "PT1H"})}},
		"event":   {"/v1/events", object{"profile_key": "c1", "event": "visited"}},
		"events": {"/v1/events/bulk",
			object{"events": []object{{"profile_key": "c2", "event": "visited"}, {"profile_key": "c2", "event": "visited"}}}},
		"enrollment":  {path + "/enrollments", object{"profile_key": "c3"}},
		"enrollments": {path + "/enrollments/bulk", object{"enrollments": []object{{"profile_key": "c4"}}}},
	} {
		first := b.do("POST", c.path, c.in, under(name))
		b.Exec(`update idempotency_keys set status = null, headers = null, body = null,
			locked_until = now() - interval '1 second' where key = $1`, name)
		second := b.do("POST", c.path, c.in, under(name))
		if first.status >= 300 || second.status >= 300 || second.header.Get("Idempotent-Replayed") != "" {
			t.Errorf("%s: %d and then %d: %s", name, first.status, second.status, second.body)
		}
	}
	if got := b.firstOf("/v1/events?profile_key=c1&event=visited"); got["source_id"] != nil {
		t.Errorf("an event without an id has one: %v", got)
	}
	for what, want := range map[string]int{`select count(*) from flow_versions`: 2,
		`select count(*) from trigger_events where name = 'visited'`: 3,
		`select count(*) from enrollments`:                           3} {
		b.WantCount(want, what)
	}
}

func TestSpread(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"PT0S": 0, "PT10M": 10 * time.Minute, "P1D": 24 * time.Hour,
		"PT1H30M": 90 * time.Minute} {
		got, err := resumption{&text}.duration()
		if err != nil || *got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "10m", "PT", "P1M", "-PT1M", "P8D", "P99999999999D", "PT1M "} {
		if _, err := (resumption{&text}).duration(); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	if got, err := (resumption{}).duration(); got != nil || err != nil {
		t.Errorf("without one: %v, %v", got, err)
	}
}

// A source_id that was used for another event is refused: as a duplicate, the event would
// be lost.
func TestIDsOfSomethingElse(t *testing.T) {
	b := setup(t)
	w := b.world()
	b.enrolled(w, "c9")
	first := object{"profile_key": "c1", "event": "visited", "source_id": "e1"}
	b.do("POST", "/v1/events", first).is(202)
	for _, other := range []object{{"profile_key": "c2", "event": "visited", "source_id": "e1"},
		{"profile_key": "c1", "event": "left", "source_id": "e1"}} {
		b.do("POST", "/v1/events", other).fault(409, "/source_id", "id_conflict")
		got := b.do("POST", "/v1/events/bulk", object{"events": []object{first, other, {"profile_key": "c3", "event": "visited"}}}).is(202)
		if diff := cmp.Diff([]string{"", "/events/1/source_id id_conflict", ""}, got.itemFaults()); diff != "" {
			t.Error(diff)
		}
	}
	path := "/v1/flows/" + w.flow + "/enrollments"
	b.do("POST", path, object{"profile_key": "c1", "source_id": "n1"}).is(201)
	b.do("POST", path, object{"profile_key": "c2", "source_id": "n1"}).fault(409, "/source_id", "id_conflict")
}

// The answer to a change of an audience lists the flows that it blocks.
func TestAChangedAudienceWarns(t *testing.T) {
	b := setup(t)
	w := b.world()
	b.enrolled(w, "c1")
	path := "/v1/audiences/" + w.audience
	if got := b.do("PATCH", path, object{"name": "All"}).is(200); got.json["warnings"] != nil {
		t.Errorf("%v", got.json["warnings"])
	}
	got := b.do("PATCH", path, object{"sql": "select id, email, opted_out from customers"}).is(200)
	if diff := cmp.Diff([]any{"the flow Welcome, version 1, reads what is not there any more: name"}, got.json["warnings"]); diff != "" {
		t.Error(diff)
	}
	got = b.do("PATCH", path, object{"name": "All of them"}, as(b.key(b.Workspace, "audiences:write"))).is(200)
	if diff := cmp.Diff([]any{"flows read what is not there any more; which is for keys with flows:read to see"},
		got.json["warnings"]); diff != "" {
		t.Error(diff)
	}
}

// A change by which a flow in progress would lose its profiles, or the addresses of its messages, is
// refused.
func TestAnAudienceThatIsNeeded(t *testing.T) {
	b := setup(t)
	w := b.world()
	path := "/v1/audiences/" + w.audience
	b.do("PATCH", path, object{"key_column": "name"}).is(200) // nothing is in progress
	b.do("PATCH", path, object{"key_column": "id"}).is(200)
	b.enrolled(w, "c1")
	for _, patch := range []object{{"key_column": "email"}, {"email_column": nil},
		{"sql": "select id, name from customers", "email_column": nil, "opted_out_column": nil}} {
		got := b.do("PATCH", path, patch).is(409)
		if got.problem.Code != "in_use" || !strings.HasSuffix(got.problem.Detail, `: flow "Welcome"`) {
			t.Errorf("%v: %s: %s", patch, got.problem.Code, got.problem.Detail)
		}
	}
	got := b.do("PATCH", path, object{"key_column": "email"}, as(b.key(b.Workspace, "audiences:write"))).is(409)
	if strings.Contains(got.problem.Detail, "Welcome") {
		t.Errorf("for a key that reads no flows: %s", got.problem.Detail)
	}
	b.do("PATCH", path, object{"email_column": "name"}).is(200)
	b.Exec(`update flows set live_version = null, status = 'draft'`)
	b.Exec(`update enrollments set status = 'exited', ended_at = now(), resume_at = null`)
	b.do("PATCH", path, object{"key_column": "email"}).is(200)
}

// A patch finds a flow that was published while the source validated its query: those that begin to use
// the audience lock it.
func TestAnAudienceThatIsNeededMeanwhile(t *testing.T) {
	b := setup(t)
	w := b.world()
	held, err := b.Pool.Begin(t.Context())
	b.Must(err)
	_, err = held.Exec(t.Context(), `select from audiences for share`)
	b.Must(err)
	patched := make(chan answered)
	go func() { patched <- b.do("PATCH", "/v1/audiences/"+w.audience, object{"key_column": "name"}) }()
	pgtest.WaitForLocks(t, b.Pool, 1)
	b.enrolled(w, "c1")
	b.Must(held.Rollback(t.Context()))
	if got := <-patched; got.status != 409 || got.problem.Code != "in_use" {
		t.Errorf("%d %s", got.status, got.body)
	}
	b.do("POST", "/v1/flows/"+w.flow+"/versions", object{"definition": w.definition(nil)}).is(201)
	b.do("POST", "/v1/flows/"+w.flow+"/versions/2/publish", object{"in_flight": object{"mode": "stay"}}).is(202)
	for path, body := range map[string]any{"/v1/flows/" + w.flow + "/rollback": nil,
		"/v1/campaigns/" + w.campaign + "/send": nil} {
		held, err := b.Pool.Begin(t.Context())
		b.Must(err)
		_, err = held.Exec(t.Context(), `select from audiences for no key update`)
		b.Must(err)
		used := make(chan answered)
		go func() { used <- b.do("POST", path, body) }()
		pgtest.WaitForLocks(t, b.Pool, 1)
		b.Must(held.Rollback(t.Context()))
		if got := <-used; got.status > 202 {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
}

// A campaign, or a version of a flow, that begins while its audience loses the addresses of its channel is refused.
func TestAnAudienceThatLosesItsAddressesMeanwhile(t *testing.T) {
	for path, c := range map[string]struct {
		body any
		code string
	}{
		"/v1/campaigns/%[1]s/send":           {nil, "invalid"},
		"/v1/campaigns/%[1]s/schedule":       {object{"at": "2126-01-01T00:00:00Z"}, "invalid"},
		"/v1/flows/%[2]s/versions/2/publish": {object{"in_flight": object{"mode": "stay"}}, "names_what_is_gone"},
	} {
		t.Run(path, func(t *testing.T) {
			b := setup(t)
			w := b.world()
			b.do("POST", "/v1/flows/"+w.flow+"/versions", object{"definition": w.definition(nil)}).is(201)
			held, err := b.Pool.Begin(t.Context())
			b.Must(err)
			_, err = held.Exec(t.Context(), `select from audiences for no key update`)
			b.Must(err)
			_, err = held.Exec(t.Context(), `update audiences set email_column = null, phone_column = 'name'`)
			b.Must(err)
			used := make(chan answered)
			go func() { used <- b.do("POST", fmt.Sprintf(path, w.campaign, w.flow), c.body) }()
			pgtest.WaitForLocks(t, b.Pool, 1)
			b.Must(held.Commit(t.Context()))
			if got := <-used; got.status < 400 || got.problem.Code != c.code {
				t.Errorf("%s: %d %s", path, got.status, got.body)
			}
			if got := b.do("GET", "/v1/campaigns/"+w.campaign, nil); got.text("status") != "draft" {
				t.Errorf("the campaign is %s", got.text("status"))
			}
		})
	}
}

// So is one by which a campaign would.
func TestAnAudienceThatACampaignNeeds(t *testing.T) {
	b := setup(t)
	w := b.world()
	path := "/v1/audiences/" + w.audience
	b.Exec(`update campaigns set status = 'paused', started_at = now(), status_reason = 'requested'`)
	b.do("PATCH", path, object{"phone_column": nil}).is(200)
	for _, state := range []string{`status = 'paused'`,
		`status = 'scheduled', status_reason = null, started_at = null, scheduled_at = now() + interval '1 day'`} {
		b.Exec(`update campaigns set ` + state)
		got := b.do("PATCH", path, object{"email_column": nil}).is(409)
		if !strings.Contains(got.problem.Detail, ": campaign ") {
			t.Error(got.problem.Detail)
		}
	}
	b.do("PATCH", path, object{"key_column": "name"}).is(200) // nothing is sent yet
}

// Counts of a node: outcomes of its messages, paths of a branch, blocked enrollments.
func TestCountsOfNodes(t *testing.T) {
	b := setup(t)
	w := b.world()
	_, enrollment := b.enrolled(w, "c1")
	for range 5 {
		_, err := b.deps.Flows.RunOnce(t.Context())
		b.Must(err)
	}
	b.Exec(`update enrollments set resume_at = now() - interval '1 minute', first_due_at = now() - interval '2 minutes',
		blocked_reason = 'source_unavailable', failures = 2`)
	counts := b.do("GET", "/v1/flows/"+w.flow+"/counts", nil).is(200)
	if diff := cmp.Diff(object{"source_unavailable": 1.0}, counts.json["blocked_by"]); diff != "" || counts.json["blocked"] != 1.0 {
		t.Errorf("blocked: %s", diff)
	}
	nodes := map[any]object{}
	for _, one := range counts.json["nodes"].([]any) {
		nodes[one.(object)["node"]] = one.(object)
	}
	if diff := cmp.Diff(object{"total": 1.0, "sent": 0.0, "failed": 0.0, "skipped": 0.0, "orphaned": 0.0, "cancelled": 0.0, "pending": 1.0,
		"processing": 0.0, "deliveries": noDeliveries(nil), "engagement": object{"opens": 0.0, "unique_opens": 0.0, "clicks": 0.0,
			"unique_clicks": 0.0, "machine_opens": 0.0, "machine_clicks": 0.0, "conversions": 0.0, "unsubscribes": 0.0}},
		nodes["welcome"]["notifications"]); diff != "" ||
		nodes["rest"]["notifications"] != nil || nodes["rest"]["blocked"] != 1.0 {
		t.Errorf("%s: %s", diff, counts.body)
	}
	for query, want := range map[string]int{"any": 1, "source_unavailable": 1, "template_broken": 0} {
		if got := b.do("GET", "/v1/enrollments?blocked_reason="+query, nil).is(200); len(got.json["data"].([]any)) != want {
			t.Errorf("?blocked_reason=%s: %s", query, got.body)
		}
	}
	if got := b.do("GET", "/v1/enrollments/"+enrollment, nil).is(200); got.json["blocked_since"] == nil {
		t.Errorf("since when? %s", got.body)
	}
}
