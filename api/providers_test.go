package api

import "testing"

// A key that may write providers does not get at their passwords by leading
// them to another server.
func TestSecretsAreDemandedAnew(t *testing.T) {
	b := setup(t)
	made := b.do("POST", "/v1/providers", object{"name": "mail", "kind": "smtp", "config": object{"host": "mail.shop.example", "port": 587, "username": "u"},
		"secrets": object{"password": "hunter2"}}).is(201)
	path := "/v1/providers/" + made.text("id")
	moved := object{"host": "mail.evil.example", "port": 587, "username": "u"}
	b.do("PATCH", path, object{"config": moved}).fault(422, "/secrets", "secrets_required").fault(422, "/config/host", "secrets_required")
	b.do("PATCH", path, object{"config": moved, "name": "other"}).fault(422, "/secrets", "secrets_required").fault(422, "/config/host", "secrets_required")
	if got := b.do("GET", path, nil).is(200); got.json["config"].(map[string]any)["host"] != "mail.shop.example" {
		t.Errorf("%v", got.json)
	}
	b.do("PATCH", path, object{"name": "other"}).is(200)
	b.do("PATCH", path, object{"config": moved, "secrets": object{"password": "another"}}).is(200)
	b.do("PATCH", path, object{"config": object{"host": "mail.third.example", "port": 25}, "secrets": nil}).is(200)
}
