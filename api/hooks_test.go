package api

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma/deliveries"
	"lemma/hooks"
	"lemma/signing"
)

// receiver makes a provider that receives webhooks, and returns its path and key.
func (b *bundle) receiver() (path string, key []byte) {
	b.T.Helper()
	key = []byte("0123456789abcdef0123456789abcdef")
	made := b.do("POST", "/v1/providers", object{"name": "Gateway", "kind": "http", "channel": "email",
		"config":  object{"url": "https://gw.example/send"},
		"secrets": object{"signing_secret": signing.Secret(key), "webhook_secret": signing.Secret(key)}}).is(201)
	if made.json["capabilities"].(map[string]any)["events"] != true ||
		made.text("webhook_url") != "https://lemma.example/hooks/http/"+made.id() {
		b.T.Errorf("the provider does not receive webhooks: %s", made.body)
	}
	return "/hooks/http/" + made.id(), key
}

func signed(key []byte, id, body string) option {
	return func(r *http.Request) {
		r.Header.Del("Authorization")
		signing.Set(r.Header, [][]byte{key}, id, time.Now(), []byte(body))
	}
}

func (b *bundle) checkHooks() {
	b.T.Helper()
	path, key := b.receiver()
	body := `{"type":"delivered","notification_id":"ntf_none"}`
	b.do("POST", path, body, signed(key, "e", body)).is(200)
	if n := b.Count(`select count(*) from provider_events where workspace_id = $1`, b.Workspace); n != 1 {
		b.T.Errorf("%d events are stored", n)
	}
}

func TestRefusedWebhooks(t *testing.T) {
	b := setup(t)
	path, key := b.receiver()
	for _, c := range []struct {
		path, body string
		key        []byte
		status     int
		code       string
	}{
		{path, `{"type":"delivered"}`, make([]byte, 32), 401, "webhook_forged"},
		{path, `{"type":"unheard-of"}`, key, 400, "webhook_unreadable"},
		{path, strings.Repeat(" ", hooks.MostBody+1), key, 413, "too_large"},
		{"/hooks/smtp/" + path[len("/hooks/http/"):], `{"type":"delivered"}`, key, 404, "not_found"},
		{"/hooks/http/" + idLike("prv_"), `{"type":"delivered"}`, key, 404, "not_found"},
	} {
		if got := b.do("POST", c.path, c.body, signed(c.key, "e", c.body)).is(c.status); got.problem.Code != c.code {
			t.Errorf("%s: %s", c.path, got.body)
		}
	}
	for _, c := range []struct{ body, pointer, detail string }{
		{`{"type":"unheard-of"}`, "/type", "unheard-of"},
		{`{"type":"bounced","code":"550"}`, "/code", "must be a whole number, not string"},
		{`{"type":"delivered","occurred_at":"yesterday"}`, "/occurred_at", "RFC 3339"},
		{`{"events":[{"type":"delivered","notification_id":"n"},{"type":"x"}]}`, "/events/1/type", "must be one of"},
		{`{"events":[{"type":"delivered","notification_id":"n"},{"type":"unsubscribed","address":"ada"}]}`, "/events/1/address",
			"must be one email address"},
		{`{"events":[]}`, "", "must have a type"},
		{`hello`, "", "must be one JSON object"},
	} {
		got := b.do("POST", path, c.body, signed(key, "e", c.body)).fault(400, c.pointer, "not_valid")
		if !strings.Contains(string(got.body), c.detail) {
			t.Errorf("%s: %s", c.body, got.body)
		}
	}
	b.do("GET", path, nil).is(405)
	if n := b.Count(`select count(*) from provider_events where workspace_id = $1`, b.Workspace); n != 0 {
		t.Errorf("%d events are stored", n)
	}
}

// noDeliveries are delivery counts of 0, and others.
func noDeliveries(others object) object {
	counts := object{"delivered": 0.0, "delayed": 0.0, "bounced": 0.0, "complained": 0.0, "rejected": 0.0, "undelivered": 0.0}
	maps.Copy(counts, others)
	return counts
}

// What a carrier reports shows in the notification, in lists, in the counts, in the
// suppressions and in explain; it resolves an orphaned notification.
func TestDeliveries(t *testing.T) {
	b := setup(t)
	w := b.world()
	campaign, id := b.fannedOut(w)
	path, key := b.receiver()
	ada := b.firstOf("/v1/notifications?profile_key=c1&campaign_id=" + campaign)["id"].(string)
	bob := b.firstOf("/v1/notifications?profile_key=c2&campaign_id=" + campaign)["id"].(string)
	orphan := b.orphan(campaign, id)
	for i, e := range []string{fmt.Sprintf(`{"type":"delivered","notification_id":%q,"attempt":1,"occurred_at":"2026-07-01T12:00:00Z"}`, ada),
		fmt.Sprintf(`{"type":"bounced","notification_id":%q,"attempt":1,"detail":"no such user","occurred_at":"2026-07-01T12:00:01Z"}`, bob)} {
		b.do("POST", path, e, signed(key, fmt.Sprint("e", i), e)).is(200)
	}
	if _, err := deliveries.New(b.Pool, slog.New(slog.DiscardHandler), nil).Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	for notification, want := range map[string]string{ada: "delivered 2026-07-01T12:00:00Z", bob: "bounced 2026-07-01T12:00:01Z"} {
		got := b.do("GET", "/v1/notifications/"+notification, nil).is(200)
		if has := got.text("delivery") + " " + got.text("delivery_at"); has != want {
			t.Errorf("got %s, want %s", has, want)
		}
		explained := b.do("GET", "/v1/notifications/"+notification+"/explain", nil).is(200)
		if !strings.Contains(string(explained.body), "the carrier reported: "+got.text("delivery")) {
			t.Errorf("explain: %s", explained.body)
		}
	}
	for state, n := range map[string]int{"delivered": 1, "bounced": 1, "complained": 0, "unknown": 4} {
		for _, of := range []string{"", "&campaign_id=" + campaign} {
			if got := b.do("GET", "/v1/notifications?delivery="+state+of, nil).is(200); len(got.json["data"].([]any)) != n {
				t.Errorf("%s: %s", state, got.body)
			}
		}
	}
	counts := b.do("GET", "/v1/campaigns/"+campaign, nil).is(200).json["counts"].(object)
	if diff := cmp.Diff(noDeliveries(object{"delivered": 1.0, "bounced": 1.0}), counts["deliveries"]); diff != "" {
		t.Error(diff)
	}
	if got := b.do("GET", "/v1/suppressions?cause=hard_bounce", nil).is(200); !strings.Contains(string(got.body), "bob@shop.example") ||
		!strings.Contains(string(got.body), "no such user") {
		t.Errorf("suppressions: %s", got.body)
	}
	if got := b.do("GET", "/v1/notifications/"+orphan, nil).is(200); got.text("status") != "orphaned" || got.text("resolution") != "sent" {
		t.Errorf("the orphaned one: %s", got.body)
	}
}
