package api

import (
	"slices"
	"testing"

	"lemma/pgtest"
)

// checkAudit checks that each operation that changes something has written a record.
func (b *bundle) checkAudit() {
	b.T.Helper()
	actions := pgtest.Column[string](b.T.(*testing.T), b.Pool, `select distinct action from audit_log where actor_type = 'api_key'`)
	s := &server{}
	for _, r := range s.routes() {
		e := endpoint{r, contract().operation(r)}
		if name := e.operation.OperationID; r.method != "GET" && r.do.writes && audits(e) && !slices.Contains(actions, name) {
			b.T.Errorf("%s is not in the audit log", name)
		}
	}
	if got := b.do("GET", "/v1/audit_log?action=pauseCampaign", nil).is(200); len(got.json["data"].([]any)) == 0 {
		b.T.Errorf("%s", got.body)
	}
}

// A change has one record, a refused request and another workspace have none, and no
// record changes.
func TestTheAuditLog(t *testing.T) {
	b := setup(t)
	made := b.do("POST", "/v1/topics", object{"name": "News"}, header("X-Request-Id", "one"), header("Idempotency-Key", "k")).is(201)
	b.do("POST", "/v1/topics", object{"name": "News"}, header("Idempotency-Key", "k")).is(201) // a replay
	b.do("POST", "/v1/topics", object{"name": "News"}).is(409)
	b.do("DELETE", "/v1/topics/top_none", nil).is(404)
	list := b.do("GET", "/v1/audit_log?resource_id="+made.id(), nil).is(200).json["data"].([]any)
	if len(list) != 1 {
		t.Fatalf("%d records", len(list))
	}
	if r := list[0].(object); r["action"] != "createTopic" || r["request_id"] != "one" || r["resource_type"] != "topics" ||
		r["actor"].(object)["type"] != "api_key" || r["actor"].(object)["api_key_id"] == nil {
		t.Errorf("%v", r)
	}
	b.do("DELETE", "/v1/topics/"+made.id(), nil).is(204)
	b.WantCount(2, `select count(*) from audit_log`)
	if got := b.do("GET", "/v1/audit_log", nil, as(b.other)).is(200); len(got.json["data"].([]any)) != 0 {
		t.Errorf("another workspace: %s", got.body)
	}
	b.do("GET", "/v1/audit_log", nil, as(b.key(b.Workspace, "keys:read"))).is(403)
	for _, sql := range []string{`update audit_log set action = 'x'`, `delete from audit_log`} {
		if _, err := b.Pool.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s is possible", sql)
		}
	}
}

// A request that changes nothing has no record.
func TestRequestsWithoutAChangeAreNotRecorded(t *testing.T) {
	b := setup(t)
	for _, status := range []int{201, 200, 200} {
		b.do("POST", "/v1/suppressions", object{"address": "ada@example.com", "cause": "manual", "channel": "email"}).is(status)
	}
	for range 2 {
		b.do("POST", "/v1/suppressions/import?cause=manual", "address\nbob@example.com\n", header("Content-Type", "text/csv")).is(200)
	}
	key := b.do("POST", "/v1/api_keys", object{"name": "old", "scopes": []string{"keys:read"}}).is(201)
	for range 2 {
		b.do("DELETE", "/v1/api_keys/"+key.id(), nil).is(204)
	}
	flow := b.do("POST", "/v1/flows", object{"name": "Empty"}).is(201)
	versions := "/v1/flows/" + flow.id() + "/versions"
	b.do("POST", versions, object{"definition": object{}}).is(201)
	b.do("PUT", versions+"/1", object{"definition": object{}}, header("If-Match", `"9"`)).is(412)
	b.do("DELETE", versions+"/1", nil, header("If-Match", `"9"`)).is(412)
	for action, want := range map[string]int{"createSuppression": 1, "importSuppressions": 1, "revokeApiKey": 1, "createFlowVersion": 1,
		"updateFlowVersion": 0, "deleteFlowVersion": 0} {
		b.WantCount(want, `select count(*) from audit_log where action = $1`, action)
	}
}
