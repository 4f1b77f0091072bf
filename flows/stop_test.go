package flows_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
	"lemma/lifecycle"
	"lemma/pgtest"
)

func (b *bundle) gates() string {
	b.T.Helper()
	return pgtest.One[string](b.T, b.Pool, `select coalesce(string_agg(distinct gate, ' '), '') from batches where workspace_id = $1`,
		b.Workspace)
}

func TestPauseStopsEverything(t *testing.T) {
	b := setup(t, 2)
	ctx := context.Background()
	flow := b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	b.Pass(4 * 24 * time.Hour) // the wait is over
	paused, err := b.Pause(ctx, b.Workspace, flow, nil)
	b.Must(err)
	if paused.PausedAt == nil || paused.ResumedAt != nil || paused.StatusReason != "" || b.gates() != "held" {
		t.Errorf("%+v, gates %s", paused, b.gates())
	}
	before := b.Snapshot(flow)
	b.Settle()
	if r := b.RecordEvent("c2", "signed_up"); r.Results[0].Reason != enrollment.IsPaused {
		t.Errorf("%+v", r)
	}
	if b.Snapshot(flow) != before {
		t.Error("an enrollment changed in a pause")
	}
	resumed, err := b.Resume(ctx, b.Workspace, flow, new(time.Duration(0)), nil)
	b.Must(err)
	if resumed.Status != flows.Live || b.gates() != "open" || b.Snapshot(flow) != before {
		t.Errorf("%+v, gates %s", resumed, b.gates())
	}
	b.Settle()
	if e := b.Enrollment(flow, "c1"); e.Status != enrollment.Completed {
		t.Errorf("%+v", e)
	}
}

func TestResumeCatchesUp(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	flow := b.Live(flowstest.Minimal)
	catchUpOf := func(lasted time.Duration, catchUp *time.Duration) time.Duration {
		t.Helper()
		_, err := b.Pause(ctx, b.Workspace, flow, nil)
		b.Must(err)
		b.Exec(`update flows set paused_at = now() - $2::interval where id = $1`, flow, lasted)
		f, err := b.Resume(ctx, b.Workspace, flow, catchUp, nil)
		b.Must(err)
		took := f.CatchUpUntil.Sub(*f.ResumedAt)
		b.Exec(`update flows set catch_up_until = resumed_at where id = $1`, flow)
		return took
	}
	if d := catchUpOf(time.Hour, nil); d != 10*time.Minute {
		t.Errorf("after an hour: %s", d)
	}
	if d := catchUpOf(time.Minute, nil); d < time.Minute || d > time.Minute+10*time.Second {
		t.Errorf("after a minute: %s", d)
	}
	if d := catchUpOf(time.Hour, new(time.Duration(0))); d != 0 {
		t.Errorf("at once: %s", d)
	}
	if d := catchUpOf(time.Hour, new(2*time.Hour)); d != 2*time.Hour {
		t.Errorf("two hours: %s", d)
	}
	_, err := b.Pause(ctx, b.Workspace, flow, nil)
	b.Must(err)
	for _, bad := range []time.Duration{-1, 25 * time.Hour} {
		_, err = b.Resume(ctx, b.Workspace, flow, &bad, nil)
		if e := b.Wants(lemma.Invalid, err); flowstest.Pointers(e) != "/catch_up out_of_range" {
			t.Error(flowstest.Pointers(e))
		}
	}
}

// Enrollments that became due in a pause are released evenly, even if many became due at
// the same instant; those that become due later are on time.
func TestResumeReleasesEvenly(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.HourAfter("go"))
	var all []intake.Event
	for i := range 80 {
		all = append(all, intake.Event{ProfileKey: fmt.Sprint(i), Name: "go"})
	}
	_, err := b.RecordAll(bg, b.Workspace, all)
	b.Must(err)
	b.Settle()
	_, err = b.Pause(bg, b.Workspace, flow, nil)
	b.Must(err)
	b.Exec(`update enrollments set resume_at = now() - interval '1 day' where workspace_id = $1`, b.Workspace)
	_, err = b.Resume(bg, b.Workspace, flow, new(time.Hour), nil)
	b.Must(err)
	ended := func(part time.Duration) int {
		t.Helper()
		b.Exec(`update flows set resumed_at = now() - $2::interval, catch_up_until = now() + $3::interval where id = $1`, flow, part,
			time.Hour-part)
		b.Settle()
		return b.Count(`select count(*) from enrollments where workspace_id = $1 and status = 'completed'`, b.Workspace)
	}
	if n := ended(0); n > enrollment.Shards {
		t.Errorf("%d are released at once", n)
	}
	if n := ended(15 * time.Minute); n < 20 || n > 20+2*enrollment.Shards {
		t.Errorf("%d after a quarter", n)
	}
	if r := b.RecordEvent("late", "go"); r.Results[0].Outcome != enrollment.Enrolled {
		t.Errorf("%+v", r)
	}
	b.Settle()
	if e := b.Enrollment(flow, "late"); e.Node != "wait" {
		t.Errorf("a new enrollment is delayed by them: %+v", e)
	}
	if n := ended(30 * time.Minute); n < 40 || n > 40+2*enrollment.Shards {
		t.Errorf("%d after a half", n)
	}
	b.Exec(`update flows set catch_up_until = now() where id = $1`, flow)
	b.Settle()
	b.WantCount(80, `select count(*) from enrollments where workspace_id = $1 and status = 'completed'`, b.Workspace)
}

func TestPauseForFindsTheFlowOfAnOrigin(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	flow := b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	origin := enrollment.OriginOf(flow, b.Enrollment(flow, "c1").ID)
	for _, foreign := range [][2]uuid.UUID{{b.Workspace, lemma.NewID()}, {lemma.NewID(), origin}} {
		found, _, err := b.PauseFor(ctx, foreign[0], foreign[1], b.Provider, lifecycle.Cause{Reason: "provider_errors"})
		if found || err != nil {
			t.Errorf("%v, %v", found, err)
		}
	}
	for _, first := range []bool{true, false} { // the second finds it paused
		found, paused, err := b.PauseFor(ctx, b.Workspace, origin, b.Provider, lifecycle.Cause{Reason: "provider_errors", Detail: "no answer"})
		if !found || paused != first || err != nil {
			t.Fatalf("%v, %v, %v", found, paused, err)
		}
	}
	f := b.Flow(flow)
	if f.Status != flows.Paused || f.StatusReason != "provider_errors" || f.StatusDetail != "no answer" || b.gates() != "held" {
		t.Errorf("%+v", f)
	}
	f, err := b.Resume(ctx, b.Workspace, flow, nil, nil)
	b.Must(err)
	if f.StatusReason != "" || f.StatusDetail != "" {
		t.Errorf("%+v", f)
	}
}

// A cause that is older than the resume does not pause the flow again.
func TestAResumeEndsEarlierCauses(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	origin := enrollment.OriginOf(flow, b.Enrollment(flow, "c1").ID)
	_, err := b.Pause(bg, b.Workspace, flow, nil)
	b.Must(err)
	resumed, err := b.Resume(bg, b.Workspace, flow, nil, nil)
	b.Must(err)
	for _, c := range []struct {
		after time.Duration
		want  flows.Status
	}{{-time.Millisecond, flows.Live}, {0, flows.Paused}} {
		cause := lifecycle.Cause{Reason: "provider_errors", SeenAt: resumed.ResumedAt.Add(c.after)}
		found, paused, err := b.PauseFor(bg, b.Workspace, origin, b.Provider, cause)
		if !found || paused != (c.want == flows.Paused) || err != nil {
			t.Fatalf("%v, %v, %v", found, paused, err)
		}
		if f := b.Flow(flow); f.Status != c.want {
			t.Errorf("seen %v after the resume: %s", c.after, f.Status)
		}
	}
}

func TestDrainingEndsByItself(t *testing.T) {
	b := setup(t, 2)
	ctx := context.Background()
	flow := b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	_, err := b.Pause(ctx, b.Workspace, flow, nil)
	b.Must(err)
	drained, err := b.Drain(ctx, b.Workspace, flow, nil) // out of a pause
	b.Must(err)
	if drained.Status != flows.Draining || drained.ResumedAt == nil || b.gates() != "open" {
		t.Errorf("%+v", drained)
	}
	if r := b.RecordEvent("c2", "signed_up"); r.Results[0].Reason != enrollment.NotLive {
		t.Errorf("%+v", r)
	}
	b.Must(b.ArchiveDrained(ctx))
	b.Must(b.ArchiveEmpty(ctx, b.Workspace, flow)) // as if it had been empty when it was read
	if f := b.Flow(flow); f.Status != flows.Draining {
		t.Errorf("it is %s, and c1 is active", f.Status)
	}

	// A pause in between does not let it enroll again.
	_, err = b.Pause(ctx, b.Workspace, flow, nil)
	b.Must(err)
	for range 2 {
		f, err := b.Resume(ctx, b.Workspace, flow, new(time.Duration(0)), nil)
		b.Must(err)
		if f.Status != flows.Draining {
			t.Errorf("resumed as %s", f.Status)
		}
		_, err = b.Pause(ctx, b.Workspace, flow, nil)
		b.Must(err)
	}
	_, err = b.Resume(ctx, b.Workspace, flow, new(time.Duration(0)), nil)
	b.Must(err)
	b.Pass(4 * 24 * time.Hour)
	b.Settle()
	b.Exec(`update batches set status = 'done', sent = size, finished_at = now()`)
	b.Must(b.ArchiveDrained(ctx))
	if f := b.Flow(flow); f.Status != flows.Archived {
		t.Errorf("it is %s, without active enrollments", f.Status)
	}
	if e := b.Enrollment(flow, "c1"); e.Status != enrollment.Completed {
		t.Errorf("%+v", e)
	}
}

func TestADrainIsUndone(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	flow := b.Live(flowstest.Minimal)
	_, err := b.Drain(ctx, b.Workspace, flow, nil)
	b.Must(err)
	f, err := b.Resume(ctx, b.Workspace, flow, nil, nil)
	b.Must(err)
	if r := b.RecordEvent("c1", "hi"); f.Status != flows.Live || r.Results[0].Outcome != enrollment.Enrolled {
		t.Errorf("%s, %+v", f.Status, r)
	}
}

func TestArchivingEmptiesAFlow(t *testing.T) {
	b := setup(t, 5, func(c *flows.Config) { c.Chunk = 2 })
	ctx := context.Background()
	flow := b.Live(flowstest.Welcome)
	for _, c := range []string{"c1", "c2", "c3", "c4"} {
		b.RecordEvent(c, "signed_up")
	}
	b.Settle()
	written := b.Notifications()
	_, err := b.Pause(ctx, b.Workspace, flow, nil)
	b.Must(err)
	b.PublishNext(flow, flowstest.Welcome, flows.InFlight{}) // enrollments of more than one version
	_, err = b.Archive(ctx, b.Workspace, flow, nil)
	b.Must(err)
	if r := b.RecordEvent("c5", "signed_up"); r.Results[0].Reason != enrollment.NotLive {
		t.Errorf("%+v", r)
	}
	b.Pass(4 * 24 * time.Hour)
	b.Settle()
	if n := b.Notifications(); n != written {
		t.Errorf("%d notifications are new", n-written)
	}
	if b.gates() != "open" {
		t.Error("written messages are held")
	}
	b.FinishMoves()
	for _, c := range []string{"c1", "c2", "c3", "c4"} {
		e := b.Enrollment(flow, c)
		if e.Status != enrollment.Exited || e.ExitReason != enrollment.ExitArchived || e.EndedAt == nil {
			t.Errorf("%+v", e)
		}
	}
	b.WantCount(4, `select exited from flow_moves where workspace_id = $1 and finished_at is not null`, b.Workspace)
}

// A flow that cannot be archived does not stop the others.
func TestDrainedFlowsWithOneThatFails(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	var all []uuid.UUID
	for range 5 {
		flow := b.Live(flowstest.Welcome)
		_, err := b.Drain(ctx, b.Workspace, flow, nil)
		b.Must(err)
		all = append(all, flow)
	}
	b.Exec(`alter table flows add constraint refused check (status <> 'archived' or id <> '` + all[0].String() + `')`)
	if err := b.ArchiveDrained(ctx); err == nil {
		t.Error("no error")
	}
	b.WantCount(4, `select count(*) from flows where workspace_id = $1 and status = 'archived'`, b.Workspace)
}
