package api

import (
	"net/http"
	"strings"
	"testing"
	"time"

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
	body := `{"type":"delivered"}`
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
	b.do("GET", path, nil).is(405)
	if n := b.Count(`select count(*) from provider_events where workspace_id = $1`, b.Workspace); n != 0 {
		t.Errorf("%d events are stored", n)
	}
}
