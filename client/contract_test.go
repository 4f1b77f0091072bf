package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/google/go-cmp/cmp"

	"lemma"
)

// ours are the tags of the operations that the client has.
var ours = []string{"Flows", "Enrollments", "Events", "Iterations", "Exports", "Audit", "Webhook endpoints"}

// others are further operations that it has.
var others = []string{"testProvider", "sendNotification", "sendNotifications", "cancelNotification", "getNotification", "listNotifications",
	"getWorkspace", "updateWorkspace"}

var contract = sync.OnceValue(func() *openapi3.T {
	doc, err := openapi3.NewLoader().LoadFromData(lemma.OpenAPI)
	if err != nil {
		panic(err)
	}
	return doc
})

var contractRouter = sync.OnceValue(func() routers.Router {
	r, err := gorillamux.NewRouter(contract())
	if err != nil {
		panic(err)
	}
	return r
})

// operations returns these operations by the names of their methods.
func operations() map[string]*openapi3.Operation {
	found := map[string]*openapi3.Operation{}
	for _, item := range contract().Paths.Map() {
		for _, op := range item.Operations() {
			if slices.Contains(ours, op.Tags[0]) || slices.Contains(others, op.OperationID) {
				found[strings.ToUpper(op.OperationID[:1])+op.OperationID[1:]] = op
			}
		}
	}
	return found
}

var (
	noon         = time.Date(2027, 1, 2, 12, 0, 0, 0, time.UTC)
	definition   = json.RawMessage(`{"start":"over","nodes":{"over":{"type":"exit"}}}`)
	properties   = json.RawMessage(`{"plan":"pro"}`)
	sorted       = []CallOption{Sort("created_at"), CreatedAfter(noon), CreatedBefore(noon.Add(time.Hour))}
	inFlight     = InFlight{Mode: "move", Map: map[string]*string{"old": new("new"), "gone": nil}}
	event        = NewEvent{ProfileKey: "c1", Event: "signed_up", Properties: properties, SourceID: "x", OccurredAt: &noon}
	notification = NewNotification{To: NotificationTo{Address: "ada@example.com", ProfileKey: "c1", AudienceID: "aud_1"}, Channel: "email",
		TemplateID: "tpl_1", TemplateVersion: 1, Content: &NotificationText{Subject: "s", Text: "t"}, Data: properties, ProviderID: "prv_1",
		From: &Sender{Email: "news@example.com"}, ReplyTo: "help@example.com", Headers: map[string]string{"X-Shop": "1"},
		Metadata: map[string]string{"a": "b"}, Transactional: new(false), TopicID: "top_1", Strategy: "at_least_once", SendAt: &noon,
		ExpiresAt: &noon, Key: "k", LockFor: "PT1M", SealFor: "PT1H"}
	subscriptions = []WebhookSubscription{{Types: []string{"campaign.paused"}, CampaignIDs: []string{"cmp_1"}, FlowIDs: []string{"flw_1"},
		Metadata: map[string]string{"a": "b"}}}
	enrollment = NewEnrollment{ProfileKey: "c1", Properties: properties, SourceID: "x", OccurredAt: &noon}
)

// calls has a call of each method, with all fields and options.
var calls = map[string]func(context.Context, *Client) (any, error){
	"ReadResults": func(ctx context.Context, c *Client) (any, error) { return c.ReadResults(ctx, "itr_1") },
	"ListIterations": func(ctx context.Context, c *Client) (any, error) {
		return first(c.ListIterations(ctx, IterationFilter{CampaignID: "cmp_1", Status: "inconclusive"}, sorted...))
	},
	"GetIteration":    func(ctx context.Context, c *Client) (any, error) { return c.GetIteration(ctx, "itr_1") },
	"SelectWinner":    func(ctx context.Context, c *Client) (any, error) { return c.SelectWinner(ctx, "itr_1", "B") },
	"StopIteration":   func(ctx context.Context, c *Client) (any, error) { return c.StopIteration(ctx, "itr_1") },
	"ExtendIteration": func(ctx context.Context, c *Client) (any, error) { return c.ExtendIteration(ctx, "itr_1", noon) },
	"ReadAssignment": func(ctx context.Context, c *Client) (any, error) {
		return c.ReadAssignment(ctx, "itr_1", "c1", "ada@example.com")
	},
	"ComputePower": func(ctx context.Context, c *Client) (any, error) {
		return c.ComputePower(ctx, PowerRequest{BaseRate: 0.05, Effect: 0.01, Variants: 3, Confidence: 0.9, Power: 0.9, Recipients: 100})
	},
	"SendNotification": func(ctx context.Context, c *Client) (any, error) { return c.SendNotification(ctx, notification) },
	"SendNotifications": func(ctx context.Context, c *Client) (any, error) {
		return c.SendNotifications(ctx, []NewNotification{notification})
	},
	"CancelNotification": func(ctx context.Context, c *Client) (any, error) { return c.CancelNotification(ctx, "ntf_1") },
	"GetNotification":    func(ctx context.Context, c *Client) (any, error) { return c.GetNotification(ctx, "ntf_1") },
	"ListNotifications": func(ctx context.Context, c *Client) (any, error) {
		return first(c.ListNotifications(ctx, NotificationFilter{CampaignID: "cmp_1", FlowID: "flw_1", Direct: true, Channel: "email",
			Status: "sent", Resolution: "none", Delivery: "unknown", Reason: "expired", ProfileKey: "c1", Address: "a@shop.example"}))
	},
	"TestProvider": func(ctx context.Context, c *Client) (any, error) {
		return c.TestProvider(ctx, "prv_1", ProviderTestRequest{To: "ada@example.com", From: &Sender{Email: "news@example.com", Name: "Shop"},
			Subject: "s", Text: "t", TemplateID: "tpl_1", Version: 2, Data: properties})
	},
	"ListAuditLog": func(ctx context.Context, c *Client) (any, error) {
		return first(c.ListAuditLog(ctx, AuditFilter{ActorType: "api_key", APIKeyID: "key_1", Action: "pauseCampaign", ResourceType: "campaigns",
			ResourceID: "cmp_1", RequestID: "req_1"}, sorted...))
	},
	"GetWorkspace": func(ctx context.Context, c *Client) (any, error) { return c.GetWorkspace(ctx) },
	"UpdateWorkspace": func(ctx context.Context, c *Client) (any, error) {
		return c.UpdateWorkspace(ctx, WorkspacePatch{Page: &PreferencePagePatch{Title: new("t")}, TrackingURL: new(""),
			Keys: &KeyDefaults{LockFor: "PT1M", SealFor: "PT1H", Strategy: "at_least_once"}}, IfMatch(`"1"`))
	},
	"ListWebhookEndpoints": func(ctx context.Context, c *Client) (any, error) {
		return first(c.ListWebhookEndpoints(ctx, WebhookEndpointFilter{Status: "enabled", Name: "x"}, sorted...))
	},
	"CreateWebhookEndpoint": func(ctx context.Context, c *Client) (any, error) {
		return c.CreateWebhookEndpoint(ctx, NewWebhookEndpoint{Name: "CRM", URL: "https://crm.example.com/", Subscriptions: subscriptions})
	},
	"GetWebhookEndpoint": func(ctx context.Context, c *Client) (any, error) { return c.GetWebhookEndpoint(ctx, "whe_1") },
	"UpdateWebhookEndpoint": func(ctx context.Context, c *Client) (any, error) {
		return c.UpdateWebhookEndpoint(ctx, "whe_1", WebhookEndpointPatch{Name: new("C"), URL: new("https://crm.example.com/2"),
			Subscriptions: &subscriptions, Status: new("disabled")}, IfMatch(`"1"`))
	},
	"DeleteWebhookEndpoint": func(ctx context.Context, c *Client) (any, error) { return nil, c.DeleteWebhookEndpoint(ctx, "whe_1") },
	"ListWebhookMessages": func(ctx context.Context, c *Client) (any, error) {
		return first(c.ListWebhookMessages(ctx, "whe_1", WebhookMessageFilter{Status: "failed", Type: "campaign.paused"},
			CreatedAfter(noon), CreatedBefore(noon.Add(time.Hour))))
	},
	"RotateWebhookEndpoint": func(ctx context.Context, c *Client) (any, error) { return c.RotateWebhookEndpoint(ctx, "whe_1") },
	"ResendWebhookMessages": func(ctx context.Context, c *Client) (any, error) {
		return c.ResendWebhookMessages(ctx, "whe_1",
			WebhookResend{MessageID: "msg_1", CreatedAfter: &noon, CreatedBefore: &noon, Statuses: []string{"failed"}})
	},
	"TestWebhookEndpoint": func(ctx context.Context, c *Client) (any, error) { return c.TestWebhookEndpoint(ctx, "whe_1") },
	"GetEventOut":         func(ctx context.Context, c *Client) (any, error) { return c.GetEventOut(ctx, "evo_1") },
	"ListExports": func(ctx context.Context, c *Client) (any, error) {
		return first(c.ListExports(ctx, append(sorted, ExportStatus("completed"))...))
	},
	"CreateExport": func(ctx context.Context, c *Client) (any, error) {
		return c.CreateExport(ctx, NewExport{Type: "events", Format: "csv", CSVFormulas: "keep", Filters: ExportFilters{Name: "signed_up"}})
	},
	"GetExport":    func(ctx context.Context, c *Client) (any, error) { return c.GetExport(ctx, "exp_1") },
	"CancelExport": func(ctx context.Context, c *Client) (any, error) { return c.CancelExport(ctx, "exp_1") },
	"DeleteExport": func(ctx context.Context, c *Client) (any, error) { return nil, c.DeleteExport(ctx, "exp_1") },
	"ListFlows": func(ctx context.Context, c *Client) (any, error) {
		return first(c.ListFlows(ctx, FlowFilter{Status: "live", Name: "x"}, sorted...))
	},
	"CreateFlow": func(ctx context.Context, c *Client) (any, error) {
		return c.CreateFlow(ctx, NewFlow{Name: "Welcome", Metadata: map[string]string{"a": "b"}, Definition: definition})
	},
	"GetFlow": func(ctx context.Context, c *Client) (any, error) { return c.GetFlow(ctx, "flw_1") },
	"UpdateFlow": func(ctx context.Context, c *Client) (any, error) {
		return c.UpdateFlow(ctx, "flw_1", FlowPatch{Name: new("W"), Metadata: map[string]string{"a": "b"}}, IfMatch(`"1"`))
	},
	"DeleteFlow": func(ctx context.Context, c *Client) (any, error) { return nil, c.DeleteFlow(ctx, "flw_1") },
	"ListFlowVersions": func(ctx context.Context, c *Client) (any, error) {
		return first(c.ListFlowVersions(ctx, "flw_1", FlowVersionFilter{Status: "live"}, sorted...))
	},
	"CreateFlowVersion": func(ctx context.Context, c *Client) (any, error) {
		return c.CreateFlowVersion(ctx, "flw_1", definition)
	},
	"GetFlowVersion": func(ctx context.Context, c *Client) (any, error) { return c.GetFlowVersion(ctx, "flw_1", 2) },
	"UpdateFlowVersion": func(ctx context.Context, c *Client) (any, error) {
		return c.UpdateFlowVersion(ctx, "flw_1", 2, definition, IfMatch(`"1"`))
	},
	"DeleteFlowVersion": func(ctx context.Context, c *Client) (any, error) {
		return nil, c.DeleteFlowVersion(ctx, "flw_1", 2, IfMatch(`"1"`))
	},
	"ValidateFlowVersion": func(ctx context.Context, c *Client) (any, error) { return c.ValidateFlowVersion(ctx, "flw_1", 2) },
	"PlanFlowVersion":     func(ctx context.Context, c *Client) (any, error) { return c.PlanFlowVersion(ctx, "flw_1", 2, inFlight) },
	"PublishFlowVersion": func(ctx context.Context, c *Client) (any, error) {
		return c.PublishFlowVersion(ctx, "flw_1", 2, inFlight, IfMatch(`"1"`))
	},
	"DiffFlowVersions": func(ctx context.Context, c *Client) (any, error) { return c.DiffFlowVersions(ctx, "flw_1", 1, 2) },
	"RollbackFlow": func(ctx context.Context, c *Client) (any, error) {
		return c.RollbackFlow(ctx, "flw_1", Rollback{ToVersion: 1, InFlight: inFlight}, IfMatch(`"1"`))
	},
	"PauseFlow": func(ctx context.Context, c *Client) (any, error) { return c.PauseFlow(ctx, "flw_1") },
	"ResumeFlow": func(ctx context.Context, c *Client) (any, error) {
		return c.ResumeFlow(ctx, "flw_1", Resumption{CatchUp: "PT10M"})
	},
	"DrainFlow":   func(ctx context.Context, c *Client) (any, error) { return c.DrainFlow(ctx, "flw_1") },
	"ArchiveFlow": func(ctx context.Context, c *Client) (any, error) { return c.ArchiveFlow(ctx, "flw_1") },
	"GetFlowHistory": func(ctx context.Context, c *Client) (any, error) {
		return first(c.GetFlowHistory(ctx, "flw_1", sorted...))
	},
	"CountFlow": func(ctx context.Context, c *Client) (any, error) { return c.CountFlow(ctx, "flw_1", 2) },
	"ListRefusals": func(ctx context.Context, c *Client) (any, error) {
		return first(c.ListRefusals(ctx, "flw_1", RefusalFilter{ProfileKey: "c1", Reason: "paused"}, sorted...))
	},
	"ExplainFlow": func(ctx context.Context, c *Client) (any, error) { return c.ExplainFlow(ctx, "flw_1", "c1") },
	"SimulateFlowVersion": func(ctx context.Context, c *Client) (any, error) {
		did := SimulatedEvent{Event: "signed_up", Properties: properties, SourceID: "x", OccurredAt: &noon}
		by := SimulatedTrigger{Type: "event", SimulatedEvent: did}
		return c.SimulateFlowVersion(ctx, "flw_1", 2,
			Simulation{ProfileKey: "c1", Trigger: &by, At: &noon, Events: []SimulatedEvent{did}, Webhooks: map[string]int{"crm": 410}})
	},
	"Enroll": func(ctx context.Context, c *Client) (any, error) { return c.Enroll(ctx, "flw_1", enrollment, DryRun()) },
	"EnrollBulk": func(ctx context.Context, c *Client) (any, error) {
		return c.EnrollBulk(ctx, "flw_1", []NewEnrollment{enrollment}, DryRun())
	},
	"ListEnrollments": func(ctx context.Context, c *Client) (any, error) {
		return first(c.ListEnrollments(ctx,
			EnrollmentFilter{FlowID: "flw_1", ProfileKey: "c1", Status: "waiting", Node: "n", Version: 2, BlockedReason: "any"}, sorted...))
	},
	"ListEnrollmentsOfFlow": func(ctx context.Context, c *Client) (any, error) {
		return first(c.ListEnrollmentsOfFlow(ctx, "flw_1",
			EnrollmentFilter{ProfileKey: "c1", Status: "waiting", Node: "n", Version: 2, BlockedReason: "any"}, sorted...))
	},
	"GetEnrollment": func(ctx context.Context, c *Client) (any, error) { return c.GetEnrollment(ctx, "enr_1") },
	"GetEnrollmentHistory": func(ctx context.Context, c *Client) (any, error) {
		return c.GetEnrollmentHistory(ctx, "enr_1", AfterStep(1))
	},
	"ExitEnrollment": func(ctx context.Context, c *Client) (any, error) {
		return c.ExitEnrollment(ctx, "enr_1", "asked by phone")
	},
	"MoveEnrollment": func(ctx context.Context, c *Client) (any, error) { return c.MoveEnrollment(ctx, "enr_1", 2, "nudge") },
	"EraseProfile":   func(ctx context.Context, c *Client) (any, error) { return c.EraseProfile(ctx, "c1") },
	"ListEvents": func(ctx context.Context, c *Client) (any, error) {
		return first(c.ListEvents(ctx, "c1", "signed_up", sorted...))
	},
	"RecordEvent":  func(ctx context.Context, c *Client) (any, error) { return c.RecordEvent(ctx, event) },
	"RecordEvents": func(ctx context.Context, c *Client) (any, error) { return c.RecordEvents(ctx, []NewEvent{event}) },
	"GetEvent":     func(ctx context.Context, c *Client) (any, error) { return c.GetEvent(ctx, "evt_1") },
}

// first reads the first entry of a list, and returns it as a page.
func first[T any](list func(func(T, error) bool)) (any, error) {
	for one, err := range list {
		return map[string]any{"data": []T{one}, "next_cursor": "sample", "has_more": true}, err
	}
	return nil, errors.New("the list is empty")
}

// The methods of Client are the operations of openapi.yaml on flows, events,
// enrollments, exports and the audit log.
func TestEveryOperationHasAMethod(t *testing.T) {
	t.Parallel()
	var methods []string
	for m := range reflect.TypeFor[*Client]().Methods() {
		methods = append(methods, m.Name)
	}
	want := slices.Sorted(maps.Keys(operations()))
	if diff := cmp.Diff(want, methods); diff != "" {
		t.Errorf("openapi.yaml (-) and the methods (+) differ: %s", diff)
	}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(calls))); diff != "" {
		t.Errorf("openapi.yaml (-) and the tested calls (+) differ: %s", diff)
	}
}

// Each method sends a valid request, can send every parameter and field of the contract,
// and returns every field of the answer.
func TestMethodsKeepTheContract(t *testing.T) {
	t.Parallel()
	for name, op := range operations() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			make, known := calls[name]
			if !known {
				t.Fatal("is not tested")
			}
			status, answer := success(op)
			s := serve(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("ETag", `"7"`)
				if status == http.StatusNoContent {
					w.WriteHeader(status)
					return
				}
				reply(w, status, answer)
			})
			got, err := make(t.Context(), s.client(t))
			if err != nil {
				t.Fatal(err)
			}
			holdRequest(t, s.requests()[0], op)
			if answer == nil {
				return
			}
			holdETag(t, got, op, status)
			if diff := cmp.Diff(plain(t, answer), plain(t, got)); diff != "" {
				t.Errorf("the answer (-) and the result (+) differ: %s", diff)
			}
		})
	}
}

// holdRequest checks that a request is valid by the contract and has every parameter and
// field.
func holdRequest(t *testing.T, got received, op *openapi3.Operation) {
	t.Helper()
	r, err := http.NewRequest(got.method, "http://lemma.test"+got.path, bytes.NewReader(got.body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = got.header
	route, params, err := contractRouter().FindRoute(r)
	if err != nil || route.Operation.OperationID != op.OperationID {
		t.Fatalf("%s %s is another operation: %v", got.method, got.path, err)
	}
	input := &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route,
		Options: &openapi3filter.Options{MultiError: true, AuthenticationFunc: openapi3filter.NoopAuthenticationFunc}}
	if err := openapi3filter.ValidateRequest(t.Context(), input); err != nil {
		t.Error(err)
	}
	for _, p := range op.Parameters {
		switch {
		case p.Value.In == "query" && p.Value.Name != "cursor" && !r.URL.Query().Has(p.Value.Name) &&
			(p.Value.Name != "dry_run" || op.OperationID != "publishFlowVersion"),
			p.Value.In == "header" && r.Header.Get(p.Value.Name) == "":
			t.Errorf("does not send %s", p.Value.Name)
		}
	}
	if op.RequestBody == nil || got.body == nil || len(got.body) == 0 {
		return
	}
	var sent map[string]any
	if err := json.Unmarshal(got.body, &sent); err != nil {
		t.Fatal(err)
	}
	for name := range op.RequestBody.Value.Content.Get("application/json").Schema.Value.Properties {
		if _, ok := sent[name]; !ok {
			t.Errorf("the body has no %s: %s", name, got.body)
		}
	}
}

// holdETag checks that a result has the ETag of the answer, and no field for it if the
// contract has none.
func holdETag(t *testing.T, got any, op *openapi3.Operation, status int) {
	t.Helper()
	answered := reflect.Indirect(reflect.ValueOf(got))
	if answered.Kind() != reflect.Struct {
		return // a list
	}
	_, has := op.Responses.Status(status).Value.Headers["ETag"]
	switch tag := answered.FieldByName("ETag"); {
	case has != tag.IsValid():
		t.Errorf("an ETag in the contract: %t, in the result: %t", has, tag.IsValid())
	case has && tag.String() != `"7"`:
		t.Errorf("the ETag is %q", tag)
	}
}

// success returns a successful answer of an operation, with every field.
func success(op *openapi3.Operation) (status int, body any) {
	for _, status := range []int{http.StatusCreated, http.StatusAccepted, http.StatusOK, http.StatusNoContent} {
		r := op.Responses.Status(status)
		if r == nil {
			continue
		}
		media := r.Value.Content.Get("application/json")
		if media == nil {
			return status, nil
		}
		return status, sample(media.Schema.Value)
	}
	return 0, nil
}

// sample returns a value of a schema with all fields, none of them null.
func sample(s *openapi3.Schema) any {
	switch {
	case len(s.Enum) > 0:
		return s.Enum[0]
	case len(s.AllOf) == 1: // only to describe it further
		return sample(s.AllOf[0].Value)
	case s.Type.Is("object") && len(s.Properties) > 0:
		made := map[string]any{}
		for name, p := range s.Properties {
			made[name] = sample(p.Value)
		}
		return made
	case s.Type.Is("object"):
		if each := s.AdditionalProperties.Schema; each != nil {
			return map[string]any{"some": sample(each.Value)}
		}
		return map[string]any{"some": "value"}
	case s.Type.Is("array"):
		return []any{sample(s.Items.Value)}
	case s.Type.Is("integer"), s.Type.Is("number"):
		return 7.0
	case s.Type.Is("boolean"):
		return true
	case s.Format == "date-time":
		return noon.Format(time.RFC3339)
	}
	return "sample"
}
