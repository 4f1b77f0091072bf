package api

import (
	"strings"
	"testing"
)

// checkExports uses exports, with the answers that openapi.yaml lists.
func (b *bundle) checkExports() {
	b.T.Helper()
	made := b.do("POST", "/v1/exports", object{"type": "suppressions", "format": "csv", "filters": object{"channel": "email"}}).is(202)
	path := "/v1/exports/" + made.id()
	if got := b.do("GET", path, nil).is(200); got.text("status") != "queued" || got.json["download"] != nil {
		b.T.Errorf("queued: %s", got.body)
	}
	if _, err := b.deps.Exports.RunOnce(b.T.Context()); err != nil {
		b.T.Fatal(err)
	}
	done := b.do("GET", path, nil).is(200)
	link := strings.TrimPrefix(done.json["download"].(object)["url"].(string), publicURL)
	if got := b.do("GET", link, nil, header("Authorization", "")).is(200); !strings.HasPrefix(string(got.body), "id,channel,address") {
		b.T.Errorf("the file: %s", got.body)
	}
	b.do("GET", link, nil, header("Authorization", ""), header("Range", "bytes=0-1")).is(206)
	b.do("GET", link+"x", nil, header("Authorization", "")).is(404)
	b.do("POST", path+"/cancel", nil).is(409)
	b.do("GET", "/v1/exports?status=completed", nil).is(200)
	b.do("DELETE", path, nil).is(204)
	b.do("GET", link, nil, header("Authorization", "")).is(404)
	other := b.do("POST", "/v1/exports", object{"type": "events", "format": "ndjson"}).is(202)
	b.do("POST", "/v1/exports/"+other.id()+"/cancel", nil).is(200)
}

// A key exports only what it may read, and nothing of another workspace.
func TestExportsOfOthers(t *testing.T) {
	b := setup(t)
	made := b.do("POST", "/v1/exports", object{"type": "suppressions", "format": "csv"}).is(202)
	if _, err := b.deps.Exports.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	path := "/v1/exports/" + made.id()
	for _, request := range [][2]string{{"GET", path}, {"POST", path + "/cancel"}, {"DELETE", path}} {
		b.do(request[0], request[1], nil, as(b.other)).is(404)
	}
	few := b.key(b.Workspace, "exports:read", "exports:write", "events:read")
	if got := b.do("GET", path, nil, as(few)).is(200); got.json["download"] != nil {
		t.Errorf("a link to rows that the key may not read: %s", got.body)
	}
	b.do("POST", "/v1/exports", object{"type": "suppressions", "format": "csv"}, as(few)).is(403)
	b.do("POST", "/v1/exports", object{"type": "events", "format": "csv"}, as(few)).is(202)
	b.do("POST", "/v1/exports", object{"type": "events", "format": "csv"}, as(b.key(b.Workspace, "exports:read", "events:read"))).is(403)

	w := b.world()
	b.do("POST", "/v1/exports", object{"type": "notifications", "format": "csv", "filters": object{"campaign_id": w.campaign}}).is(202)
	b.do("POST", "/v1/exports", object{"type": "notifications", "format": "csv", "filters": object{"campaign_id": w.campaign}}, as(b.other)).
		fault(422, "/filters/campaign_id", "unknown_id")
	b.do("POST", "/v1/exports", object{"type": "events", "format": "csv", "filters": object{"campaign_id": w.campaign}}).
		fault(422, "/filters/campaign_id", "not_allowed")
	for kind, filter := range map[string]object{"notifications": {"status": "waiting"}, "enrollments": {"status": "waiting"},
		"attempts": {"outcome": "sent"}} {
		for name := range filter {
			b.do("POST", "/v1/exports", object{"type": kind, "format": "csv", "filters": filter}).fault(422, "/filters/"+name, "invalid_choice")
		}
	}
	b.do("POST", "/v1/exports", object{"type": "secrets", "format": "csv"}).is(422)
}
