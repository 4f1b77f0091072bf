package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lemma/client"
)

// Each command sends its request, and prints the parts of the answer.
func TestWebhookEndpointCommands(t *testing.T) {
	t.Parallel()
	of := ofEndpoint{"whe_1"}
	subscribe := subscribing{Types: []string{"notification.sent"}, Metadata: map[string]string{"team": "a"}}
	subscriptions := `"subscriptions":[{"types":["notification.sent"],"metadata":{"team":"a"}}]`
	endpoint := client.WebhookEndpoint{ID: "whe_1", Status: "enabled", Subscriptions: subscribe.all(), Secret: new("whsec_1"),
		Health: &client.WebhookHealth{LastFailure: &client.WebhookFailure{StatusCode: new(500), Reason: "status_code"}}}
	message := client.WebhookDelivery{ID: "msg_1", Status: "failed", StatusCode: new(500), EventID: new("evo_1")}
	list := func(one any) any { return map[string]any{"data": []any{one}} }
	for name, c := range map[string]struct {
		command Command
		request string
		answer  any
		printed string
	}{
		"list": {endpointsListCommand{Status: "enabled"}, "GET /v1/webhook_endpoints?limit=200&status=enabled ", list(endpoint), "whe_1"},
		"create": {endpointsCreateCommand{subscribing: subscribe, Name: "n", URL: "u"},
			`POST /v1/webhook_endpoints {"name":"n","url":"u",` + subscriptions + `}`, endpoint, "whsec_1"},
		"get": {endpointsGetCommand{ofEndpoint: of}, "GET /v1/webhook_endpoints/whe_1 ", endpoint, "status_code 500"},
		"update": {endpointsUpdateCommand{ofEndpoint: of, subscribing: subscribe}, `PATCH /v1/webhook_endpoints/whe_1 {` + subscriptions + `}`,
			endpoint, "notification.sent with team=a"},
		"update to none": {endpointsUpdateCommand{ofEndpoint: of, None: true}, `PATCH /v1/webhook_endpoints/whe_1 {"subscriptions":[]}`,
			endpoint, "enabled"},
		"enable":  {endpointsEnableCommand{ofEndpoint: of}, `PATCH /v1/webhook_endpoints/whe_1 {"status":"enabled"}`, endpoint, "enabled"},
		"disable": {endpointsDisableCommand{ofEndpoint: of}, `PATCH /v1/webhook_endpoints/whe_1 {"status":"disabled"}`, endpoint, "whe_1"},
		"delete":  {endpointsDeleteCommand{ofEndpoint: of}, "DELETE /v1/webhook_endpoints/whe_1 ", nil, ""},
		"messages": {endpointsMessagesCommand{ofEndpoint: of, Status: "failed", Type: "test"},
			"GET /v1/webhook_endpoints/whe_1/messages?limit=200&status=failed&type=test ", list(message), "evo_1"},
		"event": {endpointsEventCommand{ID: "evo_1"}, "GET /v1/events_out/evo_1 ",
			client.EventOut{ID: "evo_1", Items: []client.EventOutItem{{ID: "ntf_1", Detail: new("full")}}}, "full"},
		"resend": {endpointsResendCommand{ofEndpoint: of, Message: "msg_1"},
			`POST /v1/webhook_endpoints/whe_1/resend {"message_id":"msg_1"}`, client.WebhookResent{Resent: 1}, "1"},
		"test":   {endpointsTestCommand{ofEndpoint: of}, "POST /v1/webhook_endpoints/whe_1/test ", message, "msg_1"},
		"rotate": {endpointsRotateCommand{ofEndpoint: of}, "POST /v1/webhook_endpoints/whe_1/rotate ", endpoint, "whsec_1"},
		"workspace": {workspaceUpdateCommand{Strategy: "at_least_once"}, `PATCH /v1/workspace {"keys":{"strategy":"at_least_once"}}`,
			client.Workspace{Keys: client.KeyDefaults{Strategy: "at_least_once"}}, "at_least_once"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got string
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				got = r.Method + " " + r.URL.RequestURI() + " " + strings.TrimSpace(string(body))
				w.Header().Set("Content-Type", "application/json")
				if c.answer == nil {
					w.WriteHeader(http.StatusNoContent)
					return
				}
				_ = json.NewEncoder(w).Encode(c.answer)
			}))
			defer s.Close()
			var out bytes.Buffer
			if err := Run(context.Background(), c.command, Config{URL: s.URL, APIKey: "key"}, &out); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.request, got); diff != "" {
				t.Error(diff)
			}
			if !strings.Contains(out.String(), c.printed) {
				t.Errorf("no %q in\n%s", c.printed, out.String())
			}
		})
	}
}
