package intake_test

import (
	"context"
	"testing"
	"time"

	"lemma/flows/admission"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
)

// stopped is a process that stops when it compiles, until release.
func stopped(t *testing.T, b *bundle) (n *flowstest.Process, compiles <-chan struct{}, release func()) {
	n = b.Another()
	begun, open := make(chan struct{}, 100), make(chan struct{})
	n.Hook.Do = func(stage string) {
		if stage == "compile" {
			begun <- struct{}{}
			<-open
		}
	}
	release = func() {
		select {
		case <-open:
		default:
			close(open)
		}
	}
	t.Cleanup(release)
	return n, begun, release
}

// A bulk has no place while it waits for a version: the other bulks are recorded meanwhile.
func TestABulkThatWaitsForAVersionHasNoPlace(t *testing.T) {
	b := setup(t, 0)
	b.Live(ended)
	n, compiles, release := stopped(t, b)
	done := make(chan error, 1)
	go func() {
		done <- flowstest.Second(n.RecordAll(bg, b.Workspace, []intake.Event{{ProfileKey: "c1", Name: "signed_up"}}))
	}()
	<-compiles
	ctx, cancel := context.WithTimeout(bg, 20*time.Second)
	defer cancel()
	var places []*admission.Place
	for range 4 {
		place, err := n.Bulks().Acquire(ctx, b.Workspace, 2)
		b.Must(err)
		places = append(places, place)
	}
	for _, place := range places {
		place.Leave()
	}
	release()
	b.Must(<-done)
	if n := n.Bulks().Waiting(b.Workspace); n != 0 {
		t.Errorf("%d bulks are left", n)
	}
}

// Compiling for a request ends with its time. The events before the first that needs a
// version which is not compiled are recorded; the others have no effect and are sent again.
func TestCompilingCountsInTheTimeOfARequest(t *testing.T) {
	b := setup(t, 0)
	b.Live(ended)
	n, _, release := stopped(t, b)
	n.SetCompileTime(20 * time.Millisecond)
	ctx, cancel := context.WithTimeout(bg, 20*time.Second)
	defer cancel()
	all := []intake.Event{{ProfileKey: "c1", Name: "unused", ID: "1"}, {ProfileKey: "c1", Name: "signed_up", ID: "2"},
		{ProfileKey: "c2", Name: "unused", ID: "3"}}
	done, err := n.RecordAll(ctx, b.Workspace, all)
	b.Must(err)
	if done[0].Err != nil || !done[1].Overloaded() || !done[2].Overloaded() {
		t.Errorf("%+v", done)
	}
	b.WantCount(1, `select count(*) from trigger_events`)
	if _, err := n.Record(ctx, b.Workspace, all[1]); !admission.IsOverloaded(err) {
		t.Errorf("a single event: %v", err)
	}
	if n := flowstest.Counted(n.Metrics.Events.WithLabelValues("condition_time")); n != 3 {
		t.Errorf("%v events are counted", n)
	}
	release()
	n.SetCompileTime(time.Minute)
	done, err = n.RecordAll(ctx, b.Workspace, all)
	b.Must(err)
	if !done[0].Duplicate || done[1].Err != nil || len(done[1].Results) != 1 || done[2].Err != nil {
		t.Errorf("again: %+v", done)
	}
	b.WantCount(3, `select count(*) from trigger_events`)
	b.Invariants()
}

// A direct enrollment into a flow that takes too long to compile is refused.
func TestADirectEnrollmentWaitsForItsVersionInTime(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(ended)
	n, _, _ := stopped(t, b)
	n.SetCompileTime(20 * time.Millisecond)
	if _, err := n.Enroll(bg, b.Workspace, flow, intake.Enrolling{ProfileKey: "c1"}, false); !admission.IsOverloaded(err) {
		t.Error(err)
	}
	b.WantCount(0, `select count(*) from trigger_events`)
}

// Events to active enrollments whose version is not compiled in time are sent again, and
// those that follow too.
func TestEventsOfActiveEnrollmentsThatWaitForAVersion(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(ended)
	b.RecordEvent("c1", "signed_up")
	b.Settle()
	n, _, release := stopped(t, b)
	n.SetCompileTime(20 * time.Millisecond)
	all := []intake.Event{{ProfileKey: "c1", Name: "bought", ID: "1"}, {ProfileKey: "c2", Name: "bought", ID: "2"},
		{ProfileKey: "c2", Name: "bought", ID: "3"}}
	done, err := n.RecordAll(bg, b.Workspace, all)
	b.Must(err)
	for i, r := range done {
		if !r.Overloaded() {
			t.Errorf("%d: %+v", i, r)
		}
	}
	b.WantCount(1, `select count(*) from trigger_events`)
	release()
	n.SetCompileTime(time.Minute)
	done, err = n.RecordAll(bg, b.Workspace, all)
	b.Must(err)
	if done[0].Exited != 1 || done[1].Err != nil || done[2].Err != nil {
		t.Errorf("again: %+v", done)
	}
	if got := b.Trace(b.Enrollment(flow, "c1").ID); got != "enrolled@ checked@ exited@w" {
		t.Error(got)
	}
}
