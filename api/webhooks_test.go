package api

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/pgtest"
)

// A failing endpoint is shown in the enrollment's history, at the endpoint, and by
// explain.
func TestAFailingEndpointIsShown(t *testing.T) {
	b := setup(t)
	w := b.world()
	w.flow = b.do("POST", "/v1/flows",
		object{"name": "Call", "definition": object{"triggers": []object{{"type": "event", "event": "signed_up"}},
			"recurrence": object{"policy": "once"}, "start": "call", "nodes": object{
				"call": object{"type": "webhook", "endpoint_id": w.endpoint, "next": "done"}, "done": object{"type": "exit"}}}}).is(201).id()
	simulated := b.do("POST", "/v1/flows/"+w.flow+"/versions/1/simulate",
		object{"profile_key": "c1", "trigger": object{"event": "signed_up"}}).is(200)
	if !strings.Contains(string(simulated.body), `"endpoint_id":"`+w.endpoint+`","body":{"type":"flow.webhook"`) {
		t.Errorf("a simulation does not show the body: %s", simulated.body)
	}
	_, enrollment := b.enrolled(w, "c1")
	_, err := b.deps.Flows.RunOnce(t.Context())
	b.Must(err)
	b.Exec(`update outbox set attempts = 4, status_code = 500, last_error = 'status', called_at = now(),
		due_at = now() + interval '1 hour'`)

	steps := b.do("GET", "/v1/enrollments/"+enrollment+"/history", nil).is(200).json["steps"].([]any)
	last := steps[len(steps)-1].(object)
	message, _ := last["webhook_message"].(object)
	if last["event"] != "webhook" || message["status"] != "pending" || message["attempts"] != 4.0 || message["status_code"] != 500.0 ||
		message["reason"] != "status" || message["next_at"] == nil ||
		!strings.HasPrefix(message["id"].(string), "msg_") || last["notification"] != nil {
		t.Errorf("the history has %v", last)
	}
	endpoint := "/v1/webhook_endpoints/" + w.endpoint
	health := b.do("GET", endpoint, nil).is(200).json["health"].(object)
	failure, _ := health["last_failure"].(object)
	if health["pending"] != 1.0 || health["oldest_pending_since"] == nil || health["last_delivered_at"] != nil ||
		failure["status_code"] != 500.0 || failure["reason"] != "status" {
		t.Errorf("the endpoint has %v", health)
	}
	if m := b.firstOf(endpoint + "/messages?status=pending"); m["id"] != message["id"] || m["enrollment_id"] != enrollment ||
		m["flow_id"] != w.flow || m["finished_at"] != nil {
		t.Errorf("its messages are %v", m)
	}
	explained := b.do("GET", "/v1/flows/"+w.flow+"/explain?profile_key=c1", nil).is(200)
	if !strings.Contains(explained.text("summary"), "called 4 times, last answered 500, next try at ") {
		t.Errorf("explained: %s", explained.body)
	}

	b.Exec(`update outbox set status = 'failed', status_code = null, last_error = 'timeout', finished_at = now()`)
	m := b.firstOf(endpoint + "/messages?status=failed")
	if m["status"] != "failed" || m["status_code"] != nil || m["reason"] != "timeout" || m["next_at"] != nil {
		t.Errorf("its messages are %v", m)
	}
	b.do("GET", endpoint+"/messages?status=pending", nil, as(b.other)).is(404)

	b.Exec(`delete from outbox`) // seven days after its end
	steps = b.do("GET", "/v1/enrollments/"+enrollment+"/history", nil).is(200).json["steps"].([]any)
	kept, _ := steps[len(steps)-1].(object)["webhook_message"].(object)
	want := object{"id": message["id"], "status": nil, "attempts": nil, "status_code": nil, "reason": nil, "called_at": nil, "next_at": nil}
	if diff := cmp.Diff(want, kept); diff != "" {
		t.Errorf("of a deleted message, the history has (-want +got):\n%s", diff)
	}
}

// An endpoint subscribes, receives an event, and its messages are read and sent again.
func TestAnEndpointSubscribes(t *testing.T) {
	b := setup(t)
	w := b.world()
	made := b.do("POST", "/v1/webhook_endpoints", object{"name": "events", "url": "https://events.shop.example",
		"subscriptions": []object{{"types": []string{"campaign.started", "notification.skipped"}, "campaign_ids": []string{w.campaign}}}}).is(201)
	endpoint := "/v1/webhook_endpoints/" + made.id()
	if made.json["status"] != "enabled" || made.json["sequence"] != 0.0 || len(made.json["subscriptions"].([]any)) != 1 {
		t.Errorf("the endpoint is %s", made.body)
	}
	b.do("POST", "/v1/campaigns/"+w.campaign+"/send", nil).is(202)
	_, err := b.deps.Webhooks.Publish(t.Context())
	b.Must(err)
	m := b.firstOf(endpoint + "/messages?status=pending&type=campaign.started")
	if m["type"] != "campaign.started" || m["sequence"] != 1.0 || m["enrollment_id"] != nil {
		t.Errorf("the message is %v", m)
	}
	e := b.do("GET", "/v1/events_out/"+m["event_id"].(string), nil).is(200)
	if e.json["type"] != "campaign.started" || e.json["campaign_id"] != w.campaign || e.json["count"] != 0.0 {
		t.Errorf("the event is %s", e.body)
	}
	b.do("GET", "/v1/events_out/"+m["event_id"].(string), nil, as(b.other)).is(404)

	b.Exec(`update outbox set status = 'failed', last_error = 'timeout', finished_at = now()`)
	b.do("POST", endpoint+"/resend", object{"message_id": m["id"]}).is(200)
	b.do("POST", endpoint+"/resend", object{"message_id": m["id"], "statuses": []string{"failed"}}).is(422)
	b.do("POST", endpoint+"/resend", object{"message_id": "msg_x"}).is(404)
	b.Exec(`update outbox set status = 'failed', finished_at = now()`)
	if got := b.do("POST", endpoint+"/resend", object{}).is(200); got.json["resent"] != 1.0 {
		t.Errorf("sent again: %s", got.body)
	}
	if test := b.do("POST", endpoint+"/test", nil).is(202); test.json["type"] != "test" || test.json["sequence"] != nil {
		t.Errorf("the test is %s", test.body)
	}
	disabled := b.do("PATCH", endpoint, object{"status": "disabled", "subscriptions": []object{}}).is(200)
	if disabled.json["status_reason"] != "requested" || len(disabled.json["subscriptions"].([]any)) != 0 {
		t.Errorf("the endpoint is %s", disabled.body)
	}
	b.do("POST", endpoint+"/test", nil).is(409)
	for name, bad := range map[string]object{
		"an unknown type": {"subscriptions": []object{{"types": []string{"campaign.opened"}}}},
		"no type":         {"subscriptions": []object{{"types": []string{}}}},
		"a foreign id":    {"subscriptions": []object{{"types": []string{"campaign.started"}, "campaign_ids": []string{w.flow}}}},
		"too many ids": {"subscriptions": []object{{"types": []string{"campaign.started"},
			"campaign_ids": slices.Repeat([]string{w.campaign}, 60), "flow_ids": slices.Repeat([]string{w.flow}, 60)}}},
		"a status": {"status": "paused"},
	} {
		if got := b.do("PATCH", endpoint, bad); got.status != 422 {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
}

// Metadata has a bounded size wherever it is given.
func TestLargeMetadataIsRefused(t *testing.T) {
	b := setup(t)
	w := b.world()
	large := object{}
	for i := range 18 {
		large[string(rune('a'+i))] = strings.Repeat("v", 1_000)
	}
	selecting := object{}
	for i := range 18 {
		selecting[strings.Repeat(string(rune('a'+i)), 500)] = strings.Repeat("v", 500)
	}
	subscribed := object{"name": "events", "url": "https://events.shop.example",
		"subscriptions": []object{{"types": []string{"campaign.started"}, "metadata": selecting}}}
	for _, c := range []struct {
		verb, path string
		in         object
		pointer    string
	}{
		{"POST", "/v1/campaigns", w.newCampaign(object{"metadata": large}), "/metadata"},
		{"PATCH", "/v1/campaigns/" + w.campaign, object{"metadata": large}, "/metadata"},
		{"POST", "/v1/flows", object{"name": "large", "metadata": large}, "/metadata"},
		{"PATCH", "/v1/flows/" + w.flow, object{"metadata": large}, "/metadata"},
		{"POST", "/v1/notifications", w.newDirect(object{"metadata": large}), "/metadata"},
		{"POST", "/v1/webhook_endpoints", subscribed, "/subscriptions/0/metadata"},
	} {
		refused := b.do(c.verb, c.path, c.in).is(422).problem.Errors
		if len(refused) != 1 || refused[0].Code != "too_large" || refused[0].Pointer != c.pointer {
			t.Errorf("%s %s: %+v", c.verb, c.path, refused)
		}
	}
}

// A subscription to campaigns and flows that the workspace does not have is refused, with each
// of them, and nothing is stored.
func TestASubscriptionToUnknownOrigins(t *testing.T) {
	b := setup(t)
	w := b.world()
	none := func(prefix string) string { return lemma.FormatID(prefix, lemma.NewID()) }
	of := func(campaigns, flows []string) object {
		return object{"name": "events", "url": "https://events.shop.example", "subscriptions": []object{
			{"types": []string{"campaign.started"}, "campaign_ids": campaigns, "flow_ids": flows}}}
	}
	bad := of([]string{w.campaign, none(lemma.PrefixCampaign)}, []string{none(lemma.PrefixFlow), w.flow})
	want := []string{"/subscriptions/0/campaign_ids/1", "/subscriptions/0/flow_ids/0"}
	pointers := func(a answered) (all []string) {
		for _, e := range a.is(422).problem.Errors {
			if e.Code == "unknown_id" {
				all = append(all, e.Pointer)
			}
		}
		return all
	}
	if diff := cmp.Diff(want, pointers(b.do("POST", "/v1/webhook_endpoints", bad))); diff != "" {
		t.Error(diff)
	}
	foreign := b.do("POST", "/v1/webhook_endpoints", of([]string{w.campaign}, []string{}), as(b.other))
	if diff := cmp.Diff([]string{"/subscriptions/0/campaign_ids/0"}, pointers(foreign)); diff != "" {
		t.Errorf("a campaign of another workspace: %s: %s", diff, foreign.body)
	}
	b.WantCount(0, `select count(*) from webhook_endpoints where name = 'events'`)
	endpoint := "/v1/webhook_endpoints/" + b.do("POST", "/v1/webhook_endpoints", of([]string{w.campaign}, []string{w.flow})).is(201).id()
	if diff := cmp.Diff(want, pointers(b.do("PATCH", endpoint, object{"subscriptions": bad["subscriptions"]}))); diff != "" {
		t.Error(diff)
	}
	b.WantCount(1, `select count(*) from webhook_endpoints where jsonb_array_length(subscriptions->0->'campaign_ids') = 1`)
}

// A system that keeps addresses of its own learns of each that is suppressed, and of its cause.
func TestAnEndpointReceivesSuppressions(t *testing.T) {
	b := setup(t)
	endpoint := "/v1/webhook_endpoints/" + b.do("POST", "/v1/webhook_endpoints", object{"name": "CRM", "url": "https://crm.shop.example",
		"subscriptions": []object{{"types": []string{"suppression.added"}}}}).is(201).id()
	add := object{"channel": "sms", "address": "+49 151 23456789", "cause": "unsubscribed"}
	first := b.do("POST", "/v1/suppressions", add).is(201).id()
	b.do("POST", "/v1/suppressions", add).is(200)
	second := b.do("POST", "/v1/suppressions", object{"channel": "email", "address": "ann@shop.example"}).is(201).id()
	b.do("DELETE", "/v1/suppressions/"+second, nil).is(204)
	_, err := b.deps.Webhooks.Publish(t.Context())
	b.Must(err)
	m := b.firstOf(endpoint + "/messages?status=pending")
	e := b.do("GET", "/v1/events_out/"+m["event_id"].(string), nil).is(200)
	item := func(id, cause string, channel, address any) any {
		return map[string]any{"id": id, "detail": cause, "profile_key": nil, "status": nil, "reason": nil, "channel": channel, "address": address}
	}
	want := []any{item(first, "unsubscribed", "sms", "+4915123456789"), item(second, "manual", nil, nil)}
	if diff := cmp.Diff(want, e.json["items"]); diff != "" {
		t.Error(diff)
	}
	var data struct {
		Count int      `json:"count"`
		IDs   []string `json:"suppression_ids"`
	}
	b.Must(json.Unmarshal(pgtest.One[[]byte](t, b.Pool, `select body::jsonb->'data' from outbox`), &data))
	if data.Count != 2 || !slices.Equal(data.IDs, []string{first, second}) {
		t.Errorf("the message has %v", data)
	}
}

// The items of an event are read by keys with the scope of the items only.
func TestAnEventNeedsTheScopeOfItsItems(t *testing.T) {
	b := setup(t)
	for kind, scope := range map[string]string{"notification.sent": "notifications:read", "enrollment.exited": "enrollments:read",
		"suppression.added": "suppressions:read", "campaign.started": ""} {
		event := lemma.NewID()
		b.Exec(`insert into events_out (workspace_id, id, type, origin_id, keys, count, published_at, body)
			values ($1, $2, $3, $2, uuid_send($2), 1, now(), '{}')`, b.Workspace, event, kind)
		path := "/v1/events_out/" + lemma.FormatID(lemma.PrefixEventOut, event)
		few := as(b.key(b.Workspace, "webhooks:read"))
		if scope == "" {
			b.do("GET", path, nil, few).is(200)
			continue
		}
		b.do("GET", path, nil, few).is(403)
		b.do("GET", path, nil, as(b.key(b.Workspace, "webhooks:read", scope))).is(200)
	}
}
