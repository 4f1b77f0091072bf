package flows_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/audience"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
	"lemma/flows/query"
	"lemma/page"
)

// Faults of one flow, version or profile must not affect others.

// A version that this program cannot read stops only its own enrollments: no other
// versions, events or flows.
func TestAVersionThatCannotBeRead(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.HourAfter("go"))
	b.RecordEvent("c1", "go")
	b.Settle()
	b.PublishNext(flow, flowstest.HourAfter("go"), flows.InFlight{})
	b.RecordEvent("c2", "go")
	b.Exec(`update flow_versions set definition = '{"no":1}' where flow_id = $1 and version = 1`, flow)
	b.Exec(`update enrollments set shard = 0 where workspace_id = $1`, b.Workspace)
	b.Execution.Versions.Drop(flow, 1) // another process
	b.Pass(2 * time.Hour)
	b.Settle()
	if e := b.Enrollment(flow, "c2"); e.Node != "wait" {
		t.Errorf("%+v", e)
	}
	if e := b.Enrollment(flow, "c1"); e.BlockedReason != "version_unreadable" || e.Step != 1 {
		t.Errorf("%+v", e)
	}
	if r := b.RecordEvent("c3", "go"); len(r.Results) != 1 || r.Results[0].Outcome != enrollment.Enrolled {
		t.Errorf("%+v", r)
	}
	_, err := b.Archive(bg, b.Workspace, flow, nil)
	b.Must(err)
	b.Must(b.Tick(bg))
	if e := b.Enrollment(flow, "c1"); e.Status != enrollment.Exited {
		t.Errorf("%+v", e)
	}
	if r := b.RecordEvent("c4", "go"); len(r.Results) != 0 {
		t.Errorf("an archived flow without enrollments still listens: %+v", r)
	}
}

// A move that fails delays no other, and nothing else.
func TestAMoveThatCannotBeCarriedOut(t *testing.T) {
	b := setup(t, 3)
	broken := b.Live(flowstest.HourAfter("go"))
	b.RecordEvent("c1", "go")
	b.Settle()
	b.PublishNext(broken, flowstest.HourAfter("go"), flows.InFlight{Mode: "move"})
	b.Exec(`update flow_versions set definition = '{"no":' where flow_id = $1 and version = 1`, broken)
	other := b.Live(flowstest.HourAfter("other"))
	b.RecordEvent("c2", "other")
	_, err := b.Archive(bg, b.Workspace, other, nil)
	b.Must(err)
	polled := b.Live(`{"audience_id":"$audience","triggers":[{"type":"audience","every":"PT1H"}],"recurrence":{"policy":"once"},
		"start":"end","nodes":{"end":{"type":"exit"}}}`)
	for range 3 {
		_ = b.Tick(bg)
	}
	b.Wait()
	if e := b.Enrollment(other, "c2"); e.Status != enrollment.Exited {
		t.Errorf("%+v", e)
	}
	if n := len(b.Enrollments(polled, "")); n != 3 {
		t.Errorf("%d profiles of the audience were enrolled", n)
	}
}

// An event after the timeout does not count, however late a worker is.
func TestAnEventAfterTheTimeout(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.ForAnHour)
	b.RecordEvent("c1", "cart")
	b.Settle()
	_, err := b.Pause(bg, b.Workspace, flow, nil)
	b.Must(err)
	b.Pass(72 * time.Hour)
	if r := b.RecordEvent("c1", "bought"); r.Woken != 0 {
		t.Errorf("%+v", r)
	}
	_, err = b.Resume(bg, b.Workspace, flow, new(time.Duration(0)), nil)
	b.Must(err)
	b.Settle()
	b.WantTrace(b.Enrollment(flow, "c1").ID, "enrolled@ checked@ timed_out@buy completed@nudge")
}

// After an outage of the source an enrollment continues as if it had been on time: an
// event during the outage counts.
func TestAnEventWhileTheSourceIsDown(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(`{"audience_id":"$audience","exit_when_not_in_audience":true,"triggers":[{"type":"event","event":"cart"}],
		"recurrence":{"policy":"once"},"start":"wait","nodes":{
		"wait":{"type":"delay","for":"PT1H","next":"buy"},
		"buy":{"type":"wait_for_event","event":"bought","timeout":"PT1H","next":"thanks","on_timeout":"nudge"},
		"thanks":{"type":"exit","goal":true},"nudge":{"type":"exit"}}}`)
	b.RecordEvent("c1", "cart")
	b.Settle()
	b.Pass(time.Hour)
	b.ExecDB(`alter table customers rename to gone`)
	_, err := b.RunOnce(bg)
	b.Must(err)
	if e := b.Enrollment(flow, "c1"); e.BlockedReason == "" {
		t.Fatalf("%+v", e)
	}
	b.RecordEvent("c1", "bought")
	b.ExecDB(`alter table gone rename to customers`)
	b.Execution.Sources.Reopen()
	b.Exec(`update enrollments set resume_at = now() where workspace_id = $1`, b.Workspace)
	b.Settle()
	b.WantTrace(b.Enrollment(flow, "c1").ID, "enrolled@ checked@ resumed@wait resumed@buy completed@thanks")
}

// However many events the condition rejects, the accepted one is found.
func TestManyEventsThatDoNotCount(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.ForAnHour)
	b.RecordEvent("c1", "cart")
	var all []intake.Event
	for range 2*100 + 50 {
		all = append(all, intake.Event{ProfileKey: "c1", Name: "bought", Properties: []byte(`{"big":false}`)})
	}
	_, err := b.RecordAll(bg, b.Workspace, all)
	b.Must(err)
	b.RecordEvent("c1", "bought", flowstest.Properties(`{"big":true}`))
	b.Settle()
	b.WantTrace(b.Enrollment(flow, "c1").ID, "enrolled@ checked@ resumed@buy completed@thanks")
}

// A version that denies overlap checks the enrollments of one that allowed it.
func TestOverlapIsDeniedAgain(t *testing.T) {
	b := setup(t, 0)
	def := func(overlap string) string {
		return strings.Replace(strings.Replace(flowstest.HourAfter("go"), `"once"`, `"per_event"`, 1), `"start"`,
			`"overlap":"`+overlap+`","start"`, 1)
	}
	flow := b.Live(def("allow"))
	for i := range 2 {
		if r := b.RecordEvent("c1", "go", flowstest.WithID(fmt.Sprint(i))); r.Results[0].Outcome != enrollment.Enrolled {
			t.Fatalf("%+v", r)
		}
	}
	b.PublishNext(flow, def("deny"), flows.InFlight{Mode: "move"})
	b.Must(b.Tick(bg))
	if r := b.RecordEvent("c1", "go",
		flowstest.WithID("3")); r.Results[0].Reason != enrollment.AlreadyActive || r.Results[0].EnrollmentID == nil {
		t.Errorf("%+v", r)
	}
}

// A direct enrollment that is repeated under its id is the same one, on any day; one that
// was refused may be repeated.
func TestADirectEnrollmentIsRepeated(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(strings.Replace(flowstest.HourAfter("go"), `"once"`, `"daily"`, 1))
	enroll := func(id string, at time.Time) intake.Result {
		t.Helper()
		r, err := b.Enroll(bg, b.Workspace, flow, intake.Enrolling{ProfileKey: "c1", ID: id, OccurredAt: at}, false)
		b.Must(err)
		return r
	}
	_, err := b.Pause(bg, b.Workspace, flow, nil)
	b.Must(err)
	if r := enroll("order-17", time.Time{}); r.Reason != enrollment.IsPaused {
		t.Fatalf("%+v", r)
	}
	_, err = b.Resume(bg, b.Workspace, flow, new(time.Duration(0)), nil)
	b.Must(err)
	first := enroll("order-17", time.Now().Add(-24*time.Hour))
	if first.Outcome != enrollment.Enrolled {
		t.Fatalf("%+v", first)
	}
	b.Settle()
	b.Pass(2 * time.Hour)
	b.Settle()
	again := enroll("order-17", time.Now())
	if again.Outcome != enrollment.Refused || again.Reason != enrollment.AlreadyEnrolled || again.EnrollmentID == nil ||
		*again.EnrollmentID != *first.EnrollmentID {
		t.Errorf("%+v", again)
	}
	if r := enroll("order-18", time.Now()); r.Outcome != enrollment.Enrolled {
		t.Errorf("%+v", r)
	}
	if found, _, err := b.ListEvents(bg, b.Workspace, "c1", "", page.Query{Limit: 10}); err != nil || len(found) != 0 {
		t.Errorf("requests are listed as events: %v, %v", found, err)
	}
}

// An audience that changes is read with its current columns.
func TestAnAudienceLosesAColumn(t *testing.T) {
	b := setup(t, 2)
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"cart"}],"recurrence":{"policy":"once"},"start":"check",
		"nodes":{
		"check":{"type":"branch","cases":[{"if":"profile[trigger.name] == 'x'","next":"end"}],"else":"end"},"end":{"type":"exit"}}}`)
	b.RecordEvent("c1", "cart")
	b.Settle()
	_, err := b.Deps.Audiences.Update(bg, b.Workspace, b.Audience, nil,
		audience.Patch{SQL: new("select id, email, name, country, zone, opted_out from customers")}, nil)
	b.Must(err)
	b.RecordEvent("c2", "cart")
	_, err = b.RunOnce(bg)
	b.Must(err)
	b.Pass(time.Hour)
	b.Settle()
	if e := b.Enrollment(flow, "c2"); e.Status != enrollment.Completed {
		t.Errorf("%+v", e)
	}
}

// MissingColumns reports which flows read the removed columns of an audience.
func TestMissingColumns(t *testing.T) {
	b := setup(t, 1)
	const asks = `{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"asks","nodes":{
		"asks":{"type":"branch","cases":[{"if":"profile.country == 'DE'","next":"wait"}],"else":"wait"},
			"wait":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`
	past, left, live := b.Live(asks), b.Live(asks), b.Live(asks)
	b.RecordEvent("c1", "go")
	b.Settle()
	b.PublishNext(past, flowstest.Minimal, flows.InFlight{Mode: "exit"})
	b.PublishNext(left, flowstest.Minimal, flows.InFlight{Mode: "stay"})
	b.Must(b.MoveAround(bg))
	missing, err := b.MissingColumns(bg, b.Workspace, b.Audience)
	b.Must(err)
	if len(missing) != 0 {
		t.Errorf("%q", missing)
	}
	b.Must(flowstest.Second(b.Deps.Audiences.Update(bg, b.Workspace, b.Audience, nil,
		audience.Patch{SQL: new("select id, email, name, opted_out from customers")}, nil)))
	missing, err = b.MissingColumns(bg, b.Workspace, b.Audience)
	b.Must(err)
	var want []string
	for _, id := range []uuid.UUID{left, live} {
		f, err := b.Get(bg, b.Workspace, id)
		b.Must(err)
		want = append(want, "the flow "+f.Name+", version 1, reads what is not there any more: country")
	}
	slices.Sort(want)
	if !slices.Equal(missing, want) {
		t.Errorf("%q, want %q", missing, want)
	}
}

// Of many versions the first are checked.
func TestMissingColumnsOfManyVersions(t *testing.T) {
	b := setup(t, 1)
	for range 22 {
		b.Live(flowstest.Polled("once", "profile.country == 'DE'"))
	}
	b.Must(flowstest.Second(b.Deps.Audiences.Update(bg, b.Workspace, b.Audience, nil,
		audience.Patch{SQL: new("select id, email, name, opted_out from customers")}, nil)))
	missing, err := b.MissingColumns(bg, b.Workspace, b.Audience)
	b.Must(err)
	if len(missing) != 21 || !strings.HasPrefix(missing[20], "2 versions of flows were not checked") {
		t.Errorf("%q", missing)
	}
}

// When an audience moves to another data source, so do the branches that query the
// audience's source.
func TestAnAudienceMovesToAnotherSource(t *testing.T) {
	b := setup(t, 2)
	const buyers = `select p.profile_key from people p join customers c on c.id = p.profile_key where c.name = 'buyer'`
	flow := b.Live(`{"audience_id":"$audience","triggers":[{"type":"event","event":"go"}],"recurrence":{"policy":"once"},"start":"asks",
		"nodes":{
		"asks":{"type":"branch","cases":[{"sql":"` + buyers + `","next":"yes"}],"else":"no"},"yes":{"type":"exit"},"no":{"type":"exit"}}}`)
	b.RecordEvent("c1", "go")
	b.Settle()
	b.OpenCustomers()
	b.ExecDB(`insert into customers values ('c1', '', 'buyer'), ('c2', '', 'buyer')`)
	other := b.NewSource(b.DSN)
	b.Must(flowstest.Second(b.Deps.Audiences.Update(bg, b.Workspace, b.Audience, nil, audience.Patch{DataSourceID: &other}, nil)))
	b.Must(b.Deps.Audiences.DeleteSource(bg, b.Workspace, b.Source))
	seen, err := b.Simulate(bg, b.Workspace, flow, 1, query.Simulation{ProfileKey: "c2", Trigger: intake.Event{Name: "go"}})
	b.Must(err)
	if last := seen.Path[len(seen.Path)-1]; last.Node != "yes" {
		t.Errorf("a simulation queries the previous source: %+v", last)
	}
	b.RecordEvent("c2", "go")
	b.Settle()
	if before, after := b.Enrollment(flow, "c1"), b.Enrollment(flow, "c2"); before.Node != "no" || after.Node != "yes" {
		t.Errorf("%+v\n%+v", before, after)
	}
}

// The steps of a large chunk are written by COPY like inserted ones. A step that exists
// already is a fault that delays only its own enrollment.
func TestStepsOfManyAreCopied(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.HourAfter("go"))
	const people = enrollment.CopyFrom // two steps each
	for i := range people {
		b.RecordEvent(fmt.Sprint("c", i), "go")
	}
	b.Settle()
	b.Exec(`update enrollments set shard = 0 where workspace_id = $1`, b.Workspace)
	broken := b.Enrollment(flow, "c7").ID
	b.Exec(`insert into enrollment_steps (workspace_id, enrollment_id, step, version, node, event)
		values ($1, $2, 3, 1, 'end', 'completed')`, b.Workspace, broken)
	b.Pass(2 * time.Hour)
	b.Settle()
	for i := range people {
		e := b.Enrollment(flow, fmt.Sprint("c", i))
		switch {
		case e.ID == broken:
			if e.EndedAt != nil || e.BlockedReason != "internal" || e.Step != 1 {
				t.Errorf("%+v", e)
			}
		case e.Status != enrollment.Completed || b.Trace(e.ID) != "enrolled@ checked@ resumed@wait completed@end":
			t.Errorf("%s: %s, %s", e.ProfileKey, e.Status, b.Trace(e.ID))
		}
	}
	b.WantCount(people-1, `select count(*) from enrollment_steps where workspace_id = $1 and event = 'resumed' and step = 2 and version = 1
		and data::json->>'since' is not null`, b.Workspace)
	b.Exec(`delete from enrollment_steps where workspace_id = $1 and enrollment_id = $2 and step = 3`, b.Workspace, broken)
	b.Pass(time.Hour)
	b.Settle()
	b.Invariants("copied")
}

// A panic is a fault of one chunk: it is bisected, and blocks the enrollment at fault for a time. The shard stays claimed.
func TestAPanicBlocksOneEnrollment(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.HourAfter("go"))
	const people = 8
	for i := range people {
		b.RecordEvent(fmt.Sprint("c", i), "go")
	}
	b.Settle()
	b.Exec(`update enrollments set shard = 0 where workspace_id = $1`, b.Workspace)
	b.Pass(2 * time.Hour)
	panics := 0
	b.Hook.Do = func(stage string) {
		if stage == "evaluated" && panics < 4 { // of 8, 4, 2 and 1 enrollments
			panics++
			panic("broken")
		}
	}
	b.Settle()
	b.WantCount(people, `select count(*) from enrollments where flow_id = $1 and status = 'completed'`, flow)
	if panics != 4 {
		t.Errorf("%d panics", panics)
	}
}
