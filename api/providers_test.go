package api

import (
	"encoding/json"
	"strings"
	"testing"
)

// A provider's secrets must be sent again with a change of its server, so that no key
// can send them to another server.
func TestSecretsAreDemandedAnew(t *testing.T) {
	b := setup(t)
	made := b.do("POST", "/v1/providers",
		object{"name": "mail", "kind": "smtp", "config": object{"host": "mail.shop.example", "port": 587, "username": "u"},
			"secrets": object{"password": "hunter2"}}).is(201)
	path := "/v1/providers/" + made.text("id")
	moved := object{"host": "mail.evil.example", "port": 587, "username": "u"}
	b.do("PATCH", path, object{"config": moved}).fault(422, "/secrets", "secrets_required").fault(422, "/config/host", "secrets_required")
	b.do("PATCH", path, object{"config": moved, "name": "other"}).fault(422, "/secrets", "secrets_required").
		fault(422, "/config/host", "secrets_required")
	if got := b.do("GET", path, nil).is(200); got.json["config"].(map[string]any)["host"] != "mail.shop.example" {
		t.Errorf("%v", got.json)
	}
	b.do("PATCH", path, object{"name": "other"}).is(200)
	b.do("PATCH", path, object{"config": moved, "secrets": object{"password": "another"}}).is(200)
	b.do("PATCH", path, object{"config": object{"host": "mail.third.example", "port": 25}, "secrets": nil}).is(200)
}

// A data source or provider without TLS has a warning in every answer that shows it.
func TestWarningsOfConnections(t *testing.T) {
	b := setup(t, func(o *Options) {
		o.Warnings = func(kind string, config json.RawMessage) []string { return []string{kind + string(config)} }
	})
	made := b.do("POST", "/v1/data_sources",
		object{"name": "shop", "kind": "postgres", "dsn": "postgres://u:p@db.shop.example/shop?sslmode=require"}).is(201)
	path := "/v1/data_sources/" + made.id()
	for _, got := range []answered{made, b.do("GET", path, nil).is(200)} {
		if w, _ := got.json["warnings"].([]any); len(w) != 1 || !strings.Contains(w[0].(string), "sslmode=verify-full") {
			t.Errorf("%s", got.body)
		}
	}
	fixed := b.do("PATCH", path, object{"dsn": "postgres://u:p@db.shop.example/shop?sslmode=verify-full"}).is(200)
	if w, _ := fixed.json["warnings"].([]any); w == nil || len(w) != 0 {
		t.Errorf("%s", fixed.body)
	}
	mail := b.do("POST", "/v1/providers",
		object{"name": "mail", "kind": "smtp", "config": object{"host": "mail.shop.example", "port": 25}}).is(201)
	if w, _ := mail.json["warnings"].([]any); len(w) != 1 || !strings.HasPrefix(w[0].(string), "smtp{") {
		t.Errorf("%s", mail.body)
	}
}

// Only a carrier that recognises a repeated request prevents a second delivery. A device
// may show both of two that it collapses.
func TestBounds(t *testing.T) {
	t.Parallel()
	for can, want := range map[Capabilities]effectiveBound{
		{}:                     {2, 1, "twice", ""},
		{Collapse: true}:       {2, 1, "replaced", ""},
		{Lookup: true}:         {2, 1, "twice", ""},
		{Events: true}:         {2, 1, "twice", ""},
		{IdempotencyKey: true}: {1, 1, "once", ""},
	} {
		got := can.bounds()
		if got.Sentence == "" {
			t.Errorf("%+v: no sentence", can)
		}
		got.Sentence = ""
		if got != want {
			t.Errorf("%+v: %+v, want %+v", can, got, want)
		}
	}
}
