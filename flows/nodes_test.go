package flows_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lemma"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/webhooks"
)

const awaiting = `{"audience_id":"$audience","triggers":[{"type":"event","event":"cart"}],"recurrence":{"policy":"per_event"},
	"exit_on":[{"event":"closed","goal":true,"condition":"event.properties.sum > 5.0"}],
	"start":"buy","nodes":{
		"buy":{"type":"wait_for_event","event":"bought","condition":"event.properties.cart == trigger.properties.cart","timeout":"P1D",
			"next":"thanks","on_timeout":"nudge"},
		"thanks":{"type":"exit","goal":true},"nudge":{$send,"next":"end"},"end":{"type":"exit"}}}`

func TestWaitingForAnEvent(t *testing.T) {
	b := setup(t, 5)
	flow := b.Live(awaiting)
	for i := 1; i <= 5; i++ {
		b.RecordEvent(fmt.Sprintf("c%d", i), "cart", flowstest.Properties(`{"cart":"a"}`))
	}
	b.Settle()
	if r := b.RecordEvent("c1", "bought", flowstest.Properties(`{"cart":"other"}`)); r.Woken != 0 {
		t.Fatalf("%+v", r)
	}
	if r := b.RecordEvent("c1", "bought", flowstest.Properties(`{"cart":"a"}`)); r.Woken != 1 {
		t.Fatalf("%+v", r)
	}
	if r := b.RecordEvent("c2", "closed", flowstest.Properties(`{"sum":1}`)); r.Exited != 0 {
		t.Fatalf("%+v", r)
	}
	if r := b.RecordEvent("c2", "closed", flowstest.Properties(`{"sum":6}`)); r.Exited != 1 {
		t.Fatalf("%+v", r)
	}
	b.Settle()
	if got, want := b.Trace(b.Enrollment(flow, "c1").ID), "enrolled@ checked@ resumed@buy completed@thanks"; got != want {
		t.Fatalf("got %s", got)
	}
	if e := b.Enrollment(flow, "c2"); e.Status != enrollment.Exited || e.ExitReason != enrollment.ExitGoal {
		t.Fatalf("%+v", e)
	}
	// An event that was recorded but woke nothing is found at the timeout.
	b.Exec(`insert into trigger_events (workspace_id, key, profile_key, name, properties, occurred_at)
		values ($1, $2, 'c3', 'bought', '{"cart":"a"}', now())`, b.Workspace, lemma.NewID())
	b.Exec(`update enrollments set resume_at = now() where workspace_id = $1 and status = 'active'`, b.Workspace)
	b.Settle()
	if got, want := b.Trace(b.Enrollment(flow, "c3").ID), "enrolled@ checked@ resumed@buy completed@thanks"; got != want {
		t.Fatalf("got %s", got)
	}
	if got, want := b.Trace(b.Enrollment(flow, "c4").ID), "enrolled@ checked@ timed_out@buy sent@nudge completed@end"; got != want {
		t.Fatalf("got %s", got)
	}
	if n := b.Notifications(); n != 2 { // c4 and c5
		t.Fatalf("%d notifications", n)
	}
}

func TestBranchesAndSplits(t *testing.T) {
	b := setup(t, 40)
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"cart"}],"recurrence":{"policy":"once"},
		"start":"wait","nodes":{
		"wait":{"type":"delay","for":"PT1H","next":"bought"},
		"bought":{"type":"branch","cases":[{"sql":"select o.customer_id from orders o join people p on p.profile_key = o.customer_id ` +
		`where o.at > p.enrolled_at",
			"next":"customer"},
			{"if":"events.viewed.times >= 2","next":"keen"},{"if":"profile.country == 'DE'","next":"german"}],"else":"arms"},
		"arms":{"type":"split","salt":"spring","arms":[{"weight":1,"next":"left"},{"weight":3,"next":"right"}]},
		"customer":{"type":"exit","goal":true},"keen":{"type":"exit"},"german":{"type":"exit"},"left":{"type":"exit"},"right":{"type":"exit"}}}`)
	for i := 1; i <= 40; i++ {
		b.RecordEvent(fmt.Sprintf("c%d", i), "cart")
	}
	b.Settle()
	b.ExecDB(`insert into orders (customer_id) values ('c1'), ('c2'), ('missing')`)
	b.ExecDB(`insert into orders (customer_id, at) values ('c3', now() - interval '1 day')`)
	b.RecordEvent("c5", "viewed")
	b.RecordEvent("c5", "viewed")
	b.RecordEvent("c7", "viewed")
	b.Pass(time.Hour)
	b.Settle()
	where := map[string]int{}
	for i := 1; i <= 40; i++ {
		e := b.Enrollment(flow, fmt.Sprintf("c%d", i))
		if e.Status != enrollment.Completed {
			t.Fatalf("%+v", e)
		}
		where[e.Node]++
	}
	want := map[string]int{"customer": 2, "keen": 1, "german": 19, "left": 5,
		"right": 13} // the salt is given, so the arms of profiles never change
	if d := cmp.Diff(want, where); d != "" {
		t.Fatal(d)
	}
}

// A message is written with the advance and answered later, and its status decides the
// path.
func TestWebhookNode(t *testing.T) {
	b := setup(t, 3)
	var mu sync.Mutex
	ids := map[string]int{}
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Data struct {
				ProfileKey string `json:"profile_key"`
			}
		}
		_ = json.NewDecoder(r.Body).Decode(&body)
		mu.Lock()
		ids[r.Header.Get("webhook-id")]++
		mu.Unlock()
		if body.Data.ProfileKey == "c2" {
			w.WriteHeader(http.StatusGone)
		}
	}))
	defer hook.Close()
	e, _, err := b.Deps.Webhooks.Create(context.Background(), b.Workspace,
		webhooks.NewEndpoint{ID: lemma.NewID(), Name: "crm", URL: hook.URL})
	b.Must(err)
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"cart"}],"recurrence":{"policy":"once"},"start":"call",
		"nodes":{
		"call":{"type":"webhook","endpoint_id":"` + lemma.FormatID(lemma.PrefixEndpoint, e.ID) +
		`","columns":["country"],"data":{"list":7},"next":"done","on_status":{"410":"gone"}},
		"done":{"type":"exit"},"gone":{"type":"exit"}}}`)
	b.RecordEvent("c1", "cart")
	b.RecordEvent("c2", "cart")
	b.Settle()
	if at := b.Enrollment(flow, "c1"); at.Node != "call" || at.Status != "waiting" {
		t.Fatalf("%+v", at)
	}
	for range 20 {
		n, err := b.Deps.Webhooks.RunOnce(context.Background())
		b.Must(err)
		if n == 0 {
			break
		}
	}
	b.Settle()
	if got, want := b.Trace(b.Enrollment(flow, "c1").ID), "enrolled@ checked@ webhook@call answered@call completed@done"; got != want {
		t.Fatalf("got %s", got)
	}
	if at := b.Enrollment(flow, "c2"); at.Node != "gone" {
		t.Fatalf("%+v", at)
	}
	if len(ids) != 2 {
		t.Fatalf("%v", ids)
	}
}
