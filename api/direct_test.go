package api

import (
	"maps"
	"strings"
	"testing"
	"time"
)

// newDirect is a valid request with changes; nil deletes a field.
func (w world) newDirect(change object) object {
	in := object{"to": object{"address": "ada@shop.example"}, "template_id": w.template, "provider_id": w.provider,
		"from": object{"email": "shop@shop.example"}, "data": object{"name": "Ada"}}
	for name, value := range change {
		in[name] = value
		if value == nil {
			delete(in, name)
		}
	}
	return in
}

// A direct notification is accepted, read, explained and cancelled.
func TestDirectNotifications(t *testing.T) {
	b := setup(t)
	w := b.world()
	later := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	sent := b.do("POST", "/v1/notifications", w.newDirect(object{"metadata": object{"order": "4711"}, "send_at": later})).is(202)
	n := sent.json["notification"].(object)
	id := n["id"].(string)
	if n["origin"] != "direct" || n["status"] != "pending" || n["campaign_id"] != nil || n["metadata"].(object)["order"] != "4711" ||
		sent.json["filtered_by_idempotency"] != false || sent.header.Get("Location") != "/v1/notifications/"+id {
		t.Errorf("sent: %v", sent.json)
	}
	read := b.do("GET", "/v1/notifications/"+id, nil).is(200)
	for name, value := range n {
		if name != "metadata" && read.json[name] != value {
			t.Errorf("%s is read as %v, and was answered as %v", name, read.json[name], value)
		}
	}
	why := b.do("GET", "/v1/notifications/"+id+"/explain", nil).is(200)
	if why.json["waiting"].(object)["for"] != "due" {
		t.Errorf("explained: %v", why.json)
	}
	found := b.do("GET", "/v1/notifications?origin=direct&profile_key=ada@shop.example", nil).is(200)
	if list := found.json["data"].([]any); len(list) != 1 || list[0].(object)["id"] != id {
		t.Errorf("listed: %v", found.json)
	}
	for range 2 {
		if got := b.do("POST", "/v1/notifications/"+id+"/cancel", nil).is(200).json["status"]; got != "cancelled" {
			t.Errorf("cancelled: %v", got)
		}
	}
	b.WantCount(1, "select count(*) from batches where workspace_id = $1 and status = 'cancelled' and cancelled = 1", b.Workspace)
}

// A key is locked while its notification has not ended, and sealed afterwards.
func TestKeysOfDirectNotifications(t *testing.T) {
	b := setup(t)
	w := b.world()
	sealed := w.newDirect(object{"key": "once"})
	first := b.do("POST", "/v1/notifications", sealed).is(202)
	again := b.do("POST", "/v1/notifications", sealed).is(200)
	if again.json["filtered_by_idempotency"] != true ||
		again.json["notification"].(object)["id"] != first.json["notification"].(object)["id"] {
		t.Errorf("again: %v", again.json)
	}
	b.do("POST", "/v1/notifications", w.newDirect(object{"key": "once", "data": object{"name": "Eve"}})).fault(422, "/key", "key_reused")
	twice := w.newDirect(object{"key": "twice", "strategy": "at_least_once"})
	b.do("POST", "/v1/notifications", twice).is(202)
	locked := b.do("POST", "/v1/notifications", twice).is(409)
	if locked.problem.Code != "key_locked" || locked.header.Get("Retry-After") == "" {
		t.Errorf("locked: %s", locked.body)
	}
	bulk := b.do("POST", "/v1/notifications/bulk", object{"notifications": []object{sealed, twice, w.newDirect(object{"key": "new"}),
		w.newDirect(object{"key": "new"}), w.newDirect(object{"to": object{"address": "missing"}}), {"to": 7}}}).is(202)
	want := object{"accepted": 1.0, "filtered": 2.0, "locked": 1.0, "invalid": 2.0}
	for name, n := range want {
		if bulk.json["counts"].(object)[name] != n {
			t.Errorf("counts: %v", bulk.json["counts"])
		}
	}
	b.Exec("update workspaces set lock_for = '1 second' where id = $1", b.Workspace)
	b.do("PATCH", "/v1/workspace", object{"keys": object{"seal_for": "PT1H"}}).is(200)
	b.do("PATCH", "/v1/workspace", object{"keys": object{"seal_for": "P4D"}}).is(422)
	if keys := b.do("GET", "/v1/workspace", nil).is(200).json["workspace"].(object)["keys"].(object); keys["seal_for"] != "PT3600S" {
		t.Errorf("keys: %v", keys)
	}
}

// Requests without a strategy have that of the workspace, also where their keys are sealed.
func TestTheStrategyOfAWorkspace(t *testing.T) {
	b := setup(t)
	w := b.world()
	keys := func() object {
		return b.do("GET", "/v1/workspace", nil).is(200).json["workspace"].(object)["keys"].(object)
	}
	if got := keys()["strategy"]; got != "at_most_once" {
		t.Errorf("at first: %v", got)
	}
	b.do("PATCH", "/v1/workspace", object{"keys": object{"strategy": "always"}}).is(422)
	b.do("PATCH", "/v1/workspace", object{"keys": object{"strategy": "at_least_once"}}).is(200)
	if got := keys(); got["strategy"] != "at_least_once" || got["lock_for"] != "PT120S" {
		t.Errorf("changed: %v", got)
	}
	b.do("POST", "/v1/notifications", w.newDirect(object{"key": "a"})).is(202)
	b.do("POST", "/v1/notifications", w.newDirect(object{"key": "a"})).is(409) // it is locked until its notification has ended
	b.do("POST", "/v1/notifications", w.newDirect(object{"key": "b", "strategy": "at_most_once"})).is(202)
	b.do("POST", "/v1/notifications", w.newDirect(object{"key": "b", "strategy": "at_most_once"})).is(200)
	b.WantCount(1, "select count(*) from audit_log where workspace_id = $1 and action = 'updateWorkspace'", b.Workspace)
}

// A profile of an audience supplies the address and the data.
func TestDirectNotificationsOfAProfile(t *testing.T) {
	b := setup(t)
	w := b.world()
	to := func(profile string) object {
		return w.newDirect(object{"to": object{"profile_key": profile, "audience_id": w.audience}, "data": nil, "key": profile})
	}
	sent := b.do("POST", "/v1/notifications", to("c2")).is(202).json["notification"].(object)
	if sent["address"] != "bob@shop.example" || sent["profile_key"] != "c2" {
		t.Errorf("sent: %v", sent)
	}
	b.WantCount(1, `select count(*) from notifications
		where workspace_id = $1 and profile_key = 'c2' and payload = '{"name":"Bob"}'`, b.Workspace)
	if sent := b.do("POST", "/v1/notifications", to("c6")).is(202).json["notification"].(object); sent["reason"] != "unsubscribed" {
		t.Errorf("opted out: %v", sent)
	}
	b.do("POST", "/v1/notifications", to("c2")).is(200)
	b.do("POST", "/v1/notifications", to("missing")).fault(422, "/to/profile_key", "unknown_profile")
	b.do("POST", "/v1/notifications", to("missing")).fault(422, "/to/profile_key", "unknown_profile") // its key was unlocked
	bulk := b.do("POST", "/v1/notifications/bulk", object{"notifications": []object{to("c1"), to("c2"), to("missing")}}).is(202)
	if got := bulk.json["counts"].(object); got["accepted"] != 1.0 || got["filtered"] != 1.0 || got["invalid"] != 1.0 {
		t.Errorf("bulk: %v", bulk.json)
	}
	for i, want := range []any{0.0, nil, nil} {
		if got := bulk.json["results"].([]any)[i].(object)["other_addresses"]; got != want {
			t.Errorf("%d: %v other addresses", i, got)
		}
	}
}

// A key that may only send learns nothing of the rows of an audience: neither by its own content,
// nor by the faults of a template, nor by the address.
func TestASenderDoesNotReadRows(t *testing.T) {
	b := setup(t)
	w := b.world()
	to := object{"profile_key": "c2", "audience_id": w.audience}
	of := func(change object) object {
		in := w.newDirect(object{"to": to, "data": nil})
		maps.Copy(in, change)
		return in
	}
	inline := object{"subject": "s", "text": "{% if name == 'Bob' %}{{ name.yes }}{% else %}{{ name.no }}{% endif %}"}
	own := of(object{"content": inline})
	delete(own, "template_id")
	header := of(object{"headers": object{"X-A": "{{ name.yes }}"}})
	b.token = b.key(b.Workspace, "notifications:send")
	b.do("POST", "/v1/notifications", own).fault(403, "/content", "missing_scope")
	b.do("POST", "/v1/notifications", header).fault(403, "/headers/X-A", "missing_scope")
	bulk := b.do("POST", "/v1/notifications/bulk", object{"notifications": []object{own, header, of(nil)}}).is(202)
	if got := bulk.json["counts"].(object); got["accepted"] != 1.0 || got["invalid"] != 2.0 ||
		strings.Contains(string(bulk.body), "name.yes") {
		t.Errorf("bulk: %s", bulk.body)
	}
	plain := of(object{"content": object{"subject": "s", "text": "t {{ name }}"}, "data": object{"name": "x"},
		"send_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)})
	delete(plain, "template_id")
	sent := b.do("POST", "/v1/notifications", plain).is(202).json["notification"].(object)
	if sent["address"] != nil || sent["profile_key"] != "c2" {
		t.Errorf("the address of a profile is answered: %v", sent)
	}
	if sent := b.do("POST", "/v1/notifications/"+sent["id"].(string)+"/cancel", nil).is(200).json; sent["address"] != nil {
		t.Errorf("the address of a profile is answered: %v", sent)
	}
	if sent := b.do("POST", "/v1/notifications", w.newDirect(nil)).is(202).json["notification"].(object); sent["address"] == nil {
		t.Errorf("the address of the request is not answered: %v", sent)
	}
	b.ExecDB(`update customers set name = E'a\nb' where id = '2' or id = 'c2'`)
	failed := b.do("POST", "/v1/notifications", of(nil)).fault(422, "/data", "template_error")
	if strings.Contains(string(failed.body), "subject") || strings.Contains(string(failed.body), "line") {
		t.Errorf("the fault is of the row: %s", failed.body)
	}
	b.token = b.key(b.Workspace, "notifications:send", "audiences:query")
	failed = b.do("POST", "/v1/notifications", of(nil)).fault(422, "/data", "template_error")
	if !strings.Contains(string(failed.body), "line") {
		t.Errorf("the fault is not shown: %s", failed.body)
	}
	b.do("POST", "/v1/notifications", own).fault(422, "/content/text", "template_error")
}

// Each fault has one answer, and nothing is stored.
func TestFaultsOfDirectNotifications(t *testing.T) {
	b := setup(t)
	w := b.world()
	long := make([]byte, 1<<20)
	for i := range long {
		long[i] = 'x'
	}
	for name, change := range map[string]object{
		"/to":              {"to": object{}},
		"/to/address":      {"to": object{"address": "missing"}},
		"/to/profile_key":  {"to": object{"audience_id": w.audience}},
		"/to/audience_id":  {"to": object{"audience_id": w.campaign, "profile_key": "c1"}},
		"/template_id":     {"template_id": nil},
		"/template_id 9":   {"template_version": 9}, // "a template of this workspace, in a version that it has"
		"/provider_id":     {"provider_id": w.template},
		"/from":            {"from": nil},
		"/data":            {"data": object{}},
		"/data 2":          {"data": object{"name": string(long[:70_000])}},
		"/key":             {"key": string(long)},
		"/topic_id":        {"topic_id": w.template},
		"/transactional":   {"topic_id": w.topic, "transactional": true},
		"/channel":         {"channel": "sms"},
		"/content/html":    {"template_id": nil, "content": object{"subject": "s", "html": "{{ x"}, "data": object{}},
		"/content/subject": {"template_id": nil, "content": object{"subject": "{{ a }}", "text": "t"}, "data": object{"a": "x\ny"}},
		"/content/text": {"template_id": nil, "content": object{"subject": "s", "text": "{{ a | divided_by: b }}"},
			"data": object{"a": 1, "b": 0}},
		"/data 3":         {"data": object{"name": "a\nb"}}, // the fault is one of the template
		"/headers/X-Name": {"headers": object{"X-Name": "{{ city }}"}, "data": object{"name": "x", "city": "y\nz"}},
		"/send_at":        {"send_at": "2999-01-01T00:00:00Z"},
		"/expires_at":     {"send_at": "2026-01-01T00:00:00Z", "expires_at": "2026-01-01T00:00:00Z"},
		"/lock_for":       {"key": "k", "lock_for": "PT2H"},
		"/seal_for":       {"key": "k", "seal_for": "PT0S"},
		"/strategy":       {"strategy": "always"},
		"/unknown":        {"unknown": 1},
	} {
		a := b.do("POST", "/v1/notifications", w.newDirect(change))
		if a.status != 422 && a.status != 413 || len(a.problem.Errors) == 0 && a.status == 422 {
			t.Errorf("%s: %d %s", name, a.status, a.body)
			continue
		}
		if want, _, _ := strings.Cut(name, " "); a.status == 422 && a.problem.Errors[0].Pointer != want {
			t.Errorf("%s: %s", name, a.body)
		}
	}
	b.WantCount(0, "select (select count(*) from notifications) + (select count(*) from direct_keys) + (select count(*) from batches)")
	other := *b
	other.token = b.other
	other.do("POST", "/v1/notifications", w.newDirect(nil)).is(422)
	b.token = b.key(b.Workspace, "notifications:read")
	b.do("POST", "/v1/notifications", w.newDirect(nil)).is(403)
}

// openOfDirect are the fields of requests that take any field.
var openOfDirect = []string{"NewNotification/data", "NewNotification/headers", "NewNotification/metadata"}

// checkSuppressionsAndDirect is a part of TestEveryOperationSucceeds.
func (b *bundle) checkSuppressionsAndDirect(w world) {
	b.T.Helper()
	b.checkSuppressions(w)
	sent := b.do("POST", "/v1/notifications", w.newDirect(object{"key": "k"})).is(202)
	b.do("POST", "/v1/notifications", w.newDirect(object{"key": "k"})).is(200)
	b.do("POST", "/v1/notifications/bulk", object{"notifications": []object{w.newDirect(nil)}}).is(202)
	b.do("POST", "/v1/notifications/"+sent.json["notification"].(object)["id"].(string)+"/cancel", nil).is(200)
}
