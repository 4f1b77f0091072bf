package api

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/uuid"

	"lemma"
)

// world has the ids of one resource of each kind, created by requests.
type world struct {
	source, audience, template, provider, campaign, endpoint, flow, topic string
}

type object = map[string]any

const goodSQL = "select id, email, name, opted_out from customers order by id"

func (b *bundle) world() world {
	b.T.Helper()
	b.openShop()
	var w world
	w.source = b.do("POST", "/v1/data_sources", object{"name": "Shop", "kind": "postgres", "dsn": b.DSN}).is(201).id()
	w.audience = b.do("POST", "/v1/audiences", object{"name": "All", "data_source_id": w.source, "sql": goodSQL, "key_column": "id",
		"email_column": "email", "opted_out_column": "opted_out"}).is(201).id()
	w.template = b.do("POST", "/v1/templates", object{"name": "News", "subject": "Hi {{ name }}", "html": "<p>Hi {{ name }}</p>"}).is(201).id()
	w.provider = b.do("POST", "/v1/providers", smtpProvider).is(201).id()
	w.campaign = b.do("POST", "/v1/campaigns", w.newCampaign(nil)).is(201).id()
	w.endpoint = b.do("POST", "/v1/webhook_endpoints", object{"name": "CRM", "url": "https://crm.example.com/hooks"}).is(201).id()
	w.topic = b.do("POST", "/v1/topics", object{"name": "News"}).is(201).id()
	w.flow = b.do("POST", "/v1/flows", object{"name": "Welcome", "definition": w.definition(nil)}).is(201).id()
	return w
}

var smtpProvider = object{"name": "Mail", "kind": "smtp",
	"config":  object{"host": "127.0.0.1", "port": 2525, "tls": "none", "username": "lemma"},
	"secrets": object{"password": "pass-secret-word"}, "rate_per_second": 50}

// newCampaign returns a valid body with changes; nil deletes a field.
func (w world) newCampaign(change object) object {
	in := object{"name": "Winter", "audience_id": w.audience, "template_id": w.template, "provider_id": w.provider,
		"from": object{"email": "news@shop.example", "name": "The Shop"}, "reply_to": "help@shop.example",
		"headers": object{"X-Campaign": "winter"}, "metadata": object{"ticket": "MKT-17"}}
	for name, value := range change {
		in[name] = value
		if value == nil {
			delete(in, name)
		}
	}
	return in
}

// definition returns a valid definition with changes: an email, a delay and an exit.
func (w world) definition(change object) object {
	in := object{"audience_id": w.audience, "triggers": []object{{"type": "event", "event": "signed_up"}},
		"recurrence": object{"policy": "once"},
		"exit_on":    []object{{"event": "bought", "goal": true}}, "start": "welcome", "nodes": object{
			"welcome": object{"type": "send", "channel": "email", "provider_id": w.provider, "template_id": w.template,
				"from": object{"email": "news@shop.example"}, "next": "rest"},
			"rest": object{"type": "delay", "for": "P2D", "next": "done"},
			"done": object{"type": "exit"}}}
	maps.Copy(in, change)
	return in
}

func (b *bundle) draft(w world) string {
	b.T.Helper()
	return b.do("POST", "/v1/campaigns", w.newCampaign(nil)).is(201).id()
}

// fannedOut starts a campaign and writes its notifications, which are not sent.
func (b *bundle) fannedOut(w world) (campaign string, id uuid.UUID) {
	b.T.Helper()
	campaign = b.draft(w)
	b.do("POST", "/v1/campaigns/"+campaign+"/send", nil).is(202)
	id, _ = lemma.ParseID(lemma.PrefixCampaign, campaign)
	_, err := b.deps.Campaigns.Fanout(context.Background(), b.Workspace, id)
	b.Must(err)
	return campaign, id
}

// orphan makes one notification of a campaign orphaned and returns its id.
func (b *bundle) orphan(campaign string, id uuid.UUID) string {
	b.T.Helper()
	b.Exec(`insert into attempts (workspace_id, batch_id, ordinal, attempt, outcome, final, basis)
		select workspace_id, batch_id, ordinal, 1, 'unknown', true, 'reaper' from notifications
		where workspace_id = $1 and origin_id = $2 and batch_id is not null order by key limit 1`, b.Workspace, id)
	b.Exec(`update batches set orphaned = 1 where workspace_id = $1 and origin_id = $2`, b.Workspace, id)
	found := b.do("GET", "/v1/notifications?status=orphaned&campaign_id="+campaign, nil).is(200)
	data := found.json["data"].([]any)
	if len(data) != 1 {
		b.T.Fatalf("%d orphans: %s", len(data), found.body)
	}
	return data[0].(object)["id"].(string)
}

// operation is an operation of the contract, with a path that can be called.
type operation struct {
	id, method, path string
	query            string // the parameters that it needs, with the ?
	scopes           []string
	body             bool
	conditional      bool // by If-Match
	union            bool // the body has a variant for each kind
	upload           bool // the body is CSV
}

// operations returns those of /v1, with ids that do not exist.
func operations() []operation {
	var all []operation
	for path, item := range contract().Paths.Map() {
		for method, op := range item.Operations() {
			if !strings.HasPrefix(path, "/v1/") {
				continue
			}
			path, query, conditional := path, "", false
			for _, p := range op.Parameters {
				switch {
				case p.Value.In == "path" && p.Value.Name == "id":
					path = strings.Replace(path, "{id}", idLike(p.Value.Example.(string)), 1)
				case p.Value.Name == "If-Match":
					conditional = true
				case p.Value.In == "query" && p.Value.Required:
					query = cmp.Or(query, "?") + p.Value.Name + "=" + p.Value.Example.(string) + "&"
				}
			}
			all = append(all, operation{op.OperationID, method, strings.Replace(path, "{n}", "1", 1), query, scopesOf(op), op.RequestBody != nil,
				conditional, isUnion(op), op.RequestBody != nil && op.RequestBody.Value.Content["text/csv"] != nil})
		}
	}
	return all
}

func isUnion(op *openapi3.Operation) bool {
	schema, _ := bodySchema(op)
	return schema != nil && schema.Discriminator != nil
}

// hasID reports whether the path names one thing: /v1/campaigns/cmp_...
func (o operation) hasID() bool {
	parts := strings.Split(o.path, "/")
	return len(parts) > 3 && parts[2] != "workspace" && strings.Contains(parts[3], "_")
}

func idLike(example string) string {
	prefix, _, _ := strings.Cut(example, "_")
	if prefix == lemma.PrefixNotification {
		return lemma.FormatNotificationID(lemma.NewID(), lemma.NewID())
	}
	return lemma.FormatID(prefix, lemma.NewID())
}

// goodBodies returns a valid body for each operation.
func (w world) goodBodies() map[string]any {
	from, event := object{"email": "news@shop.example"}, object{"profile_key": "c1", "event": "x"}
	inFlight := object{"in_flight": object{"mode": "stay"}}
	draft := object{"data_source_id": w.source, "sql": goodSQL, "key_column": "id", "email_column": "email"}
	return map[string]any{
		"selectWinner": object{"variant": "A"}, "extendIteration": object{"until": "2126-01-01T00:00:00Z"},
		"createDataSource": object{"name": "x", "kind": "postgres", "dsn": "postgres://u:p@db.example.com/x"},
		"updateDataSource": object{"name": "x"}, "updateAudience": object{"name": "x"}, "updateTemplate": object{"name": "x"},
		"updateProvider": object{"name": "x"}, "updateCampaign": object{"name": "x"},
		"createAudience":        object{"name": "x", "data_source_id": w.source, "sql": goodSQL, "key_column": "id", "email_column": "email"},
		"validateAudience":      draft,
		"createTemplate":        object{"name": "x", "subject": "s", "html": "<p>h</p>"},
		"validateTemplate":      object{"subject": "s", "html": "<p>h</p>"},
		"createTemplateVersion": object{"subject": "s", "html": "<p>h</p>"}, "renderTemplate": object{"data": object{"name": "Ada"}},
		"createSuppression": object{"channel": "email", "address": "ada@example.com"}, "createTopic": object{"name": "x"},
		"updateTopic":      object{"name": "y"},
		"setPreference":    object{"channel": "email", "address": "ada@example.com", "topic_id": w.topic, "subscribed": false},
		"testProvider":     object{"to": "ada@shop.example", "from": object{"email": "news@shop.example"}},
		"createProvider":   object{"name": "x", "kind": "smtp", "config": object{"host": "127.0.0.1"}},
		"createCampaign":   object{"name": "x", "audience_id": w.audience, "template_id": w.template, "provider_id": w.provider, "from": from},
		"scheduleCampaign": object{"at": "2126-12-24T09:00:00Z"}, "resolveNotification": object{"resolution": "sent"},
		"sendNotification": w.newDirect(nil), "sendNotifications": object{"notifications": []object{w.newDirect(nil)}},
		"createApiKey": object{"name": "x", "scopes": []string{"campaigns:read"}},
		"createFlow":   object{"name": "x"}, "updateFlow": object{"name": "x"},
		"createFlowVersion": object{"definition": w.definition(nil)}, "updateFlowVersion": object{"definition": w.definition(nil)},
		"planFlowVersion": inFlight, "publishFlowVersion": inFlight, "rollbackFlow": inFlight, "resumeFlow": object{"catch_up": "PT0S"},
		"simulateFlowVersion": object{"profile_key": "c1"}, "enroll": object{"profile_key": "c1"},
		"enrollBulk":     object{"enrollments": []object{{"profile_key": "c1"}}},
		"exitEnrollment": object{"note": "x"}, "moveEnrollment": object{"node": "x"}, "eraseProfile": object{"profile_key": "c1"},
		"recordEvent": event, "recordEvents": object{"events": []object{event}},
		"createWebhookEndpoint": object{"name": "x", "url": "https://x.example.com"}, "updateWebhookEndpoint": object{"name": "x"},
		"resendWebhookMessages": object{"statuses": []string{"failed"}},
	}
}

// firstOf returns the first entry of a list.
func (b *bundle) firstOf(path string) object {
	b.T.Helper()
	found := b.do(http.MethodGet, path, nil).is(200)
	data := found.json["data"].([]any)
	if len(data) == 0 {
		b.T.Fatalf("%s is empty", path)
	}
	return data[0].(object)
}
