package api

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// audienceFlow publishes a flow that polls its audience, and returns its path.
func (b *bundle) audienceFlow(w world, condition string) string {
	b.T.Helper()
	text := w.definition(object{"triggers": []object{{"type": "audience", "every": "PT1H", "condition": condition}}})
	path := "/v1/flows/" + b.do("POST", "/v1/flows", object{"name": "Polls", "definition": text}).is(201).id()
	b.do("POST", path+"/versions/1/publish", nil).is(202)
	return path
}

// The counts of a flow have the state of its audience poll, or null if it does not poll.
func TestCountsOfAnAudience(t *testing.T) {
	b := setup(t)
	w := b.world()
	path := b.audienceFlow(w, "true")
	shown := func() object {
		t.Helper()
		counts := b.do("GET", path+"/counts", nil).is(200)
		poll, _ := counts.json["audience_poll"].(object)
		if poll == nil || poll["next_poll_at"] == nil {
			t.Fatalf("%s", counts.body)
		}
		delete(poll, "next_poll_at")
		return poll
	}
	never := object{"last_poll_at": nil, "rows_read": 0.0, "enrolled": 0.0, "refused_by": object{}, "failures": 0.0, "last_error": nil}
	if d := cmp.Diff(never, shown()); d != "" {
		t.Error(d)
	}
	b.Exec(`update flow_polls set last_at = '2027-01-02T03:04:05Z', rows_read = 9, enrolled = 6,
		refused = '{"filtered": 1, "invalid_key": 2}', failures = 3, last_error = 'source_changed: a column is gone'`)
	failing := object{"last_poll_at": "2027-01-02T03:04:05Z", "rows_read": 9.0, "enrolled": 6.0,
		"refused_by": object{"filtered": 1.0, "invalid_key": 2.0},
		"failures":   3.0, "last_error": "source_changed: a column is gone"}
	if d := cmp.Diff(failing, shown()); d != "" {
		t.Error(d)
	}
	if counts := b.do("GET", "/v1/flows/"+w.flow+"/counts?version=1", nil).is(200); counts.json["audience_poll"] != nil {
		t.Errorf("%s", counts.body)
	}
	b.do("GET", path+"/refusals?reason=invalid_key", nil).fault(400, "?reason", "not_allowed") // such a refusal names no profile
}

// A simulation takes a trigger, and the status of each webhook's answer; 0 is no answer.
func TestSimulatedTriggersAndAnswers(t *testing.T) {
	b := setup(t)
	w := b.world()
	simulate := b.audienceFlow(w, "profile.id == 'c1'") + "/versions/1/simulate"
	for profile, want := range map[string]any{"c1": nil, "c2": "filtered"} {
		for _, trigger := range []object{nil, {"type": "audience"}} {
			in := object{"profile_key": profile}
			if trigger != nil {
				in["trigger"] = trigger
			}
			if got := b.do("POST", simulate, in).is(200); got.json["reason"] != want {
				t.Errorf("%v: %s", in, got.body)
			}
		}
	}
	if got := b.do("POST", simulate, object{"profile_key": "c2", "trigger": object{"type": "direct"}}).is(200); got.json["enrolled"] != true {
		t.Errorf("%s", got.body)
	}
	b.do("POST", simulate, object{"profile_key": "c1", "trigger": object{"type": "friend"}}).fault(422, "/trigger/type", "not_allowed")
	b.do("POST", simulate, object{"profile_key": "c1", "trigger": object{"type": "audience", "source_id": "x"}}).
		fault(422, "/trigger", "not_allowed")

	text := w.definition(object{"start": "call",
		"nodes": object{"call": object{"type": "webhook", "endpoint_id": w.endpoint, "next": "done", "on_error": "lost"},
			"done": object{"type": "exit"}, "lost": object{"type": "exit", "goal": true}}})
	simulate = "/v1/flows/" + b.do("POST", "/v1/flows", object{"name": "Calls", "definition": text}).is(201).id() + "/versions/1/simulate"
	for status, want := range map[int]any{200: nil, 0: "goal", 500: "goal"} {
		if got := b.do("POST", simulate, object{"profile_key": "c1", "webhooks": object{"call": status}}).
			is(200); got.json["exit_reason"] != want {
			t.Errorf("answered with %d: %s", status, got.body)
		}
	}
	b.do("POST", simulate, object{"profile_key": "c1", "webhooks": object{"call": 199}}).fault(422, "/webhooks/call", "out_of_range")
	b.do("POST", simulate, object{"profile_key": "c1", "webhooks": object{"call": 600}}).fault(422, "/webhooks/call", "too_large")
}
