package api

import (
	"strings"
	"testing"
)

// checkSuppressions uses suppressions, topics and preferences, with the answers that
// the contract lists.
func (b *bundle) checkSuppressions(w world) {
	b.T.Helper()
	ada := object{"channel": "email", "address": "Ada@Example.com", "cause": "complaint", "detail": "abuse report"}
	made := b.do("POST", "/v1/suppressions", ada).is(201)
	if made.text("address") != "ada@example.com" {
		b.T.Errorf("not canonical: %s", made.body)
	}
	if again := b.do("POST", "/v1/suppressions", ada).is(200); again.id() != made.id() {
		b.T.Errorf("added twice: %s", again.body)
	}
	path := "/v1/suppressions/" + made.id()
	b.do("GET", path, nil).is(200)
	if found := b.do("GET", "/v1/suppressions?address=ADA@example.com&cause=complaint&channel=email", nil).
		is(200); len(found.json["data"].([]any)) != 1 {
		b.T.Errorf("%s", found.body)
	}
	csv := header("Content-Type", "text/csv")
	got := b.do("POST", "/v1/suppressions/import?cause=unsubscribed", "address\nbob@example.com\nada@example.com\nnonsense\n", csv).is(200)
	if counts := got.json["counts"].(object); counts["added"] != 2.0 || counts["invalid"] != 1.0 {
		b.T.Errorf("%s", got.body)
	}
	b.do("POST", "/v1/suppressions/import", "name\nBob\n", csv).fault(422, "/header", "unknown_field")
	b.do("POST", "/v1/suppressions/import?cause=rage", "address\n", csv).is(400)
	exported := b.do("GET", "/v1/suppressions/export", nil, header("Accept", "text/csv")).is(200)
	if lines := strings.Count(string(exported.body), "\n"); lines != 4 || exported.header.Get("Link") != "" {
		b.T.Errorf("%d lines: %s", lines, exported.body)
	}
	topic := "/v1/topics/" + w.topic
	b.do("GET", "/v1/topics", nil).is(200)
	b.do("GET", topic, nil).is(200)
	b.do("PATCH", topic, object{"description": "Once a week"}, header("If-Match", `"1"`)).is(200)
	b.do("PATCH", topic, object{"description": "Once a day"}, header("If-Match", `"1"`)).is(412)
	preference := object{"channel": "email", "address": "ada@example.com", "topic_id": w.topic, "subscribed": false}
	set := b.do("PUT", "/v1/preferences", preference).is(200)
	if topics := set.json["topics"].([]any); topics[0].(object)["subscribed"] != false || len(set.json["suppressions"].([]any)) != 2 {
		b.T.Errorf("%s", set.body)
	}
	other := b.do("POST", "/v1/topics", object{"name": "Before all others"}).is(201).id()
	preferences := "/v1/preferences?channel=email&address=Ada@example.com"
	for query, first := range map[string]string{"": other, "&topic_id=" + w.topic: w.topic, "&topic_id=" + other: other,
		"&topic_id=x": other} {
		got := b.do("GET", preferences+query, nil).is(200)
		if topics := got.json["topics"].([]any); topics[0].(object)["id"] != first || got.json["topic_count"] != 2. {
			b.T.Errorf("%s: %s", query, got.body)
		}
	}
	if again := b.do("PUT", "/v1/preferences", preference).is(200); again.json["topics"].([]any)[0].(object)["id"] != w.topic {
		b.T.Errorf("%s", again.body)
	}
	b.do("GET", "/v1/preferences?channel=email&address=ada", nil).fault(400, "?address", "invalid_address")
	preference["topic_id"] = "top_nothing"
	b.do("PUT", "/v1/preferences", preference).fault(422, "/topic_id", "unknown_id")
	b.do("DELETE", path, nil).is(204)
	b.do("GET", path, nil).is(404)
	used := b.do("POST", "/v1/campaigns", w.newCampaign(object{"topic_id": w.topic})).is(201)
	if refused := b.do("DELETE", topic, nil).is(409); !strings.Contains(refused.problem.Detail, "Winter") {
		b.T.Errorf("%s", refused.body)
	}
	b.do("PATCH", "/v1/campaigns/"+used.id(), object{"transactional": true}).fault(422, "/topic_id", "not_allowed")
	b.do("PATCH", "/v1/campaigns/"+used.id(), object{"transactional": true, "topic_id": nil}).is(200)
	b.do("DELETE", topic, nil).is(204)
}

// An export continues where the page before ended, and has each row once.
func TestExportsContinue(t *testing.T) {
	b := setup(t)
	b.Exec(`insert into suppressions (workspace_id, id, key, channel, address, cause)
		select $1, gen_random_uuid(), gen_random_uuid(), 'email', 'a' || i || '@example.com', 'manual'
		from generate_series(1, 50001) i`, b.Workspace)
	seen := map[string]int{}
	pages := 0
	for path := "/v1/suppressions/export"; path != ""; pages++ {
		got := b.do("GET", path, nil).is(200)
		for _, line := range strings.Split(strings.TrimSpace(string(got.body)), "\n")[1:] {
			seen[line]++
		}
		link, _, _ := strings.Cut(strings.TrimPrefix(got.header.Get("Link"), "<"), ">")
		path = link
	}
	if len(seen) != 50001 || pages != 2 {
		t.Errorf("%d rows on %d pages", len(seen), pages)
	}
}
