package fcm

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma/sender"
	"lemma/sender/sendertest"
	"lemma/sender/wire"
)

func TestRequest(t *testing.T) {
	t.Parallel()
	m := sender.Message{Notification: "ntf_0abc", Attempt: 1, To: device(1), Subject: "Grüße", Text: "Order <7> is ready",
		Link: "https://shop.example/orders/7", Data: map[string]string{"order": "7", "link": "myapp://orders/7"},
		Date: time.Unix(1_800_000_000, 0)}
	tokens, server := serveTokens(t, gives), serveMessages(t, accepts)
	c := accountAt(t, server, tokens, `,"ttl_seconds":3600`)
	if r := c.Send(t.Context(), []sender.Message{m})[0]; r.Outcome != sender.Accepted || r.CarrierID != strings.Split(named, `"`)[3] {
		t.Fatalf("%+v", r)
	}
	got := read(server.Received(anything)[0]).Message
	id := got.Android.CollapseKey
	if len(id) != 22 || got.Android.Notification.Tag != id || got.APNs.Headers["apns-collapse-id"] != id ||
		got.Webpush.Headers["Topic"] != id || got.Webpush.Notification.Tag != id {
		t.Errorf("collapse ids: %+v", got)
	}
	if got.Notification != (struct{ Title, Body string }{m.Subject, m.Text}) || got.Webpush.Notification.Body != m.Text ||
		got.Webpush.Options.Link != m.Link {
		t.Errorf("%+v", got)
	}
	if diff := cmp.Diff(map[string]string{"order": "7", "link": "myapp://orders/7", "lemma_ntf": "ntf_0abc"}, got.Data); diff != "" {
		t.Error(diff)
	}
	if got.Android.TTL != "3600s" || got.Webpush.Headers["TTL"] != "3600" || got.APNs.Headers["apns-expiration"] != "1800003600" {
		t.Errorf("times to live: %+v", got)
	}
}

// Notifications do not replace each other; attempts do.
func TestCollapseID(t *testing.T) {
	t.Parallel()
	first, second := sender.Message{Notification: "ntf_1", Attempt: 1}, sender.Message{Notification: "ntf_1", Attempt: 2}
	if collapseID(&first) != collapseID(&second) || collapseID(&first) == collapseID(&sender.Message{Notification: "ntf_2"}) {
		t.Error("a collapse id is not that of one notification")
	}
}

// FCM refuses a link for browsers without https: such a link is for apps only.
func TestLinksAndTimesThatAreLeftOut(t *testing.T) {
	t.Parallel()
	for ttl, want := range map[string]string{"": "", `,"ttl_seconds":0`: "0"} {
		tokens, server := serveTokens(t, gives), serveMessages(t, accepts)
		m := sender.Message{Notification: "ntf_1", To: device(1), Text: "x", Link: "myapp://orders/7", Date: time.Unix(1_800_000_000, 0)}
		accountAt(t, server, tokens, ttl).Send(t.Context(), []sender.Message{m})
		got := read(server.Received(anything)[0]).Message
		if got.Webpush.Options.Link != "" || got.Data["link"] != m.Link {
			t.Errorf("a link into an app: %+v", got)
		}
		if got.APNs.Headers["apns-expiration"] != want || got.Webpush.Headers["TTL"] != want || (got.Android.TTL != "") != (want != "") {
			t.Errorf("with %q: %+v", ttl, got)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	file := serviceFile("https://oauth2.googleapis.com/token")
	with := func(old, replacement string) string {
		return `{"service_account":` + strings.Replace(file, old, replacement, 1) + `}`
	}
	const account = "/secrets/service_account"
	for _, c := range []struct{ name, config, secrets, faults string }{
		{"a service account", `{}`, with("", ""), ""},
		{"all", `{"project_id":"other-project","endpoint":"https://relay.example","ttl_seconds":0,"max_requests":256,"timeout_seconds":1}`,
			with("", ""), ""},
		{"nothing", `{}`, ``, account},
		{"a file of another kind", `{}`, with("service_account", "authorized_user"), account},
		{"a text", `{}`, `{"service_account":"{}"}`, account},
		{"a project with a path, and no service account", `{"project_id":"a/../b"}`, ``, "/config/project_id " + account},
		{"a service account without a project", `{}`, with(`"project_id"`, `"other"`), "/config/project_id"},
		{"a key that is cut", `{}`, with("-----END", "-----"), account + "/private_key"},
		{"no address", `{}`, with(testEmail, ""), account + "/client_email"},
		{"a project with a path", `{"project_id":"a/../b"}`, with("", ""), "/config/project_id"},
		{"a token URI without TLS", `{}`, with("https://oauth2", "http://oauth2"), account + "/token_uri"},
		{"a private token URI", `{}`, with("oauth2.googleapis.com", "10.0.0.1"), account + "/token_uri"},
		{"an endpoint with a path", `{"endpoint":"https://x.example/v1"}`, with("", ""), "/config/endpoint"},
		{"a private endpoint", `{"endpoint":"https://127.0.0.1"}`, with("", ""), "/config/endpoint"},
		{"numbers", `{"ttl_seconds":2419201,"max_requests":0,"timeout_seconds":61}`, with("", ""),
			"/config/max_requests /config/timeout_seconds /config/ttl_seconds"},
		{"a negative time to live", `{"ttl_seconds":-1}`, with("", ""), "/config/ttl_seconds"},
		{"an unknown member", `{"server_key":"x"}`, with("", ""), "/config/server_key"},
	} {
		sendertest.CheckSettings(t, Kind(wire.Operator{}), c.name, c.config, c.secrets, c.faults)
	}
}

func TestMoves(t *testing.T) {
	t.Parallel()
	at := func(endpoint string) json.RawMessage { return fmt.Appendf(nil, `{"endpoint":%q}`, endpoint) }
	sendertest.CheckMoves(t, Moves, []sendertest.Move{
		{"nothing", json.RawMessage(`{}`), json.RawMessage(`{"ttl_seconds":5}`), 0},
		{"the default", json.RawMessage(`{}`), at("https://fcm.googleapis.com"), 0},
		{"the case", at("https://A.example"), at("https://a.example"), 0},
		{"to another server", json.RawMessage(`{}`), at("https://a.example"), 1},
		{"to another port", at("https://a.example"), at("https://a.example:444"), 1},
	})
}
