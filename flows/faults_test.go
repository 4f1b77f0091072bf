package flows

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/audience"
)

// What could go wrong around a flow, and must stay with the one that it is about.

const anHour = `{"triggers":[{"type":"event","event":"$event"}],"recurrence":{"policy":"once"},"start":"wait","nodes":{"wait":{"type":"delay","for":"PT1H","next":"end"},"end":{"type":"exit"}}}`

func hourAfter(event string) string { return strings.ReplaceAll(anHour, "$event", event) }

// A version that this program cannot read holds up its own people, and nobody
// else: not those of other versions, not events, not other flows.
func TestAVersionThatCannotBeRead(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(hourAfter("go"))
	b.tell("c1", "go")
	b.settleDown()
	b.publish(flow, hourAfter("go"), InFlight{})
	b.tell("c2", "go")
	b.run(b.pool, `update flow_versions set definition = '{"no":1}' where flow_id = $1 and version = 1`, flow)
	b.run(b.pool, `update enrollments set turn = 0 where workspace_id = $1`, b.ws)
	b.graphs = graphs{} // another node
	b.pass(2 * time.Hour)
	b.settleDown()
	if e := b.enrollment(flow, "c2"); e.Node != "wait" {
		t.Errorf("%+v", e)
	}
	if e := b.enrollment(flow, "c1"); e.Trouble != "version_unreadable" || e.Step != 1 {
		t.Errorf("%+v", e)
	}
	if r := b.tell("c3", "go"); len(r.Results) != 1 || r.Results[0].Outcome != Enrolled {
		t.Errorf("%+v", r)
	}
	_, err := b.Archive(bg, b.ws, flow, nil)
	b.must(err)
	b.must(b.Tick(bg))
	if e := b.enrollment(flow, "c1"); e.Status != Exited {
		t.Errorf("%+v", e)
	}
	if r := b.tell("c4", "go"); len(r.Results) != 0 {
		t.Errorf("an empty archived flow still listens: %+v", r)
	}
}

// A move that cannot be carried out holds up no other, and nothing else.
func TestAMoveThatCannotBeCarriedOut(t *testing.T) {
	b := setup(t, 3)
	broken := b.live(hourAfter("go"))
	b.tell("c1", "go")
	b.settleDown()
	b.publish(broken, hourAfter("go"), InFlight{Mode: "move"})
	b.run(b.pool, `update flow_versions set definition = '{"no":' where flow_id = $1 and version = 1`, broken)
	other := b.live(hourAfter("other"))
	b.tell("c2", "other")
	_, err := b.Archive(bg, b.ws, other, nil)
	b.must(err)
	polled := b.live(`{"audience_id":"$audience","triggers":[{"type":"audience","every":"PT1H"}],"recurrence":{"policy":"once"},"start":"end","nodes":{"end":{"type":"exit"}}}`)
	for range 3 {
		_ = b.Tick(bg)
	}
	b.polls.running.Wait()
	if e := b.enrollment(other, "c2"); e.Status != Exited {
		t.Errorf("%+v", e)
	}
	if n := len(b.enrollments(polled, "")); n != 3 {
		t.Errorf("%d people were found in the audience", n)
	}
}

const forAnHour = `{"triggers":[{"type":"event","event":"cart"}],"recurrence":{"policy":"once"},"start":"buy","nodes":{
	"buy":{"type":"wait_for_event","event":"bought","condition":"!has(event.properties.big) || event.properties.big == true","timeout":"PT1H","next":"thanks","on_timeout":"nudge"},
	"thanks":{"type":"exit","goal":true},"nudge":{"type":"exit"}}}`

// An event that comes after the time is over does not count, however late a
// worker gets to it.
func TestAnEventAfterTheTimeout(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(forAnHour)
	b.tell("c1", "cart")
	b.settleDown()
	_, err := b.Pause(bg, b.ws, flow, nil)
	b.must(err)
	b.pass(72 * time.Hour)
	if r := b.tell("c1", "bought"); r.Woken != 0 {
		t.Errorf("%+v", r)
	}
	_, err = b.Resume(bg, b.ws, flow, ptr(time.Duration(0)), nil)
	b.must(err)
	b.settleDown()
	if got := b.story(b.enrollment(flow, "c1").ID); got != "enrolled@ checked@ timed_out@buy completed@nudge" {
		t.Error(got)
	}
}

// What an outage of the source put off is as if it had been on time: an event
// that came meanwhile counts.
func TestAnEventWhileTheSourceIsDown(t *testing.T) {
	b := setup(t, 1)
	flow := b.live(`{"audience_id":"$audience","exit_when_not_in_audience":true,"triggers":[{"type":"event","event":"cart"}],"recurrence":{"policy":"once"},"start":"wait","nodes":{
		"wait":{"type":"delay","for":"PT1H","next":"buy"},
		"buy":{"type":"wait_for_event","event":"bought","timeout":"PT1H","next":"thanks","on_timeout":"nudge"},
		"thanks":{"type":"exit","goal":true},"nudge":{"type":"exit"}}}`)
	b.tell("c1", "cart")
	b.settleDown()
	b.pass(time.Hour)
	b.run(b.shop, `alter table customers rename to gone`)
	_, err := b.RunOnce(bg)
	b.must(err)
	if e := b.enrollment(flow, "c1"); e.Trouble == "" {
		t.Fatalf("%+v", e)
	}
	b.tell("c1", "bought")
	b.run(b.shop, `alter table gone rename to customers`)
	b.sources = breakers{}
	b.run(b.pool, `update enrollments set resume_at = now() where workspace_id = $1`, b.ws)
	b.settleDown()
	if got := b.story(b.enrollment(flow, "c1").ID); got != "enrolled@ checked@ resumed@wait resumed@buy completed@thanks" {
		t.Error(got)
	}
}

// However many events the condition turns down, the one that it accepts is found.
func TestManyEventsThatDoNotCount(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(forAnHour)
	b.tell("c1", "cart")
	var all []Event
	for range 2*eventsPage + 50 {
		all = append(all, Event{ProfileKey: "c1", Name: "bought", Properties: []byte(`{"big":false}`)})
	}
	_, err := b.RecordAll(bg, b.ws, all)
	b.must(err)
	b.tell("c1", "bought", properties(`{"big":true}`))
	b.settleDown()
	if got := b.story(b.enrollment(flow, "c1").ID); got != "enrolled@ checked@ resumed@buy completed@thanks" {
		t.Error(got)
	}
}

// A version that denies overlap looks at those who came in while one allowed it.
func TestOverlapIsDeniedAgain(t *testing.T) {
	b := setup(t, 0)
	def := func(overlap string) string {
		return strings.Replace(strings.Replace(hourAfter("go"), `"once"`, `"per_event"`, 1), `"start"`, `"overlap":"`+overlap+`","start"`, 1)
	}
	flow := b.live(def("allow"))
	for i := range 2 {
		if r := b.tell("c1", "go", withID(fmt.Sprint(i))); r.Results[0].Outcome != Enrolled {
			t.Fatalf("%+v", r)
		}
	}
	b.publish(flow, def("deny"), InFlight{Mode: "move"})
	b.must(b.Tick(bg))
	if r := b.tell("c1", "go", withID("3")); r.Results[0].Reason != AlreadyActive || r.Results[0].EnrollmentID == nil {
		t.Errorf("%+v", r)
	}
}

// A direct enrollment told again under its id is the same one, on whatever day;
// one that enrolled nobody may be told again.
func TestADirectEnrollmentIsToldAgain(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(strings.Replace(hourAfter("go"), `"once"`, `"daily"`, 1))
	enroll := func(id string, at time.Time) Result {
		t.Helper()
		r, err := b.Enroll(bg, b.ws, flow, Enrolling{ProfileKey: "c1", ID: id, OccurredAt: at}, false)
		b.must(err)
		return r
	}
	_, err := b.Pause(bg, b.ws, flow, nil)
	b.must(err)
	if r := enroll("order-17", time.Time{}); r.Reason != IsPaused {
		t.Fatalf("%+v", r)
	}
	_, err = b.Resume(bg, b.ws, flow, ptr(time.Duration(0)), nil)
	b.must(err)
	first := enroll("order-17", time.Now().Add(-24*time.Hour))
	if first.Outcome != Enrolled {
		t.Fatalf("%+v", first)
	}
	b.settleDown()
	b.pass(2 * time.Hour)
	b.settleDown()
	again := enroll("order-17", time.Now())
	if again.Outcome != Refused || again.Reason != AlreadyEnrolled || again.EnrollmentID == nil || *again.EnrollmentID != *first.EnrollmentID {
		t.Errorf("%+v", again)
	}
	if r := enroll("order-18", time.Now()); r.Outcome != Enrolled {
		t.Errorf("%+v", r)
	}
	if found, _, err := b.ListEvents(bg, b.ws, "c1", "", lemma.Page{Limit: 10}); err != nil || len(found) != 0 {
		t.Errorf("requests are listed as events: %v, %v", found, err)
	}
}

// An audience that changes is read as it is now.
func TestAnAudienceLosesAColumn(t *testing.T) {
	b := setup(t, 2)
	flow := b.live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"cart"}],"recurrence":{"policy":"once"},"start":"look","nodes":{
		"look":{"type":"branch","cases":[{"if":"profile[trigger.name] == 'x'","next":"end"}],"else":"end"},"end":{"type":"exit"}}}`)
	b.tell("c1", "cart")
	b.settleDown()
	_, err := b.audiences.Update(bg, b.ws, b.audience, nil, audience.Patch{SQL: ptr("select id, email, name, country, zone, opted_out from customers")})
	b.must(err)
	b.tell("c2", "cart")
	_, err = b.RunOnce(bg)
	b.must(err)
	b.pass(time.Hour)
	b.settleDown()
	if e := b.enrollment(flow, "c2"); e.Status != Completed {
		t.Errorf("%+v", e)
	}
}

// Whoever takes columns from an audience is told which flows read them.
func TestMissingColumns(t *testing.T) {
	b := setup(t, 1)
	const asks = `{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"asks","nodes":{
		"asks":{"type":"branch","cases":[{"if":"profile.country == 'DE'","next":"wait"}],"else":"wait"},"wait":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`
	past, left, live := b.live(asks), b.live(asks), b.live(asks)
	b.tell("c1", "go")
	b.settleDown()
	b.publish(past, minimal, InFlight{Mode: "exit"})
	b.publish(left, minimal, InFlight{Mode: "stay"})
	b.must(b.moveAround(bg))
	missing, err := b.MissingColumns(bg, b.ws, b.audience)
	b.must(err)
	if len(missing) != 0 {
		t.Errorf("%q", missing)
	}
	b.must(second(b.audiences.Update(bg, b.ws, b.audience, nil, audience.Patch{SQL: ptr("select id, email, name, opted_out from customers")})))
	missing, err = b.MissingColumns(bg, b.ws, b.audience)
	b.must(err)
	var want []string
	for _, id := range []uuid.UUID{left, live} {
		f, err := b.Get(bg, b.ws, id)
		b.must(err)
		want = append(want, "the flow "+f.Name+", version 1, reads what is not there any more: country")
	}
	slices.Sort(want)
	if !slices.Equal(missing, want) {
		t.Errorf("%q, want %q", missing, want)
	}
}

// An audience that is read from another data source from now on takes the
// branches with it that ask its source.
func TestAnAudienceMovesToAnotherSource(t *testing.T) {
	b := setup(t, 2)
	const buyers = `select p.profile_key from people p join customers c on c.id = p.profile_key where c.name = 'buyer'`
	flow := b.live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"asks","nodes":{
		"asks":{"type":"branch","cases":[{"sql":"` + buyers + `","next":"yes"}],"else":"no"},"yes":{"type":"exit"},"no":{"type":"exit"}}}`)
	b.tell("c1", "go")
	b.settleDown()
	shop, dsn := b.newShop()
	b.run(shop, `insert into customers values ('c1', '', 'buyer'), ('c2', '', 'buyer')`)
	other, err := b.audiences.CreateSource(bg, b.ws, audience.NewSource{ID: lemma.NewID(), Name: "other", Kind: "postgres", DSN: dsn})
	b.must(err)
	b.must(second(b.audiences.Update(bg, b.ws, b.audience, nil, audience.Patch{DataSourceID: &other.ID})))
	b.must(b.audiences.DeleteSource(bg, b.ws, b.source))
	seen, err := b.Simulate(bg, b.ws, flow, 1, Simulation{ProfileKey: "c2", Trigger: Event{Name: "go"}})
	b.must(err)
	if last := seen.Path[len(seen.Path)-1]; last.Node != "yes" {
		t.Errorf("a simulation asks the source of before: %+v", last)
	}
	b.tell("c2", "go")
	b.settleDown()
	if before, after := b.enrollment(flow, "c1"), b.enrollment(flow, "c2"); before.Node != "no" || after.Node != "yes" {
		t.Errorf("%+v\n%+v", before, after)
	}
}
