package api

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"

	"lemma/exports"
	"lemma/workspaces"
)

func TestContractIsValid(t *testing.T) {
	t.Parallel()
	if err := contract().Validate(t.Context(), openapi3.EnableExamplesValidation(), openapi3.EnableSchemaFormatValidation()); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(contract().OpenAPI, "3.0.") {
		t.Error("3.1 costs ten times the time per request")
	}
}

// Every route is in openapi.yaml, and every operation in it has a route.
func TestRoutesAndFileAgree(t *testing.T) {
	t.Parallel()
	var routes, file []string
	collect := func(method, path string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		if path != "/docs/" && path != "/docs/*" { // the page's assets
			routes = append(routes, method+" "+path)
		}
		return nil
	}
	none := http.NotFoundHandler()
	if err := chi.Walk(New(Deps{Pages: none, Tracking: none, Exports: &exports.Exports{}}, Options{Metrics: none}).(chi.Router),
		collect); err != nil {
		t.Fatal(err)
	}
	for path, item := range contract().Paths.Map() {
		for method := range item.Operations() {
			file = append(file, method+" "+path)
		}
	}
	slices.Sort(routes)
	slices.Sort(file)
	if diff := cmp.Diff(file, routes); diff != "" {
		t.Errorf("file (-) and routes (+) differ:\n%s", diff)
	}
}

// Each operation lists the scopes that it needs, which must exist, and the statuses that
// any request can get.
func TestEveryOperationIsComplete(t *testing.T) {
	t.Parallel()
	for _, o := range operations() {
		for _, scope := range o.scopes {
			if !slices.Contains(workspaces.Scopes, scope) {
				t.Errorf("%s needs %s, which no key can have", o.id, scope)
			}
		}
	}
	for path, item := range contract().Paths.Map() {
		for method, op := range item.Operations() {
			if op.Summary == "" || op.Description == "" || len(op.Tags) != 1 || op.OperationID == "" {
				t.Errorf("%s %s has no summary, description, tag or name", method, path)
			}
			if keepsNothing(op) != strings.HasPrefix(op.Description, "Nothing is kept.") {
				t.Errorf("%s %s: its Idempotency-Key and its description differ on whether something is kept", method, path)
			}
			if keepsNothing(op) && op.RequestBody == nil {
				t.Errorf("%s %s only reads and needs no body: it is a GET", method, path)
			}
			if !strings.HasPrefix(path, "/v1/") {
				continue
			}
			want := []int{400, 401, 406, 500, 503}
			if len(scopesOf(op)) > 0 {
				want = append(want, 403)
			}
			if strings.Contains(path, "{id}") {
				want = append(want, 404)
			}
			if op.RequestBody != nil {
				want = append(want, 413, 415, 422)
			}
			for _, status := range want {
				if op.Responses.Status(status) == nil {
					t.Errorf("%s does not list %d", op.OperationID, status)
				}
			}
		}
	}
}

// The page at /docs fills in examples. A header with an example would be sent with each
// request, every time with the same value.
func TestHeadersAreNotFilledIn(t *testing.T) {
	t.Parallel()
	for name, p := range contract().Components.Parameters {
		if p.Value.In == openapi3.ParameterInHeader &&
			(p.Value.Example != nil || p.Value.Examples != nil || p.Value.Schema.Value.Example != nil || p.Value.Schema.Value.Default != nil) {
			t.Errorf("%s is filled in", name)
		}
	}
}

// An unknown field is a fault.
func TestInputsAreClosed(t *testing.T) {
	t.Parallel()
	open := append(slices.Clone(openOfDirect), "RenderRequest/data", "ProviderTestRequest/data",
		"NewCampaign/headers", "NewCampaign/metadata", "CampaignPatch/headers", "CampaignPatch/metadata",
		"NewFlow/metadata", "FlowPatch/metadata", "NewFlow/definition/nodes", "NewFlowVersion/definition/nodes", // by their ids
		"NewFlow/definition/layout", "NewFlowVersion/definition/layout", // an editor's own
		"InFlightOptions/in_flight/map", "FlowRollback/in_flight/map", "SimulationRequest/webhooks",
		"SimulationRequest/trigger/properties", "NewEnrollment/properties", "NewEvent/properties",
		"ProviderPatch/config/headers", "ProviderPatch/secrets/headers", // of a gateway
		"NewWebhookEndpoint/subscriptions/metadata", "WebhookEndpointPatch/subscriptions/metadata",
		"ProviderPatch/secrets/service_account") // a file of Google
	var check func(at string, s *openapi3.Schema)
	check = func(at string, s *openapi3.Schema) {
		if len(s.AllOf) == 1 { // only to describe it further, such as that it may be null
			s = s.AllOf[0].Value
		}
		closed := s.AdditionalProperties.Has != nil && !*s.AdditionalProperties.Has
		if s.Type.Is("object") && !closed && !slices.Contains(open, at) {
			t.Errorf("%s takes any field", at)
		}
		for name, p := range s.Properties {
			check(at+"/"+name, p.Value)
		}
	}
	for _, item := range contract().Paths.Map() {
		for _, op := range item.Operations() {
			if op.RequestBody != nil {
				if op.RequestBody.Value.Content["application/json"] == nil {
					continue // an upload
				}
				ref := op.RequestBody.Value.Content.Get("application/json").Schema
				check(ref.Ref[strings.LastIndex(ref.Ref, "/")+1:], ref.Value)
			}
		}
	}
}

// Every operation succeeds at least once with each of its statuses, and each answer
// matches openapi.yaml.
func TestEveryOperationSucceeds(t *testing.T) {
	b := setup(t)
	w := b.world()
	b.checkWorkspace()
	b.checkDataSources(w)
	b.checkAudiences(w)
	b.checkTemplates(w)
	b.checkProviders(w)
	b.checkCampaigns(w)
	b.checkNotifications(w)
	b.checkFlows(w)
	b.checkFlowVersions(w)
	b.checkEvents(w)
	b.checkEnrollments(w)
	b.checkFlowVerbs(w)
	b.checkEndpoints(w)
	b.checkKeys()
	b.checkSuppressionsAndDirect(w)
	b.checkPower()
	b.checkProviderTests(w)
	b.checkHooks()
	b.checkIterations(w)
	b.checkUnsubscribe()
	b.checkTracking()
	b.checkExports()
	b.checkAudit()
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/openapi.yaml", "/docs"} {
		b.do("GET", path, nil, header("Authorization", "")).is(200)
	}
	checked.Lock()
	defer checked.Unlock()
	for _, item := range contract().Paths.Map() {
		for _, op := range item.Operations() {
			for status := range op.Responses.Map() {
				n, _ := strconv.Atoi(status)
				if n < 300 && !checked.seen[op.OperationID][n] {
					t.Errorf("%s was never seen to answer %s", op.OperationID, status)
				}
			}
		}
	}
}

func (b *bundle) checkAudiences(w world) {
	b.T.Helper()
	path := "/v1/audiences/" + w.audience
	b.do("GET", path, nil).is(200)
	b.do("GET", "/v1/audiences", nil).is(200)
	b.do("POST", "/v1/audiences/validate",
		object{"data_source_id": w.source, "sql": goodSQL, "key_column": "id", "email_column": "email"}).is(200)
	b.do("GET", path+"/preview?rows=2", nil).is(200)
	b.do("GET", path+"/preview", nil).is(200)
	count := b.do("GET", path+"/counts", nil).is(200)
	want := object{"rows": 6.0, "sendable": 2.0, "truncated": false,
		"skipped_by": object{"missing_address": 1.0, "invalid_address": 1.0, "duplicate_address": 1.0, "unsubscribed": 1.0}}
	if diff := cmp.Diff(want, count.json); diff != "" {
		b.T.Errorf("count: %s", diff)
	}
	if got := b.do("PATCH", path, object{"name": "All", "opted_out_column": nil}).is(200); got.json["opted_out_column"] != nil ||
		got.text("email_column") != "email" {
		b.T.Errorf("null did not take the column away, or more: %s", got.body)
	}
	b.do("PATCH", path, object{"opted_out_column": "opted_out"}).is(200)
	b.do("DELETE", path, nil).is(409)
	gone := b.do("POST", "/v1/audiences",
		object{"name": "Gone", "data_source_id": w.source, "sql": goodSQL, "key_column": "id", "email_column": "email"}).is(201).id()
	b.do("DELETE", "/v1/audiences/"+gone, nil).is(204)
}

func (b *bundle) checkTemplates(w world) {
	b.T.Helper()
	path := "/v1/templates/" + w.template
	b.do("GET", path, nil).is(200)
	b.do("GET", "/v1/templates", nil).is(200)
	check := b.do("POST", "/v1/templates/validate", object{"subject": "{{ name }}", "html": "{{ city }}"}).is(200)
	if diff := cmp.Diff([]any{"city", "name"}, check.json["variables"]); diff != "" {
		b.T.Error(diff)
	}
	renamed := b.do("PATCH", path, object{"name": "News 2"}, header("If-Match", `"1"`)).is(200)
	made := b.do("POST", path+"/versions", object{"subject": "Hello {{ name }}", "html": "<p>{{ name }} & co</p>"},
		header("If-Match", renamed.header.Get("ETag"))).is(201)
	if made.header.Get("Location") != path+"/versions/2" || made.header.Get("ETag") != b.do("GET", path, nil).is(200).header.Get("ETag") {
		b.T.Errorf("Location is %q, ETag is %q", made.header.Get("Location"), made.header.Get("ETag"))
	}
	b.do("POST", path+"/versions", object{"subject": "x", "html": "y"}, header("If-Match", renamed.header.Get("ETag"))).is(412)
	b.do("GET", path+"/versions", nil).is(200)
	b.do("GET", path+"/versions/2", nil).is(200)
	b.do("GET", path+"/versions/3", nil).is(404)
	if got := b.do("POST", path+"/render", object{"data": object{"name": "Ada <3"}, "version": 1}).
		is(200); got.text("html") != "<p>Hi Ada &lt;3</p>" {
		b.T.Errorf("rendered: %s", got.body)
	}
	if got := b.do("POST", path+"/render", object{"audience_id": w.audience, "profile_key": "c2"}).
		is(200); got.text("subject") != "Hello Bob" || got.text("address") != "bob@shop.example" {
		b.T.Errorf("rendered: %s", got.body)
	}
	b.do("POST", path+"/render", object{"audience_id": w.audience}).is(200)
	b.do("DELETE", path, nil).is(409)
	gone := b.do("POST", "/v1/templates", object{"name": "Gone", "subject": "s", "text": "t"}).is(201).id()
	b.do("DELETE", "/v1/templates/"+gone, nil).is(204)
}

func (b *bundle) checkProviders(w world) {
	b.T.Helper()
	path := "/v1/providers/" + w.provider
	got := b.do("GET", path, nil).is(200)
	if got.json["has_secrets"] != true || strings.Contains(string(got.body), "pass-secret-word") {
		b.T.Errorf("a provider: %s", got.body)
	}
	if diff := cmp.Diff(object{"at_least_once": 2.0, "at_most_once": 1.0, "word": "twice",
		"sentence": Capabilities{}.bounds().Sentence}, got.json["effective_bound"]); diff != "" {
		b.T.Error(diff)
	}
	b.do("GET", "/v1/providers", nil).is(200)
	if got := b.do("PATCH", path, object{"rate_per_second": nil}, header("If-Match", got.header.Get("ETag"))).
		is(200); got.json["rate_per_second"] != nil || got.text("name") != "Mail" {
		b.T.Errorf("null did not take the rate away, or more: %s", got.body)
	}
	b.do("PATCH", path, object{"rate_per_second": 20}).is(200)
	b.do("PATCH", path, object{"name": "x"}, header("If-Match", `"1"`)).is(412)
	b.do("DELETE", path, nil).is(409)
	gone := b.do("POST", "/v1/providers", object{"name": "Gone", "kind": "null", "config": object{}}).is(201)
	if diff := cmp.Diff(object{"at_least_once": 1.0, "at_most_once": 1.0, "word": "once",
		"sentence": Capabilities{IdempotencyKey: true}.bounds().Sentence}, gone.json["effective_bound"]); diff != "" {
		b.T.Error(diff)
	}
	b.do("DELETE", "/v1/providers/"+gone.id(), nil).is(204)
}

func (b *bundle) checkCampaigns(w world) {
	b.T.Helper()
	path := "/v1/campaigns/" + w.campaign
	got := b.do("GET", path, nil).is(200)
	if diff := cmp.Diff(object{"strategy": "at_least_once", "bound": 2.0}, got.json["guarantee"]); diff != "" {
		b.T.Error(diff)
	}
	if got.json["effective_bound"].(object)["word"] != "twice" { // a draft over SMTP
		b.T.Errorf("the bound: %s", got.body)
	}
	b.do("GET", "/v1/campaigns?status=draft", nil).is(200)
	patched := b.do("PATCH", path, object{"reply_to": nil, "strategy": "at_most_once", "send_deadline": "2126-12-24T10:00:00+01:00"},
		header("If-Match", got.header.Get("ETag"))).is(200)
	if patched.json["reply_to"] != nil || patched.text("send_deadline") != "2126-12-24T09:00:00Z" || patched.text("name") != "Winter" {
		b.T.Errorf("patched: %s", patched.body)
	}
	b.do("PATCH", path, object{"name": "x"}, header("If-Match", got.header.Get("ETag"))).is(412)
	if got := b.do("PATCH", path, object{"send_deadline": nil}).is(200); got.json["send_deadline"] != nil {
		b.T.Errorf("the deadline stayed: %s", got.body)
	}
	if got := b.do("PATCH", path, object{"template_error_limit": 0.1, "headers": object{"X-Fixed": "1"}}).
		is(200); got.json["template_error_limit"] != 0.1 {
		b.T.Errorf("the limit of errors: %s", got.body)
	}
	if got := b.do("PATCH", path, object{"template_error_limit": nil}).is(200); got.json["template_error_limit"] != nil {
		b.T.Errorf("the limit of errors stayed: %s", got.body)
	}
	b.checkConversion(path)
	b.do("GET", path+"/links", nil).is(200)
	if got := b.do("GET", path+"/preview", nil).is(200); got.json["sendable"] != 2.0 || len(got.json["sample"].([]any)) == 0 ||
		got.json["rendered"] != 2.0 || got.json["failed_share_at_most"] != 0.0 {
		b.T.Errorf("preview: %s", got.body)
	}
	b.do("POST", path+"/send?dry_run=true", nil).is(200)
	b.do("POST", path+"/schedule", object{"at": "2126-12-24T09:00:00", "timezone": "Europe/Berlin"}).is(202)
	if got := b.do("GET", path, nil); got.text("status") != "scheduled" || got.text("scheduled_at") != "2126-12-24T08:00:00Z" {
		b.T.Errorf("scheduled: %s", got.body)
	}
	b.do("POST", path+"/unschedule", nil).is(202)
	sent := b.do("POST", path+"/send", nil).is(202)
	if sent.header.Get("Location") != path || sent.text("status") != "preparing" {
		b.T.Errorf("sent: %s %s", sent.header.Get("Location"), sent.body)
	}
	b.do("POST", path+"/send?dry_run=true", nil).is(409)
	b.do("POST", path+"/pause", "{}").is(202)
	b.do("POST", path+"/resume", nil).is(202)
	b.do("POST", path+"/pause", "{}").is(202)
	if got := b.do("POST", path+"/resume", object{"template_error_limit": 1}).is(202); got.json["template_error_limit"] != 1.0 {
		b.T.Errorf("resumed: %s", got.body)
	}
	b.do("POST", path+"/cancel?dry_run=true", nil).is(200)
	b.do("POST", path+"/cancel", nil).is(202)
	again := b.do("POST", path+"/cancel", nil).is(409)
	if again.problem.Code != "invalid_status" || again.problem.CurrentStatus != "cancelled" || again.json["allowed_actions"] == nil {
		b.T.Errorf("cancelled twice: %s", again.body)
	}
	b.do("DELETE", path, nil).is(409)
	b.do("DELETE", "/v1/campaigns/"+b.draft(w), nil).is(204)
}

func (b *bundle) checkNotifications(w world) {
	b.T.Helper()
	campaign, id := b.fannedOut(w)
	all := b.do("GET", "/v1/notifications?limit=200&campaign_id="+campaign, nil).is(200)
	if n := len(all.json["data"].([]any)); n != 6 {
		b.T.Errorf("%d notifications: %s", n, all.body)
	}
	counts := b.do("GET", "/v1/campaigns/"+campaign, nil).is(200).json["counts"].(object)
	if counts["total"] != 6.0 || counts["skipped"] != 4.0 || counts["pending"] != 2.0 || counts["balanced"] != true {
		b.T.Errorf("counts: %v", counts)
	}
	found := b.firstOf("/v1/notifications?status=pending&address=ADA@shop.example&campaign_id=" + campaign)
	path := "/v1/notifications/" + found["id"].(string)
	bound := b.do("GET", path, nil).is(200).json["effective_bound"].(object)
	explained := b.do("GET", path+"/explain", nil).is(200).json["notification"].(object)
	if diff := cmp.Diff(bound, explained["effective_bound"]); diff != "" || bound["word"] != "twice" || found["effective_bound"] != nil {
		b.T.Errorf("the bounds %v and of the list %v: %s", bound, found["effective_bound"], diff)
	}
	b.do("GET", "/v1/notifications?profile_key=c3&reason=missing_address&status=skipped&campaign_id="+campaign, nil).is(200)
	b.do("POST", path+"/resolve", object{"resolution": "sent"}).is(409)
	orphan := "/v1/notifications/" + b.orphan(campaign, id)
	b.checkResolutions(map[string]int{"none": 1, "sent": 0, "not_sent": 0})
	if got := b.do("POST", orphan+"/resolve", object{"resolution": "not_sent", "note": "asked"}).
		is(200); got.text("resolution") != "not_sent" || got.text("status") != "orphaned" {
		b.T.Errorf("resolved: %s", got.body)
	}
	b.do("POST", orphan+"/resolve", object{"resolution": "sent"}).is(409)
	b.do("GET", orphan+"/explain", nil).is(200)
	b.checkResolutions(map[string]int{"none": 0, "sent": 0, "not_sent": 1})
	b.do("GET", "/v1/notifications?resolution=open", nil).fault(400, "?resolution", "not_allowed")
}

// checkResolutions counts the orphaned notifications by resolution.
func (b *bundle) checkResolutions(want map[string]int) {
	b.T.Helper()
	for resolution, n := range want {
		if got := b.do("GET", "/v1/notifications?resolution="+resolution, nil).is(200); len(got.json["data"].([]any)) != n {
			b.T.Errorf("%s: want %d of %s", resolution, n, got.body)
		}
	}
}

func (b *bundle) checkKeys() {
	b.T.Helper()
	made := b.do("POST", "/v1/api_keys", object{"name": "CI", "scopes": []string{"campaigns:read"}}).is(201)
	path := made.header.Get("Location")
	b.do("GET", path, nil).is(200)
	b.do("GET", "/v1/api_keys", nil).is(200)
	b.do("GET", "/v1/campaigns", nil, as(made.text("token"))).is(200)
	b.do("DELETE", path, nil).is(204)
	if got := b.do("GET", "/v1/campaigns", nil, as(made.text("token"))).is(401); got.problem.Code != "key_revoked" {
		b.T.Errorf("a revoked key: %s", got.body)
	}
}
