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
		e := endpoint{r, contract.operation(r)}
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
