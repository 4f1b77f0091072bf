package intake_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"lemma"
	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
)

// Each verb is called while a worker has stopped at each stage.
func TestAnAdminBesideAWorker(t *testing.T) {
	version2 := func(s *flowstest.Pair, in flows.InFlight) error {
		v, err := s.CreateVersion(bg, s.Workspace, s.FlowID, s.Definition(flowstest.TwoMessagesOtherwise))
		s.Must(err)
		_, err = s.Publish(bg, s.Workspace, s.FlowID, v.Version, nil, in, nil)
		return err
	}
	type verb struct {
		do    func(s *flowstest.Pair) error
		takes bool // c1 is changed under a worker that has read it
		stops bool // the worker stops without a change to c1
	}
	for name, v := range map[string]verb{
		"publishes, all stay": {do: func(s *flowstest.Pair) error { return version2(s, flows.InFlight{Mode: "stay"}) }},
		"publishes, all move": {do: func(s *flowstest.Pair) error {
			defer s.FinishMoves()
			return version2(s, flows.InFlight{Mode: "move", Map: map[string]*string{"nudge": new("other")}})
		}, takes: true},
		"publishes, all exit": {do: func(s *flowstest.Pair) error {
			defer s.FinishMoves()
			return version2(s, flows.InFlight{Mode: "exit"})
		}, takes: true},
		"moves by hand": {do: func(s *flowstest.Pair) error { _, err := s.Move(bg, s.Workspace, s.C1, nil, "wait"); return err },
			takes: true},
		"moves back": {do: func(s *flowstest.Pair) error { _, err := s.Move(bg, s.Workspace, s.C1, nil, "hello"); return err },
			takes: true},
		"exits by hand": {do: func(s *flowstest.Pair) error { _, err := s.Exit(bg, s.Workspace, s.C1, ""); return err }, takes: true},
		"pauses": {do: func(s *flowstest.Pair) error { _, err := s.Pause(bg, s.Workspace, s.FlowID, nil); return err },
			stops: true},
		"drains": {do: func(s *flowstest.Pair) error { _, err := s.Drain(bg, s.Workspace, s.FlowID, nil); return err }},
		"archives": {do: func(s *flowstest.Pair) error { _, err := s.Archive(bg, s.Workspace, s.FlowID, nil); return err },
			stops: true},
		"archives, exit": {do: func(s *flowstest.Pair) error {
			defer s.FinishMoves()
			_, err := s.Archive(bg, s.Workspace, s.FlowID, nil)
			return err
		}, stops: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 2)
			for _, stage := range flowstest.Stages {
				for _, awakes := range []bool{false, true} {
					when := fmt.Sprintf("%s, awakes: %v", stage, awakes)
					s := b.NewPair(awakes)
					bystander := b.Row(s.C2)
					w := b.StopAt(stage)
					b.Reached(w)
					var answered string
					admin := flowstest.Start(func() error {
						err := v.do(s)
						answered = b.Row(s.C1)
						return err
					})
					b.Until(0, admin.Done)
					b.Must(w.End())
					<-admin.Done
					if admin.Err != nil && lemma.KindOf(admin.Err) != lemma.WrongStatus { // c1 ended first
						t.Fatal(when, admin.Err)
					}
					if now := b.Row(s.C1); (v.takes || v.stops) && now != answered {
						t.Errorf("%s: something was done to c1 after the answer:\n%s\n%s", when, answered, now)
					}
					early := stage == "read" || stage == "evaluated"
					if n := flowstest.Conflicts(w.Process); (n == 1) != (v.takes && early) {
						t.Errorf("%s: the worker had %d conflicts", when, n)
					}
					if now := b.Row(s.C2); !v.takes && name != "archives, exit" && now != bystander {
						t.Errorf("%s: something was done to c2:\n%s\n%s", when, bystander, now)
					}
					b.Invariants(when)
					s.Finish()
					b.Invariants(when, "at the end")
				}
			}
		})
	}
}

// A trigger that has enrolled and not committed delays every verb; one that arrives during
// a verb waits for it, and sees its result.
func TestAVerbIsACleanCutForTriggers(t *testing.T) {
	for name, c := range map[string]struct {
		do      func(b *bundle, f *flowstest.Process, flow uuid.UUID, event string) error
		version int    // into which the next trigger enrolls
		reason  string // why it is refused
	}{
		"publish": {func(b *bundle, f *flowstest.Process, flow uuid.UUID, event string) error {
			v, err := f.CreateVersion(bg, b.Workspace, flow, b.Definition(flowstest.UntilTomorrow("per_event", event)), uuid.Nil)
			b.Must(err)
			_, err = f.Publish(bg, b.Workspace, flow, v.Version, nil, flows.InFlight{}, nil)
			return err
		}, 2, ""},
		"pause": {func(b *bundle, f *flowstest.Process, flow uuid.UUID, _ string) error {
			_, err := f.Pause(bg, b.Workspace, flow, nil)
			return err
		}, 0, enrollment.IsPaused},
		"drain": {func(b *bundle, f *flowstest.Process, flow uuid.UUID, _ string) error {
			_, err := f.Drain(bg, b.Workspace, flow, nil)
			return err
		}, 0, enrollment.NotLive},
		"archive": {func(b *bundle, f *flowstest.Process, flow uuid.UUID, _ string) error {
			_, err := f.Archive(bg, b.Workspace, flow, nil)
			return err
		}, 0, enrollment.NotLive},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 0)
			for _, triggerFirst := range []bool{true, false} {
				event := fmt.Sprint("go ", triggerFirst)
				flow := b.Live(flowstest.UntilTomorrow("per_event", event))
				f, seen := b.Traced()
				var r intake.Result
				if triggerFirst {
					tx, first := b.holdTrigger(intake.Event{ProfileKey: "c1", Name: event})
					verb := flowstest.Start(func() error { return c.do(b, f, flow, event) })
					b.Until(0, verb.Done)
					b.Must(tx.Commit(bg))
					<-verb.Done
					b.Must(verb.Err)
					if e := b.Enrollment(flow,
						"c1"); first[0].Results[0].Outcome != enrollment.Enrolled || e.Version != 1 || e.Status == enrollment.Exited {
						t.Errorf("%+v", e)
					}
				} else {
					reached, leave := make(chan struct{}), make(chan struct{})
					seen.Stop = func(sql string) {
						if strings.Contains(sql, "update flows set version = ") {
							close(reached)
							<-leave
						}
					}
					verb := flowstest.Start(func() error { return c.do(b, f, flow, event) })
					<-reached
					trigger := flowstest.Start(func() error {
						got, err := b.Record(bg, b.Workspace, intake.Event{ProfileKey: "c1", Name: event})
						if len(got.Results) > 0 {
							r = got.Results[0]
						}
						return err
					})
					b.Until(0, trigger.Done)
					close(leave)
					<-verb.Done
					<-trigger.Done
					b.Must(errors.Join(verb.Err, trigger.Err))
					if r.Reason != c.reason || (c.version > 0) != (r.Outcome == enrollment.Enrolled) {
						t.Errorf("%+v", r)
					}
					if n := b.Count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and version = $3`, b.Workspace, flow,
						c.version); (n == 1) != (c.version > 0) {
						t.Errorf("%d enrolled", n)
					}
				}
				b.Invariants(triggerFirst)
			}
		})
	}
}

// Triggers that follow each other without a gap do not starve a verb: later ones wait for
// it.
func TestAVerbDoesNotStarve(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.UntilTomorrow("per_event", "go"))
	tx, _ := b.holdTrigger(intake.Event{ProfileKey: "c1", Name: "go"})
	pause := flowstest.Start(func() error { _, err := b.Pause(bg, b.Workspace, flow, nil); return err })
	b.Until(0, pause.Done)
	var r intake.Recorded
	before := b.Waits()
	late := flowstest.Start(func() (err error) {
		r, err = b.Another().Record(bg, b.Workspace, intake.Event{ProfileKey: "c2", Name: "go"})
		return err
	})
	b.Until(before, late.Done)
	b.Must(tx.Commit(bg))
	<-pause.Done
	<-late.Done
	b.Must(errors.Join(pause.Err, late.Err))
	if got := r.Results[0]; got.Reason != enrollment.IsPaused {
		t.Errorf("a trigger overtook the waiting pause: %+v", got)
	}
}
