package flows_test

import (
	"testing"

	"github.com/google/uuid"

	"lemma"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
)

// A request whose answer was lost is repeated after another request: it does nothing a
// second time, is not refused for its own effect, and returns the flow as it is now.
func TestAVerbIsDoneOnceForARequest(t *testing.T) {
	for name, c := range map[string]struct {
		before func(b *bundle, flow uuid.UUID) error
		do     func(b *bundle, flow uuid.UUID, by *flows.Actor) (flows.Flow, error)
		after  func(b *bundle, flow uuid.UUID) error
		status flows.Status
		live   int
	}{
		"rollback to the one before": {
			do: func(b *bundle, flow uuid.UUID, by *flows.Actor) (flows.Flow, error) {
				return b.Rollback(bg, b.Workspace, flow, nil, nil, flows.InFlight{}, by)
			},
			status: flows.Live, live: 2,
		},
		"rollback, and a publish after it": {
			do: func(b *bundle, flow uuid.UUID, by *flows.Actor) (flows.Flow, error) {
				return b.Rollback(bg, b.Workspace, flow, new(1), new(4), flows.InFlight{Mode: "exit"}, by)
			},
			after: func(b *bundle, flow uuid.UUID) error {
				b.PublishNext(flow, flowstest.Minimal, flows.InFlight{})
				return nil
			},
			status: flows.Live, live: 5,
		},
		"publish with a tag": {
			do: func(b *bundle, flow uuid.UUID, by *flows.Actor) (flows.Flow, error) {
				return b.Publish(bg, b.Workspace, flow, 4, &flows.Tag{Version: 4}, flows.InFlight{}, by)
			},
			status: flows.Live, live: 4,
		},
		"publish, rolled back": {
			do: func(b *bundle, flow uuid.UUID, by *flows.Actor) (flows.Flow, error) {
				return b.Publish(bg, b.Workspace, flow, 4, nil, flows.InFlight{}, by)
			},
			after: func(b *bundle, flow uuid.UUID) error {
				return flowstest.Second(b.Rollback(bg, b.Workspace, flow, nil, nil, flows.InFlight{}, nil))
			},
			status: flows.Live, live: 3,
		},
		"pause": {
			do: func(b *bundle, flow uuid.UUID, by *flows.Actor) (flows.Flow, error) {
				return b.Pause(bg, b.Workspace, flow, by)
			},
			status: flows.Paused, live: 3,
		},
		"pause, resumed": {
			do: func(b *bundle, flow uuid.UUID, by *flows.Actor) (flows.Flow, error) {
				return b.Pause(bg, b.Workspace, flow, by)
			},
			after: func(b *bundle, flow uuid.UUID) error {
				return flowstest.Second(b.Resume(bg, b.Workspace, flow, nil, nil))
			},
			status: flows.Live, live: 3,
		},
		"resume, paused again": {
			before: func(b *bundle, flow uuid.UUID) error { return flowstest.Second(b.Pause(bg, b.Workspace, flow, nil)) },
			do: func(b *bundle, flow uuid.UUID, by *flows.Actor) (flows.Flow, error) {
				return b.Resume(bg, b.Workspace, flow, nil, by)
			},
			after:  func(b *bundle, flow uuid.UUID) error { return flowstest.Second(b.Pause(bg, b.Workspace, flow, nil)) },
			status: flows.Paused, live: 3,
		},
		"drain, resumed": {
			do: func(b *bundle, flow uuid.UUID, by *flows.Actor) (flows.Flow, error) {
				return b.Drain(bg, b.Workspace, flow, by)
			},
			after: func(b *bundle, flow uuid.UUID) error {
				return flowstest.Second(b.Resume(bg, b.Workspace, flow, nil, nil))
			},
			status: flows.Live, live: 3,
		},
		"archive": {
			do: func(b *bundle, flow uuid.UUID, by *flows.Actor) (flows.Flow, error) {
				return b.Archive(bg, b.Workspace, flow, by)
			},
			status: flows.Archived, live: 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 0)
			flow := b.Live(flowstest.Minimal)
			b.PublishNext(flow, flowstest.Minimal, flows.InFlight{})
			b.PublishNext(flow, flowstest.Minimal, flows.InFlight{})
			b.Must(flowstest.Second(b.CreateVersion(bg, b.Workspace, flow, b.Definition(flowstest.Minimal))))
			if c.before != nil {
				b.Must(c.before(b, flow))
			}
			by := &flows.Actor{APIKeyID: lemma.NewID(), Request: lemma.NewID()}
			b.Must(flowstest.Second(c.do(b, flow, by)))
			if c.after != nil {
				b.Must(c.after(b, flow))
			}
			lines := b.Count(`select count(*) from flow_log where workspace_id = $1`, b.Workspace)
			was := b.Flow(flow)
			now, err := c.do(b, flow, by)
			b.Must(err)
			if now.Status != c.status || *now.LiveVersion != c.live || now.Version != was.Version {
				t.Errorf("done twice: it is %s, and version %d is live", now.Status, *now.LiveVersion)
			}
			b.WantCount(lines, `select count(*) from flow_log where workspace_id = $1`, b.Workspace)
			if _, err := c.do(b, flow,
				&flows.Actor{APIKeyID: by.APIKeyID, Request: lemma.NewID()}); err == nil && b.Flow(flow).Version == was.Version {
				t.Error("another request is neither done nor refused")
			}
		})
	}
}

// A repeated request runs concurrently with its first attempt, whose client has gone: it
// waits for the first, and finds it done.
func TestARequestBesideItself(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.Minimal)
	b.PublishNext(flow, flowstest.Minimal, flows.InFlight{})
	b.PublishNext(flow, flowstest.Minimal, flows.InFlight{})
	by := &flows.Actor{APIKeyID: lemma.NewID(), Request: lemma.NewID()}
	again := b.Another()
	var repeated *flowstest.Task
	b.Hook.Do = func(stage string) {
		if stage == "publish: locked" {
			before := b.Waits()
			repeated = flowstest.Start(func() error {
				return flowstest.Second(again.Rollback(bg, b.Workspace, flow, new(1), nil, flows.InFlight{}, by))
			})
			b.Until(before, repeated.Done)
		}
	}
	b.Must(flowstest.Second(b.Rollback(bg, b.Workspace, flow, new(1), nil, flows.InFlight{}, by)))
	<-repeated.Done
	b.Must(repeated.Err)
	b.WantCount(1, `select count(*) from flow_log where workspace_id = $1 and action = 'rolled_back'`, b.Workspace)
}

// A version is identified by its request, even after it was changed.
func TestAVersionIsMadeOnceForARequest(t *testing.T) {
	b := setup(t, 0)
	flow := b.NewDraft(flowstest.Minimal).ID
	request := lemma.NewID()
	first, err := b.Process.CreateVersion(bg, b.Workspace, flow, b.Definition(flowstest.Welcome), request)
	b.Must(err)
	b.Must(flowstest.Second(b.UpdateVersion(bg, b.Workspace, flow, first.Version, nil, b.Definition(flowstest.Napping))))
	b.PublishNext(flow, flowstest.Minimal, flows.InFlight{})
	now, err := b.Process.CreateVersion(bg, b.Workspace, flow, b.Definition(flowstest.Welcome), request)
	b.Must(err)
	if now.Version != first.Version || now.Revision != 2 {
		t.Errorf("%+v", now)
	}
	b.WantCount(3, `select count(*) from flow_versions where workspace_id = $1`, b.Workspace)
}

// The enrollment was moved manually and has advanced since, or was ended.
func TestManualVerbsAreDoneOnceForARequest(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(flowstest.Welcome)
	b.RecordEvent("c1", "signed_up")
	id := b.Enrollment(flow, "c1").ID
	moving, leaving := &flows.Actor{Request: lemma.NewID()}, &flows.Actor{Request: lemma.NewID()}
	b.Must(b.Flows.Move(bg, b.Workspace, id, nil, "hello", moving))
	b.Must(flowstest.Second(b.RunOnce(bg)))
	was := b.Enrollment(flow, "c1")
	if was.Node != "wait" {
		t.Fatalf("%+v", was)
	}
	b.Must(b.Flows.Move(bg, b.Workspace, id, nil, "hello", moving))
	now, err := b.GetEnrollment(bg, b.Workspace, id)
	b.Must(err)
	if now.Step != was.Step || now.Node != was.Node || now.Status != was.Status {
		t.Errorf("moved twice: %+v after %+v", now, was)
	}
	flow = b.Live(flowstest.Napping)
	b.RecordEvent("c1", "go")
	id = b.Enrollment(flow, "c1").ID
	for range 2 {
		b.Must(b.Flows.Exit(bg, b.Workspace, id, "called us", leaving))
		now, err := b.GetEnrollment(bg, b.Workspace, id)
		b.Must(err)
		if now.ExitReason != enrollment.ExitManual || now.Step != 1 {
			t.Errorf("%+v", now)
		}
	}
	err = b.Flows.Exit(bg, b.Workspace, id, "called us", moving)
	b.Wants(lemma.WrongStatus, err)
	_, steps, _, err := b.Steps(bg, b.Workspace, id, -1)
	b.Must(err)
	if _, shown := steps[len(steps)-1].Data["request"]; shown || steps[len(steps)-1].Data["note"] != "called us" {
		t.Errorf("%+v", steps[len(steps)-1])
	}
}

// A direct enrollment that only its request identifies returns the first result; one with
// its own id is found before.
func TestADirectEnrollmentIsMadeOnceForARequest(t *testing.T) {
	b := setup(t, 2)
	flow := b.Live(flowstest.Napping)
	for name, c := range map[string]struct {
		ask  intake.Enrolling
		then intake.Result
	}{
		"the request": {intake.Enrolling{ProfileKey: "c1", Retry: "r1"}, intake.Result{FlowID: flow, Outcome: enrollment.Enrolled}},
		"its id": {intake.Enrolling{ProfileKey: "c2", ID: "x"}, intake.Result{FlowID: flow, Outcome: enrollment.Refused,
			Reason: enrollment.AlreadyEnrolled, Detail: "this id has already enrolled a profile"}},
	} {
		first, err := b.Enroll(bg, b.Workspace, flow, c.ask, false)
		b.Must(err)
		again, err := b.Enroll(bg, b.Workspace, flow, c.ask, false)
		b.Must(err)
		id := again.EnrollmentID
		if again.EnrollmentID = nil; again != c.then || first.Outcome != enrollment.Enrolled || id == nil || *id != *first.EnrollmentID {
			t.Errorf("%s: %+v after %+v", name, again, first)
		}
	}
	b.WantCount(2, `select count(*) from enrollments where workspace_id = $1`, b.Workspace)
}

// A rollback to the live version does nothing, and its repetition does nothing even if
// another version is live by then.
func TestARollbackThatChangesNothingIsDoneOnce(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.Minimal)
	by := &flows.Actor{APIKeyID: lemma.NewID(), Request: lemma.NewID()}
	for _, live := range []int{1, 2} {
		f, err := b.Rollback(bg, b.Workspace, flow, new(1), nil, flows.InFlight{}, by)
		b.Must(err)
		if *f.LiveVersion != live || *b.Flow(flow).LiveVersion != live {
			t.Fatalf("version %d is live, not %d", *b.Flow(flow).LiveVersion, live)
		}
		b.PublishNext(flow, flowstest.Minimal, flows.InFlight{})
	}
}
