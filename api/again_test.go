package api

import (
	"strings"
	"testing"

	"lemma"
)

// lost sets a key to the state of a request whose process crashed before it kept the answer.
func (b *bundle) lost(key string) {
	b.T.Helper()
	b.Exec(`update idempotency_keys set status = null, headers = null, body = null, locked_until = now() - interval '1 second'
		where key = $1`, key)
}

// twice sends a request, loses its answer, calls between, and sends the request again.
func (b *bundle) twice(path string, body any, between func(), options ...option) answered {
	b.T.Helper()
	key := lemma.NewID().String()
	first := b.do("POST", path, body, append(options, under(key))...)
	if first.status >= 300 {
		b.T.Fatalf("%s: %d %s", path, first.status, first.body)
	}
	b.lost(key)
	if between != nil {
		between()
	}
	again := b.do("POST", path, body, append(options, under(key))...).is(first.status)
	if again.header.Get("Idempotent-Replayed") != "" {
		b.T.Errorf("%s: the answer was not lost", path)
	}
	return again
}

func TestFlowVerbsDoneAgain(t *testing.T) {
	b := setup(t)
	w := b.world()
	path := "/v1/flows/" + w.flow
	b.do("POST", path+"/versions/1/publish", nil).is(202)
	for _, wait := range []string{"P3D", "P4D"} {
		v := b.do("POST", path+"/versions", object{"definition": w.with("rest", object{"for": wait})}).is(201)
		b.do("POST", v.header.Get("Location")+"/publish", nil).is(202)
	}
	if got := b.twice(path+"/rollback", nil, nil); got.json["live_version"] != 2.0 {
		t.Errorf("rolled back twice: %s", got.body)
	}
	v := b.do("POST", path+"/versions", object{"definition": w.with("rest", object{"for": "P5D"})}).is(201).header.Get("Location")
	plan := b.do("POST", v+"/plan", nil).is(200)
	if got := b.twice(v+"/publish", nil, nil, header("If-Match", plan.header.Get("ETag"))); got.json["live_version"] != 4.0 {
		t.Errorf("published twice: %s", got.body)
	}
	if got := b.twice(path+"/pause", nil, func() { b.do("POST", path+"/resume", nil).is(202) }); got.text("status") != "live" {
		t.Errorf("paused a second time: %s", got.body)
	}
	b.do("POST", path+"/pause", nil).is(202)
	if got := b.twice(path+"/resume", nil, func() { b.do("POST", path+"/pause", nil).is(202) }); got.text("status") != "paused" {
		t.Errorf("what another caller paused is resumed: %s", got.body)
	}
	b.do("POST", path+"/resume", nil).is(202)
	_, e := b.enrolled(w, "c1")
	b.twice("/v1/enrollments/"+e+"/move", object{"node": "rest"}, nil)
	if got := b.twice("/v1/enrollments/"+e+"/exit", nil, nil); got.text("exit_reason") != "manual" {
		t.Errorf("exited: %s", got.body)
	}
	if got := b.twice(path+"/enrollments", object{"profile_key": "c2"}, nil); got.text("status") != "enrolled" ||
		got.header.Get("Location") == "" {
		t.Errorf("enrolled: %s", got.body)
	}
	b.twice(path+"/drain", nil, nil)
	b.twice(path+"/archive", nil, nil)
	history := b.do("GET", path+"/history", nil).is(200).json["data"].([]any)
	if want := 4 + 1 + 6 + 2; len(history) != want { // published, rolled back, paused and resumed, drained and archived
		t.Errorf("%d lines of history instead of %d", len(history), want)
	}
}

func TestCampaignVerbsDoneAgain(t *testing.T) {
	b := setup(t)
	w := b.world()
	verb := func(campaign, name string, body any) func() {
		return func() { b.do("POST", "/v1/campaigns/"+campaign+"/"+name, body).is(202) }
	}
	tomorrow := object{"at": "2999-01-01T00:00:00Z"}
	for name, c := range map[string]struct {
		before  []string
		verb    string
		body    any
		between string
		status  string
	}{
		"sent":                            {verb: "send", status: "preparing"},
		"sent, then cancelled":            {verb: "send", between: "cancel", status: "cancelled"},
		"scheduled":                       {verb: "schedule", body: tomorrow, status: "scheduled"},
		"scheduled, then unscheduled":     {verb: "schedule", body: tomorrow, between: "unschedule", status: "draft"},
		"unscheduled":                     {before: []string{"schedule"}, verb: "unschedule", status: "draft"},
		"paused":                          {before: []string{"send"}, verb: "pause", status: "paused"},
		"paused, then resumed":            {before: []string{"send"}, verb: "pause", between: "resume", status: "preparing"},
		"resumed, then paused once again": {before: []string{"send", "pause"}, verb: "resume", between: "pause", status: "paused"},
	} {
		campaign := b.draft(w)
		for _, before := range c.before {
			body := any(nil)
			if before == "schedule" {
				body = tomorrow
			}
			verb(campaign, before, body)()
		}
		between := func() {}
		if c.between != "" {
			between = verb(campaign, c.between, nil)
		}
		if got := b.twice("/v1/campaigns/"+campaign+"/"+c.verb, c.body, between); got.text("status") != c.status {
			t.Errorf("%s: it is %s", name, got.text("status"))
		}
	}
	campaign, _ := b.fannedOut(w)
	if got := b.twice("/v1/campaigns/"+campaign+"/cancel", nil, nil); got.json["campaign"].(object)["status"] != "cancelled" ||
		got.json["cancelled"].(float64) < 1 {
		t.Errorf("cancelled: %s", got.body)
	}
}

// A rotation whose answer was lost is not made a second time. The repeated request
// returns the secret that no caller received.
func TestARotationDoneAgain(t *testing.T) {
	b := setup(t)
	w := b.world()
	path := "/v1/webhook_endpoints/" + w.endpoint
	first := b.do("POST", path+"/rotate", nil, under("k")).is(200)
	b.lost("k")
	again := b.do("POST", path+"/rotate", nil, under("k")).is(200)
	if again.text("secret") != first.text("secret") || again.header.Get("ETag") != first.header.Get("ETag") {
		t.Errorf("%s after %s", again.body, first.body)
	}
	if other := b.do("POST", path+"/rotate", nil, under("k2")).is(200); other.text("secret") == first.text("secret") {
		t.Error("another request makes no new secret")
	}
}

// The answer to a request that writes nothing is not kept, since it may contain personal
// data. An Idempotency-Key has no effect on it, as on a dry run.
func TestAnswersOfReadsAreNotKept(t *testing.T) {
	b := setup(t)
	w := b.world()
	b.enrolled(w, "c2")
	flow := "/v1/flows/" + w.flow
	message := b.do("POST", flow+"/versions/1/simulate", object{"profile_key": "c1"}, under("k")).is(200)
	if !strings.Contains(string(message.body), "ada@shop.example") {
		t.Fatalf("no message: %s", message.body)
	}
	for path, body := range map[string]any{
		flow + "/versions/1/simulate":             object{"profile_key": "c2"},
		flow + "/versions/1/plan":                 nil,
		flow + "/versions/1/publish?dry_run=true": nil,
		flow + "/enrollments?dry_run=true":        object{"profile_key": "c1"},
		flow + "/enrollments/bulk?dry_run=true":   object{"enrollments": []object{{"profile_key": "c1"}}},
		"/v1/audiences/validate": object{"data_source_id": w.source, "sql": goodSQL, "key_column": "id",
			"email_column": "email"},
		"/v1/templates/validate":                             object{"subject": "s", "text": "t"},
		"/v1/templates/" + w.template + "/render":            object{"data": object{"name": "Ada"}},
		"/v1/campaigns/" + w.campaign + "/send?dry_run=true": nil,
	} {
		got := b.do("POST", path, body, under("k")).is(200) // one key for all of them
		if got.header.Get("Idempotent-Replayed") != "" {
			t.Errorf("%s is replayed", path)
		}
	}
	b.WantCount(0, `select count(*) from idempotency_keys`)
}
