package flows

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma"
)

func (b *bundle) gates() string {
	b.t.Helper()
	var text string
	b.must(b.pool.QueryRow(context.Background(), `select coalesce(string_agg(distinct gate, ' '), '') from batches where workspace_id = $1`, b.ws).Scan(&text))
	return text
}

func TestPauseHoldsEverything(t *testing.T) {
	b := setup(t, 2)
	ctx := context.Background()
	flow := b.live(welcome)
	b.tell("c1", "signed_up")
	b.settleDown()
	b.pass(4 * 24 * time.Hour) // the wait is over
	paused, err := b.Pause(ctx, b.ws, flow, nil)
	b.must(err)
	if paused.HeldFrom == nil || paused.HeldUntil != nil || paused.StatusReason != "" || b.gates() != "held" {
		t.Errorf("%+v, gates %s", paused, b.gates())
	}
	before := b.everybody(flow)
	b.settleDown()
	if r := b.tell("c2", "signed_up"); r.Results[0].Reason != IsPaused {
		t.Errorf("%+v", r)
	}
	if b.everybody(flow) != before {
		t.Error("somebody was moved in a pause")
	}
	resumed, err := b.Resume(ctx, b.ws, flow, ptr(time.Duration(0)), nil)
	b.must(err)
	if resumed.Status != Live || b.gates() != "open" || b.everybody(flow) != before {
		t.Errorf("%+v, gates %s", resumed, b.gates())
	}
	b.settleDown()
	if e := b.enrollment(flow, "c1"); e.Status != Completed {
		t.Errorf("%+v", e)
	}
}

func TestResumeSpreads(t *testing.T) {
	b := setup(t, 0)
	ctx := context.Background()
	flow := b.live(minimal)
	spreadOf := func(lasted time.Duration, spread *time.Duration) time.Duration {
		t.Helper()
		_, err := b.Pause(ctx, b.ws, flow, nil)
		b.must(err)
		b.run(b.pool, `update flows set held_from = now() - $2::interval where id = $1`, flow, lasted)
		f, err := b.Resume(ctx, b.ws, flow, spread, nil)
		b.must(err)
		took := f.SpreadUntil.Sub(*f.HeldUntil)
		b.run(b.pool, `update flows set spread_until = held_until where id = $1`, flow)
		return took
	}
	if d := spreadOf(time.Hour, nil); d != 10*time.Minute {
		t.Errorf("after an hour: %s", d)
	}
	if d := spreadOf(time.Minute, nil); d < time.Minute || d > time.Minute+10*time.Second {
		t.Errorf("after a minute: %s", d)
	}
	if d := spreadOf(time.Hour, ptr(time.Duration(0))); d != 0 {
		t.Errorf("at once: %s", d)
	}
	if d := spreadOf(time.Hour, ptr(2*time.Hour)); d != 2*time.Hour {
		t.Errorf("two hours: %s", d)
	}
	_, err := b.Pause(ctx, b.ws, flow, nil)
	b.must(err)
	for _, bad := range []time.Duration{-1, 25 * time.Hour} {
		_, err = b.Resume(ctx, b.ws, flow, &bad, nil)
		if e := b.wants(lemma.Invalid, err); pointers(e) != "/spread out_of_range" {
			t.Error(pointers(e))
		}
	}
}

// Those whom a pause held up are let go evenly, however many of them were due
// at the same instant; those who fall due later are on time.
func TestResumeReleasesEvenly(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(hourAfter("go"))
	var all []Event
	for i := range 80 {
		all = append(all, Event{ProfileKey: fmt.Sprint(i), Name: "go"})
	}
	_, err := b.RecordAll(bg, b.ws, all)
	b.must(err)
	b.settleDown()
	_, err = b.Pause(bg, b.ws, flow, nil)
	b.must(err)
	b.run(b.pool, `update enrollments set resume_at = now() - interval '1 day' where workspace_id = $1`, b.ws)
	_, err = b.Resume(bg, b.ws, flow, ptr(time.Hour), nil)
	b.must(err)
	ended := func(part time.Duration) int {
		t.Helper()
		b.run(b.pool, `update flows set held_until = now() - $2::interval, spread_until = now() + $3::interval where id = $1`, flow, part, time.Hour-part)
		b.settleDown()
		return b.count(`select count(*) from enrollments where workspace_id = $1 and status = 'completed'`)
	}
	if n := ended(0); n > Turns {
		t.Errorf("%d are let go at once", n)
	}
	if n := ended(15 * time.Minute); n < 20 || n > 20+2*Turns {
		t.Errorf("%d after a quarter", n)
	}
	if r := b.tell("late", "go"); r.Results[0].Outcome != Enrolled {
		t.Errorf("%+v", r)
	}
	b.settleDown()
	if e := b.enrollment(flow, "late"); e.Node != "wait" {
		t.Errorf("who comes now is held up by them: %+v", e)
	}
	if n := ended(30 * time.Minute); n < 40 || n > 40+2*Turns {
		t.Errorf("%d after a half", n)
	}
	b.run(b.pool, `update flows set spread_until = now() where id = $1`, flow)
	b.settleDown()
	if n := b.count(`select count(*) from enrollments where workspace_id = $1 and status = 'completed'`); n != 80 {
		t.Errorf("%d at the end", n)
	}
}

func TestPauseForFindsTheFlowOfAnOrigin(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	flow := b.live(welcome)
	b.tell("c1", "signed_up")
	b.settleDown()
	origin := OriginOf(flow, b.enrollment(flow, "c1").ID)
	for _, foreign := range [][2]uuid.UUID{{b.ws, lemma.NewID()}, {lemma.NewID(), origin}} {
		if found, err := b.PauseFor(ctx, foreign[0], foreign[1], "provider_errors", ""); found || err != nil {
			t.Errorf("%v, %v", found, err)
		}
	}
	for range 2 { // the second finds it paused
		found, err := b.PauseFor(ctx, b.ws, origin, "provider_errors", "no answer")
		if !found || err != nil {
			t.Fatalf("%v, %v", found, err)
		}
	}
	f := b.flow(flow)
	if f.Status != Paused || f.StatusReason != "provider_errors" || f.StatusDetail != "no answer" || b.gates() != "held" {
		t.Errorf("%+v", f)
	}
	f, err := b.Resume(ctx, b.ws, flow, nil, nil)
	b.must(err)
	if f.StatusReason != "" || f.StatusDetail != "" {
		t.Errorf("%+v", f)
	}
}

func TestDrainingEndsByItself(t *testing.T) {
	b := setup(t, 2)
	ctx := context.Background()
	flow := b.live(welcome)
	b.tell("c1", "signed_up")
	b.settleDown()
	_, err := b.Pause(ctx, b.ws, flow, nil)
	b.must(err)
	drained, err := b.Drain(ctx, b.ws, flow, nil) // out of a pause
	b.must(err)
	if drained.Status != Draining || drained.HeldUntil == nil || b.gates() != "open" {
		t.Errorf("%+v", drained)
	}
	if r := b.tell("c2", "signed_up"); r.Results[0].Reason != NotLive {
		t.Errorf("%+v", r)
	}
	b.must(b.archiveDrained(ctx))
	if f := b.flow(flow); f.Status != Draining {
		t.Errorf("it is %s, and c1 is on the way", f.Status)
	}

	// A pause in between does not let it enroll again.
	_, err = b.Pause(ctx, b.ws, flow, nil)
	b.must(err)
	for range 2 {
		f, err := b.Resume(ctx, b.ws, flow, ptr(time.Duration(0)), nil)
		b.must(err)
		if f.Status != Draining {
			t.Errorf("resumed as %s", f.Status)
		}
		_, err = b.Pause(ctx, b.ws, flow, nil)
		b.must(err)
	}
	_, err = b.Resume(ctx, b.ws, flow, ptr(time.Duration(0)), nil)
	b.must(err)
	b.pass(4 * 24 * time.Hour)
	b.settleDown()
	b.must(b.archiveDrained(ctx))
	if f := b.flow(flow); f.Status != Archived {
		t.Errorf("it is %s, and empty", f.Status)
	}
	if e := b.enrollment(flow, "c1"); e.Status != Completed {
		t.Errorf("%+v", e)
	}
}

func TestADrainIsUndone(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	flow := b.live(minimal)
	_, err := b.Drain(ctx, b.ws, flow, nil)
	b.must(err)
	f, err := b.Resume(ctx, b.ws, flow, nil, nil)
	b.must(err)
	if r := b.tell("c1", "hi"); f.Status != Live || r.Results[0].Outcome != Enrolled {
		t.Errorf("%s, %+v", f.Status, r)
	}
}

func TestArchivingEmptiesAFlow(t *testing.T) {
	b := setup(t, 5, func(c *Config) { c.Lot = 2 })
	ctx := context.Background()
	flow := b.live(welcome)
	for _, c := range []string{"c1", "c2", "c3", "c4"} {
		b.tell(c, "signed_up")
	}
	b.settleDown()
	written := b.notifications()
	_, err := b.Pause(ctx, b.ws, flow, nil)
	b.must(err)
	b.publish(flow, welcome, InFlight{}) // people of more than one version
	_, err = b.Archive(ctx, b.ws, flow, nil)
	b.must(err)
	if r := b.tell("c5", "signed_up"); r.Results[0].Reason != NotLive {
		t.Errorf("%+v", r)
	}
	b.pass(4 * 24 * time.Hour)
	b.settleDown()
	if n := b.notifications(); n != written {
		t.Errorf("%d notifications are new", n-written)
	}
	if b.gates() != "open" {
		t.Error("what was written is held for ever")
	}
	b.moveAllOver()
	for _, c := range []string{"c1", "c2", "c3", "c4"} {
		e := b.enrollment(flow, c)
		if e.Status != Exited || e.ExitReason != ExitArchived || e.EndedAt == nil {
			t.Errorf("%+v", e)
		}
	}
	if n := b.count(`select exited from flow_moves where workspace_id = $1 and finished_at is not null`); n != 4 {
		t.Errorf("%d exits are in the books", n)
	}
}
