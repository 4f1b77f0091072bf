package flows

import (
	"testing"

	"github.com/google/uuid"

	"lemma"
)

// A request whose answer was lost is made again, and somebody else was at work
// in between: it does nothing a second time, is not refused for what it has
// done itself, and answers the flow as it is now.
func TestAVerbIsDoneOnceForARequest(t *testing.T) {
	for name, c := range map[string]struct {
		before func(b *bundle, flow uuid.UUID) error
		do     func(b *bundle, flow uuid.UUID, by *Asker) (Flow, error)
		after  func(b *bundle, flow uuid.UUID) error
		status Status
		live   int
	}{
		"rollback to the one before": {
			do: func(b *bundle, flow uuid.UUID, by *Asker) (Flow, error) {
				return b.Rollback(bg, b.ws, flow, nil, nil, InFlight{}, by)
			},
			status: Live, live: 2,
		},
		"rollback, and a publish after it": {
			do: func(b *bundle, flow uuid.UUID, by *Asker) (Flow, error) {
				return b.Rollback(bg, b.ws, flow, ptr(1), ptr(4), InFlight{Mode: "exit"}, by)
			},
			after:  func(b *bundle, flow uuid.UUID) error { b.publish(flow, minimal, InFlight{}); return nil },
			status: Live, live: 5,
		},
		"publish with a tag": {
			do: func(b *bundle, flow uuid.UUID, by *Asker) (Flow, error) {
				return b.Publish(bg, b.ws, flow, 4, ptr(4), InFlight{}, by)
			},
			status: Live, live: 4,
		},
		"publish, rolled back": {
			do: func(b *bundle, flow uuid.UUID, by *Asker) (Flow, error) {
				return b.Publish(bg, b.ws, flow, 4, nil, InFlight{}, by)
			},
			after: func(b *bundle, flow uuid.UUID) error {
				return second(b.Rollback(bg, b.ws, flow, nil, nil, InFlight{}, nil))
			},
			status: Live, live: 3,
		},
		"pause": {
			do:     func(b *bundle, flow uuid.UUID, by *Asker) (Flow, error) { return b.Pause(bg, b.ws, flow, by) },
			status: Paused, live: 3,
		},
		"pause, resumed": {
			do:     func(b *bundle, flow uuid.UUID, by *Asker) (Flow, error) { return b.Pause(bg, b.ws, flow, by) },
			after:  func(b *bundle, flow uuid.UUID) error { return second(b.Resume(bg, b.ws, flow, nil, nil)) },
			status: Live, live: 3,
		},
		"resume, paused again": {
			before: func(b *bundle, flow uuid.UUID) error { return second(b.Pause(bg, b.ws, flow, nil)) },
			do:     func(b *bundle, flow uuid.UUID, by *Asker) (Flow, error) { return b.Resume(bg, b.ws, flow, nil, by) },
			after:  func(b *bundle, flow uuid.UUID) error { return second(b.Pause(bg, b.ws, flow, nil)) },
			status: Paused, live: 3,
		},
		"drain, resumed": {
			do:     func(b *bundle, flow uuid.UUID, by *Asker) (Flow, error) { return b.Drain(bg, b.ws, flow, by) },
			after:  func(b *bundle, flow uuid.UUID) error { return second(b.Resume(bg, b.ws, flow, nil, nil)) },
			status: Live, live: 3,
		},
		"archive": {
			do:     func(b *bundle, flow uuid.UUID, by *Asker) (Flow, error) { return b.Archive(bg, b.ws, flow, by) },
			status: Archived, live: 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 0)
			flow := b.live(minimal)
			b.publish(flow, minimal, InFlight{})
			b.publish(flow, minimal, InFlight{})
			b.must(second(b.CreateVersion(bg, b.ws, flow, b.definition(minimal))))
			if c.before != nil {
				b.must(c.before(b, flow))
			}
			by := &Asker{APIKeyID: lemma.NewID(), Request: lemma.NewID()}
			b.must(second(c.do(b, flow, by)))
			if c.after != nil {
				b.must(c.after(b, flow))
			}
			lines := b.count(`select count(*) from flow_log where workspace_id = $1`)
			was := b.flow(flow)
			now, err := c.do(b, flow, by)
			b.must(err)
			if now.Status != c.status || *now.LiveVersion != c.live || now.Version != was.Version {
				t.Errorf("done twice: it is %s, and version %d is live", now.Status, *now.LiveVersion)
			}
			if n := b.count(`select count(*) from flow_log where workspace_id = $1`); n != lines {
				t.Errorf("%d more lines in the log", n-lines)
			}
			if _, err := c.do(b, flow, &Asker{APIKeyID: by.APIKeyID, Request: lemma.NewID()}); err == nil && b.flow(flow).Version == was.Version {
				t.Error("another request is neither done nor refused")
			}
		})
	}
}

// The first try is still at work when the second begins, since only its
// process has died: the second waits for it, and finds it done.
func TestARequestBesideItself(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(minimal)
	b.publish(flow, minimal, InFlight{})
	b.publish(flow, minimal, InFlight{})
	by := &Asker{APIKeyID: lemma.NewID(), Request: lemma.NewID()}
	again := b.another()
	var repeated *task
	b.hook = func(stage string) {
		if stage == "publish: locked" {
			before := b.waits()
			repeated = start(func() error { return second(again.Rollback(bg, b.ws, flow, ptr(1), nil, InFlight{}, by)) })
			b.until(before, repeated.done)
		}
	}
	b.must(second(b.Rollback(bg, b.ws, flow, ptr(1), nil, InFlight{}, by)))
	<-repeated.done
	b.must(repeated.err)
	if n := b.count(`select count(*) from flow_log where workspace_id = $1 and action = 'rolled_back'`); n != 1 {
		t.Errorf("rolled back %d times", n)
	}
}

// A version is known by its request, whatever it says by then.
func TestAVersionIsMadeOnceForARequest(t *testing.T) {
	b := setup(t, 0)
	flow := b.draft(minimal).ID
	request := lemma.NewID()
	first, err := b.Flows.CreateVersion(bg, b.ws, flow, b.definition(welcome), request)
	b.must(err)
	b.must(second(b.UpdateVersion(bg, b.ws, flow, first.Version, nil, b.definition(napping))))
	b.publish(flow, minimal, InFlight{})
	now, err := b.Flows.CreateVersion(bg, b.ws, flow, b.definition(welcome), request)
	b.must(err)
	if now.Version != first.Version || now.Revision != 2 {
		t.Errorf("%+v", now)
	}
	if n := b.count(`select count(*) from flow_versions where workspace_id = $1`); n != 3 {
		t.Errorf("%d versions", n)
	}
}

// She was moved by hand and has walked on since, or was taken out.
func TestByHandIsDoneOnceForARequest(t *testing.T) {
	b := setup(t, 1)
	flow := b.live(welcome)
	b.tell("c1", "signed_up")
	id := b.enrollment(flow, "c1").ID
	moving, leaving := &Asker{Request: lemma.NewID()}, &Asker{Request: lemma.NewID()}
	b.must(second(b.Flows.Move(bg, b.ws, id, nil, "hello", moving)))
	b.must(second(b.RunOnce(bg)))
	was := b.enrollment(flow, "c1")
	if was.Node != "wait" {
		t.Fatalf("%+v", was)
	}
	now, err := b.Flows.Move(bg, b.ws, id, nil, "hello", moving)
	b.must(err)
	if now.Step != was.Step || now.Node != was.Node || now.Status != was.Status {
		t.Errorf("moved twice: %+v after %+v", now, was)
	}
	flow = b.live(napping)
	b.tell("c1", "go")
	id = b.enrollment(flow, "c1").ID
	for range 2 {
		now, err := b.Flows.Exit(bg, b.ws, id, "called us", leaving)
		b.must(err)
		if now.ExitReason != ExitManual || now.Step != 1 {
			t.Errorf("%+v", now)
		}
	}
	_, err = b.Flows.Exit(bg, b.ws, id, "called us", moving)
	b.wants(lemma.WrongState, err)
	_, steps, err := b.Steps(bg, b.ws, id)
	b.must(err)
	if _, shown := steps[len(steps)-1].Data[askedBy]; shown || steps[len(steps)-1].Data["note"] != "called us" {
		t.Errorf("%+v", steps[len(steps)-1])
	}
}

// A direct enrollment that only its request names is answered as it was; under
// an id of its own it is known before.
func TestADirectEnrollmentIsMadeOnceForARequest(t *testing.T) {
	b := setup(t, 2)
	flow := b.live(napping)
	for name, c := range map[string]struct {
		ask  Enrolling
		then Result
	}{
		"the request": {Enrolling{ProfileKey: "c1", Retry: "r1"}, Result{FlowID: flow, Outcome: Enrolled}},
		"its id":      {Enrolling{ProfileKey: "c2", ID: "x"}, Result{FlowID: flow, Outcome: Refused, Reason: AlreadyEnrolled, Detail: toldBefore}},
	} {
		first, err := b.Enroll(bg, b.ws, flow, c.ask, false)
		b.must(err)
		again, err := b.Enroll(bg, b.ws, flow, c.ask, false)
		b.must(err)
		id := again.EnrollmentID
		if again.EnrollmentID = nil; again != c.then || first.Outcome != Enrolled || id == nil || *id != *first.EnrollmentID {
			t.Errorf("%s: %+v after %+v", name, again, first)
		}
	}
	if n := b.count(`select count(*) from enrollments where workspace_id = $1`); n != 2 {
		t.Errorf("%d enrollments", n)
	}
}

// A rollback to the version that is live does nothing, and nothing again when
// another one is live by then.
func TestARollbackThatChangesNothingIsDoneOnce(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(minimal)
	by := &Asker{APIKeyID: lemma.NewID(), Request: lemma.NewID()}
	for _, live := range []int{1, 2} {
		f, err := b.Rollback(bg, b.ws, flow, ptr(1), nil, InFlight{}, by)
		b.must(err)
		if *f.LiveVersion != live || *b.flow(flow).LiveVersion != live {
			t.Fatalf("version %d is live, not %d", *b.flow(flow).LiveVersion, live)
		}
		b.publish(flow, minimal, InFlight{})
	}
}
