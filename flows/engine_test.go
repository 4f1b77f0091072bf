package flows

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/message"
	"lemma/webhooks"
)

func newTemplate(body string) message.NewTemplate {
	return message.NewTemplate{ID: lemma.NewID(), Name: uuid.NewString(), Content: message.Content{Subject: "s", HTML: body}}
}

// A trigger enrolls, the first letter is written, the wait holds, and the
// second letter is written when it is over.
func TestAJourneyFromTriggerToEnd(t *testing.T) {
	b := setup(t, 3)
	flow := b.live(welcome)
	r := b.tell("c1", "signed_up", withID("e1"))
	if len(r.Results) != 1 || r.Results[0].Outcome != Enrolled {
		t.Fatalf("%+v", r)
	}
	b.settleDown()
	e := b.enrollment(flow, "c1")
	if e.Node != "wait" || e.Status != "waiting" || b.notifications() != 1 {
		t.Fatalf("%+v, %d notifications", e, b.notifications())
	}
	if left := time.Until(*e.ResumeAt); left < 71*time.Hour || left > 72*time.Hour {
		t.Fatalf("it waits for %s", left)
	}
	b.settleDown()
	if b.notifications() != 1 {
		t.Fatal("it did not wait")
	}
	b.pass(72 * time.Hour)
	b.settleDown()
	if e = b.enrollment(flow, "c1"); e.Status != Completed || e.Node != "end" || b.notifications() != 2 {
		t.Fatalf("%+v, %d notifications", e, b.notifications())
	}
	if got, want := b.story(e.ID), "enrolled@ checked@ sent@hello resumed@wait sent@nudge completed@end"; got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	if n := b.count(`select count(*) from batches where workspace_id = $1 and size = 1`); n != 2 {
		t.Fatalf("%d batches", n)
	}
	if n := b.count(`select count(*) from notification_status where workspace_id = $1 and flow_id = $2 and enrollment_id = $3 and node in ('hello', 'nudge')`, flow, e.ID); n != 2 {
		t.Fatalf("%d notifications know their journey", n)
	}
}

// Told twice, an event counts once: one by one, in one bulk, and at once.
func TestAnEventIsRecordedOnce(t *testing.T) {
	b := setup(t, 3)
	flow := b.live(welcome)
	b.tell("c1", "signed_up", withID("e1"))
	if r := b.tell("c1", "signed_up", withID("e1")); !r.Duplicate || len(r.Results) != 0 {
		t.Fatalf("%+v", r)
	}
	all, err := b.RecordAll(context.Background(), b.ws, []Event{{ProfileKey: "c2", Name: "signed_up", ID: "e2"}, {ProfileKey: "c2", Name: "signed_up", ID: "e2"}})
	b.must(err)
	if all[0].Duplicate || !all[1].Duplicate || len(all[0].Results) != 1 {
		t.Fatalf("%+v", all)
	}
	_, err = b.RecordAll(context.Background(), b.ws, []Event{{ProfileKey: "x1", Name: "z"}, {ProfileKey: "x2", Name: "a"}, {ProfileKey: "x3", Name: "m"}, {ProfileKey: "x4", Name: "a"}})
	b.must(err)
	for who, want := range map[string]string{"x1": "z", "x2": "a", "x3": "m", "x4": "a"} {
		if n := b.count(`delete from trigger_events where workspace_id = $1 and profile_key = $2 and name = $3 returning 1`, who, want); n != 1 {
			t.Fatalf("the event of %s is not %s", who, want)
		}
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			_, _ = b.Record(context.Background(), b.ws, Event{ProfileKey: "c3", Name: "signed_up", ID: "e3"})
		})
	}
	wg.Wait()
	if n := b.count(`select count(*) from trigger_events where workspace_id = $1`); n != 3 {
		t.Fatalf("%d events", n)
	}
	if n := b.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2`, flow); n != 3 {
		t.Fatalf("%d enrollments", n)
	}
	if n := b.count(`select count(*) from refusals where workspace_id = $1`); n != 0 {
		t.Fatalf("%d refusals", n)
	}
}

// Every trigger that enrolls nobody is kept with its reason and whom it met.
func TestRefusalsHaveReasons(t *testing.T) {
	b := setup(t, 9)
	flow := b.live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"order","condition":"trigger.properties.total > 10.0 && profile.country == 'DE'"}],
		"recurrence":{"policy":"fields","fields":["order_id"]},"start":"wait","nodes":{"wait":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`)
	plain := b.live(`{"triggers":[{"type":"event","event":"order","condition":"trigger.properties.total > 10.0"}],"recurrence":{"policy":"once"},
		"start":"wait","nodes":{"wait":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`)
	of := func(r Recorded, flow uuid.UUID) Result {
		for _, one := range r.Results {
			if one.FlowID == flow {
				return one
			}
		}
		return Result{}
	}
	rich := properties(`{"total":11,"order_id":"o1"}`)
	if r := of(b.tell("c2", "order", rich), plain); r.Outcome != Enrolled {
		t.Fatalf("%+v", r)
	}
	first := b.enrollment(plain, "c2").ID
	if r := of(b.tell("c2", "order", rich), plain); r.Reason != AlreadyEnrolled || r.EnrollmentID == nil || *r.EnrollmentID != first {
		t.Fatalf("%+v", r)
	}
	if r := of(b.tell("c2", "order", properties(`{"total":11,"order_id":"o2"}`)), flow); r.Reason != AlreadyActive || r.EnrollmentID == nil {
		t.Fatalf("%+v", r)
	}
	if r := of(b.tell("c4", "order", properties(`{"total":9}`)), plain); r.Reason != Filtered {
		t.Fatalf("%+v", r)
	}
	if r := of(b.tell("c4", "order", properties(`{"total":"many"}`)), plain); r.Reason != ConditionError {
		t.Fatalf("%+v", r)
	}
	if r := of(b.tell("c4", "order", properties(`{"total":12}`)), flow); r.Reason != MissingField {
		t.Fatalf("%+v", r)
	}
	// Conditions on the profile are decided when it is looked at, and free the key.
	if r := of(b.tell("c3", "order", rich), flow); r.Outcome != Enrolled {
		t.Fatalf("%+v", r)
	}
	b.settleDown()
	if e := b.enrollment(flow, "c3"); e.Status != statusRefused || e.ExitReason != Filtered {
		t.Fatalf("%+v", e)
	}
	b.run(b.shop, `update customers set country = 'DE' where id = 'c3'`)
	if r := of(b.tell("c3", "order", rich), flow); r.Outcome != Enrolled {
		t.Fatalf("the key of a refused enrollment is not free: %+v", r)
	}
	if _, err := b.Pause(context.Background(), b.ws, plain, nil); err != nil {
		t.Fatal(err)
	}
	if r := of(b.tell("c8", "order", rich), plain); r.Reason != IsPaused {
		t.Fatalf("%+v", r)
	}
	for reason, want := range map[string]int{AlreadyEnrolled: 2, AlreadyActive: 1, Filtered: 2, ConditionError: 1, MissingField: 2, IsPaused: 1} {
		if n := b.count(`select count(*) from refusals where workspace_id = $1 and reason = $2`, reason); n < 1 {
			t.Errorf("%d refusals are %s, about %d were expected", n, reason, want)
		}
	}
}

// A profile that is not in the audience is looked for a few times, since an
// event may be faster than the row, and then refused.
func TestNoProfile(t *testing.T) {
	b := setup(t, 1)
	flow := b.live(welcome)
	b.tell("ghost", "signed_up")
	b.tell("late", "signed_up")
	b.settleDown()
	if e := b.enrollment(flow, "ghost"); e.Status != Active || e.Trouble != "no_profile" {
		t.Fatalf("%+v", e)
	}
	b.run(b.shop, `insert into customers (id, email, name) values ('late', 'late@shop.example', 'L')`)
	for range looks {
		b.pass(time.Hour)
		b.settleDown()
	}
	if e := b.enrollment(flow, "ghost"); e.Status != statusRefused || e.ExitReason != NoProfile {
		t.Fatalf("%+v", e)
	}
	if e := b.enrollment(flow, "late"); e.Node != "wait" {
		t.Fatalf("%+v", e)
	}
	if n := b.count(`select count(*) from refusals where workspace_id = $1 and reason = 'no_profile'`); n != 1 {
		t.Fatalf("%d refusals", n)
	}
}

const awaiting = `{"audience_id":"$audience","triggers":[{"type":"event","event":"cart"}],"recurrence":{"policy":"per_event"},
	"exit_on":[{"event":"closed","goal":true,"condition":"event.properties.sum > 5.0"}],
	"start":"buy","nodes":{
		"buy":{"type":"wait_for_event","event":"bought","condition":"event.properties.cart == trigger.properties.cart","timeout":"P1D","next":"thanks","on_timeout":"nudge"},
		"thanks":{"type":"exit","goal":true},"nudge":{$send,"next":"end"},"end":{"type":"exit"}}}`

func TestWaitingForAnEvent(t *testing.T) {
	b := setup(t, 5)
	flow := b.live(awaiting)
	for i := 1; i <= 5; i++ {
		b.tell(fmt.Sprintf("c%d", i), "cart", properties(`{"cart":"a"}`))
	}
	b.settleDown()
	if r := b.tell("c1", "bought", properties(`{"cart":"other"}`)); r.Woken != 0 {
		t.Fatalf("%+v", r)
	}
	if r := b.tell("c1", "bought", properties(`{"cart":"a"}`)); r.Woken != 1 {
		t.Fatalf("%+v", r)
	}
	if r := b.tell("c2", "closed", properties(`{"sum":1}`)); r.Exited != 0 {
		t.Fatalf("%+v", r)
	}
	if r := b.tell("c2", "closed", properties(`{"sum":6}`)); r.Exited != 1 {
		t.Fatalf("%+v", r)
	}
	b.settleDown()
	if got, want := b.story(b.enrollment(flow, "c1").ID), "enrolled@ checked@ resumed@buy completed@thanks"; got != want {
		t.Fatalf("got %s", got)
	}
	if e := b.enrollment(flow, "c2"); e.Status != Exited || e.ExitReason != ExitGoal {
		t.Fatalf("%+v", e)
	}
	// An event that was written down but woke nobody is found when the time is over.
	b.run(b.pool, `insert into trigger_events (workspace_id, key, profile_key, name, properties, occurred_at) values ($1, $2, 'c3', 'bought', '{"cart":"a"}', now())`, b.ws, lemma.NewID())
	b.run(b.pool, `update enrollments set resume_at = now() where workspace_id = $1 and status = 'active'`, b.ws)
	b.settleDown()
	if got, want := b.story(b.enrollment(flow, "c3").ID), "enrolled@ checked@ resumed@buy completed@thanks"; got != want {
		t.Fatalf("got %s", got)
	}
	if got, want := b.story(b.enrollment(flow, "c4").ID), "enrolled@ checked@ timed_out@buy sent@nudge completed@end"; got != want {
		t.Fatalf("got %s", got)
	}
	if n := b.notifications(); n != 2 { // c4 and c5
		t.Fatalf("%d notifications", n)
	}
}

func TestBranchesAndSplits(t *testing.T) {
	b := setup(t, 40)
	flow := b.live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"cart"}],"recurrence":{"policy":"once"},"start":"wait","nodes":{
		"wait":{"type":"delay","for":"PT1H","next":"bought"},
		"bought":{"type":"branch","cases":[{"sql":"select o.customer_id from orders o join people p on p.profile_key = o.customer_id where o.at > p.enrolled_at","next":"customer"},
			{"if":"events.viewed.times >= 2","next":"keen"},{"if":"profile.country == 'DE'","next":"german"}],"else":"arms"},
		"arms":{"type":"split","arms":[{"weight":1,"next":"left"},{"weight":3,"next":"right"}]},
		"customer":{"type":"exit","goal":true},"keen":{"type":"exit"},"german":{"type":"exit"},"left":{"type":"exit"},"right":{"type":"exit"}}}`)
	for i := 1; i <= 40; i++ {
		b.tell(fmt.Sprintf("c%d", i), "cart")
	}
	b.settleDown()
	b.run(b.shop, `insert into orders (customer_id) values ('c1'), ('c2'), ('nobody')`)
	b.run(b.shop, `insert into orders (customer_id, at) values ('c3', now() - interval '1 day')`)
	b.tell("c5", "viewed")
	b.tell("c5", "viewed")
	b.tell("c7", "viewed")
	b.pass(time.Hour)
	b.settleDown()
	where := map[string]int{}
	for i := 1; i <= 40; i++ {
		e := b.enrollment(flow, fmt.Sprintf("c%d", i))
		if e.Status != Completed {
			t.Fatalf("%+v", e)
		}
		where[e.Node]++
	}
	if where["customer"] != 2 || where["keen"] != 1 || where["german"] != 19 || where["left"]+where["right"] != 18 || where["left"] == 0 || where["right"] < where["left"] {
		t.Fatalf("%v", where)
	}
}

// A message is written with the advance, answered later, and its status leads on.
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
	e, _, err := b.rooms.Webhooks.Create(context.Background(), b.ws, webhooks.NewEndpoint{ID: lemma.NewID(), Name: "crm", URL: hook.URL})
	b.must(err)
	flow := b.live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"cart"}],"recurrence":{"policy":"once"},"start":"call","nodes":{
		"call":{"type":"webhook","endpoint_id":"` + lemma.FormatID(lemma.PrefixEndpoint, e.ID) + `","columns":["country"],"data":{"list":7},"next":"done","on_status":{"410":"gone"}},
		"done":{"type":"exit"},"gone":{"type":"exit"}}}`)
	b.tell("c1", "cart")
	b.tell("c2", "cart")
	b.settleDown()
	if at := b.enrollment(flow, "c1"); at.Node != "call" || at.Status != "waiting" {
		t.Fatalf("%+v", at)
	}
	for range 20 {
		n, err := b.rooms.Webhooks.RunOnce(context.Background())
		b.must(err)
		if n == 0 {
			break
		}
	}
	b.settleDown()
	if got, want := b.story(b.enrollment(flow, "c1").ID), "enrolled@ checked@ webhook@call answered@call completed@done"; got != want {
		t.Fatalf("got %s", got)
	}
	if at := b.enrollment(flow, "c2"); at.Node != "gone" {
		t.Fatalf("%+v", at)
	}
	if len(ids) != 2 {
		t.Fatalf("%v", ids)
	}
}

// A source that is down delays who needs it, and nobody else.
func TestASourceThatIsDownDelaysItsOwn(t *testing.T) {
	b := setup(t, 3)
	needy := b.live(welcome)
	other := b.live(`{"triggers":[{"type":"event","event":"signed_up"}],"recurrence":{"policy":"once"},"start":"wait","nodes":{"wait":{"type":"delay","for":"PT1H","next":"end"},"end":{"type":"exit"}}}`)
	b.run(b.shop, `alter table customers rename to gone`)
	b.tell("c1", "signed_up")
	for range 5 {
		_, err := b.RunOnce(context.Background())
		b.must(err)
	}
	if e := b.enrollment(other, "c1"); e.Status != "waiting" {
		t.Fatalf("%+v", e)
	}
	e := b.enrollment(needy, "c1")
	if e.Node != "" || e.Trouble == "" || e.Failures == 0 {
		t.Fatalf("%+v", e)
	}
	b.run(b.shop, `alter table gone rename to customers`)
	b.pass(time.Hour)
	b.settleDown()
	if e := b.enrollment(needy, "c1"); e.Node != "wait" || e.Trouble != "" {
		t.Fatalf("%+v", e)
	}
}

// Skipped people go on, with the reason; who has left the audience leaves.
func TestWhoCannotBeWrittenTo(t *testing.T) {
	b := setup(t, 4)
	flow := b.live(welcome)
	b.run(b.shop, `update customers set opted_out = true where id = 'c1'`)
	b.run(b.shop, `update customers set email = ' ' where id = 'c2'`)
	for i := 1; i <= 4; i++ {
		b.tell(fmt.Sprintf("c%d", i), "signed_up")
	}
	b.settleDown()
	b.run(b.shop, `delete from customers where id = 'c4'`)
	b.pass(72 * time.Hour)
	b.settleDown()
	for who, want := range map[string]string{
		"c1": "enrolled@ checked@ skipped@hello resumed@wait skipped@nudge completed@end",
		"c2": "enrolled@ checked@ skipped@hello resumed@wait skipped@nudge completed@end",
		"c3": "enrolled@ checked@ sent@hello resumed@wait sent@nudge completed@end",
		"c4": "enrolled@ checked@ sent@hello resumed@wait exited@nudge",
	} {
		if got := b.story(b.enrollment(flow, who).ID); got != want {
			t.Errorf("%s: %s", who, got)
		}
	}
	if e := b.enrollment(flow, "c4"); e.ExitReason != ExitNoProfile {
		t.Fatalf("%+v", e)
	}
	if n := b.count(`select count(*) from notifications where workspace_id = $1 and skip_reason in ('unsubscribed', 'missing_address')`); n != 4 {
		t.Fatalf("%d skipped", n)
	}
}

// The trigger's data reaches the template; nothing else of the profile is stored.
func TestTemplatesSeeTheTrigger(t *testing.T) {
	b := setup(t, 1)
	tpl, err := b.rooms.Templates.Create(context.Background(), b.ws, newTemplate("{{ name }}: {{ trigger.properties.item }}"))
	b.must(err)
	b.template = tpl.ID
	b.live(welcome)
	b.tell("c1", "signed_up", properties(`{"item":"hat"}`))
	b.settleDown()
	var payload string
	b.must(b.pool.QueryRow(context.Background(), `select payload from notifications where workspace_id = $1`, b.ws).Scan(&payload))
	var data map[string]any
	b.must(json.Unmarshal([]byte(payload), &data))
	if data["name"] != "N1" || data["country"] != nil || data["trigger"].(map[string]any)["properties"].(map[string]any)["item"] != "hat" {
		t.Fatal(payload)
	}
}
