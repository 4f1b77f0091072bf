package api

import (
	"fmt"
	"strings"
	"testing"

	"lemma/workspaces"
)

// A refusal to delete a thing names its users.
func TestUsersOfAThingAreNamed(t *testing.T) {
	b := setup(t)
	w := b.world() // campaign Winter, flow Welcome
	call := b.do("POST", "/v1/flows",
		object{"name": "Call", "definition": object{"audience_id": w.audience, "triggers": []object{}, "recurrence": object{"policy": "once"},
			"start": "call", "nodes": object{"call": object{"type": "webhook", "endpoint_id": w.endpoint, "next": "done"},
				"done": object{"type": "exit"}}}}).is(201).id()
	b.do("POST", "/v1/flows/"+w.flow+"/versions/1/publish", nil).is(202)
	b.do("POST", "/v1/flows/"+call+"/versions/1/publish", nil).is(202)
	for path, want := range map[string]string{
		"/v1/webhook_endpoints/" + w.endpoint: `flow "Call"`,
		"/v1/templates/" + w.template:         `flow "Welcome", campaign "Winter"`,
		"/v1/providers/" + w.provider:         `flow "Welcome", campaign "Winter"`,
		"/v1/audiences/" + w.audience:         `flow "Call", flow "Welcome", campaign "Winter"`,
		"/v1/data_sources/" + w.source:        `audience "All"`,
	} {
		got := b.do("DELETE", path, nil).is(409)
		if got.problem.Code != "in_use" || !strings.HasSuffix(got.problem.Detail, ": "+want) {
			t.Errorf("%s: %s", path, got.body)
		}
	}
	unscoped := b.key(b.Workspace, "audiences:write", "flows:read")
	if got := b.do("DELETE", "/v1/audiences/"+w.audience, nil, as(unscoped)).is(409); strings.Contains(got.problem.Detail, "Winter") ||
		!strings.Contains(got.problem.Detail, "Call") {
		t.Errorf("a key that may not read campaigns: %s", got.body)
	}
	for i := range 4 {
		b.do("POST", "/v1/campaigns", w.newCampaign(object{"name": fmt.Sprint("More ", i)})).is(201)
	}
	if got := b.do("DELETE", "/v1/audiences/"+w.audience, nil, as(b.key(b.Workspace, workspaces.Admin))).
		is(409); !strings.HasSuffix(got.problem.Detail, `campaign "More 1", and others`) {
		t.Errorf("many: %s", got.body)
	}
}
