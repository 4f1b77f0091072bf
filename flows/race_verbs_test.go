package flows

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"lemma"
)

// An admin does each thing while a worker stands at each stage.
func TestAnAdminBesideAWorker(t *testing.T) {
	version2 := func(s *scene, in InFlight) error {
		v, err := s.CreateVersion(bg, s.ws, s.flow, s.definition(letters2))
		s.must(err)
		_, err = s.Publish(bg, s.ws, s.flow, v.Version, nil, in, nil)
		return err
	}
	type verb struct {
		do    func(s *scene) error
		takes bool // c1 away from a worker that has read c1
		stops bool // the worker, without a change to c1
	}
	for name, v := range map[string]verb{
		"publishes, all stay": {do: func(s *scene) error { return version2(s, InFlight{Mode: "stay"}) }},
		"publishes, all move": {do: func(s *scene) error {
			defer s.moveAllOver()
			return version2(s, InFlight{Mode: "move", Map: map[string]*string{"nudge": ptr("other")}})
		}, takes: true},
		"publishes, all exit": {do: func(s *scene) error {
			defer s.moveAllOver()
			return version2(s, InFlight{Mode: "exit"})
		}, takes: true},
		"moves by hand":  {do: func(s *scene) error { _, err := s.Move(bg, s.ws, s.c1, nil, "wait"); return err }, takes: true},
		"moves back":     {do: func(s *scene) error { _, err := s.Move(bg, s.ws, s.c1, nil, "hello"); return err }, takes: true},
		"exits by hand":  {do: func(s *scene) error { _, err := s.Exit(bg, s.ws, s.c1, ""); return err }, takes: true},
		"pauses":         {do: func(s *scene) error { _, err := s.Pause(bg, s.ws, s.flow, nil); return err }, stops: true},
		"drains":         {do: func(s *scene) error { _, err := s.Drain(bg, s.ws, s.flow, nil); return err }},
		"archives":       {do: func(s *scene) error { _, err := s.Archive(bg, s.ws, s.flow, nil); return err }, stops: true},
		"archives, exit": {do: func(s *scene) error { defer s.moveAllOver(); _, err := s.Archive(bg, s.ws, s.flow, nil); return err }, stops: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 2)
			for _, stage := range stages {
				for _, awakes := range []bool{false, true} {
					when := fmt.Sprintf("%s, awakes: %v", stage, awakes)
					s := b.scene(awakes)
					bystander := b.row(s.c2)
					w := b.stopAt(stage)
					b.stands(w)
					var answered string
					admin := start(func() error {
						err := v.do(s)
						answered = b.row(s.c1)
						return err
					})
					b.until(0, admin.done)
					b.must(w.ends())
					<-admin.done
					if admin.err != nil && lemma.KindOf(admin.err) != lemma.WrongState { // c1 was at the end first
						t.Fatal(when, admin.err)
					}
					if now := b.row(s.c1); (v.takes || v.stops) && now != answered {
						t.Errorf("%s: something was done to c1 after the answer:\n%s\n%s", when, answered, now)
					}
					early := stage == "read" || stage == "walked"
					if n := overtaken(w.Flows); (n == 1) != (v.takes && early) {
						t.Errorf("%s: the worker was overtaken %d times", when, n)
					}
					if now := b.row(s.c2); !v.takes && name != "archives, exit" && now != bystander {
						t.Errorf("%s: something was done to c2:\n%s\n%s", when, bystander, now)
					}
					b.invariants(when)
					s.finish()
					b.invariants(when, "at the end")
				}
			}
		})
	}
}

// A trigger that has enrolled and not committed holds up every verb; one that
// comes while a verb is at work waits for it, and meets what the verb made.
func TestAVerbIsACleanCutForTriggers(t *testing.T) {
	for name, c := range map[string]struct {
		do      func(b *bundle, f *Flows, flow uuid.UUID, event string) error
		version int    // that the next trigger enrolls into
		reason  string // for which it is refused
	}{
		"publish": {func(b *bundle, f *Flows, flow uuid.UUID, event string) error {
			v, err := f.CreateVersion(bg, b.ws, flow, b.definition(untilTomorrow("per_event", event)), uuid.Nil)
			b.must(err)
			_, err = f.Publish(bg, b.ws, flow, v.Version, nil, InFlight{}, nil)
			return err
		}, 2, ""},
		"pause": {func(b *bundle, f *Flows, flow uuid.UUID, _ string) error {
			_, err := f.Pause(bg, b.ws, flow, nil)
			return err
		}, 0, IsPaused},
		"drain": {func(b *bundle, f *Flows, flow uuid.UUID, _ string) error {
			_, err := f.Drain(bg, b.ws, flow, nil)
			return err
		}, 0, NotLive},
		"archive": {func(b *bundle, f *Flows, flow uuid.UUID, _ string) error {
			_, err := f.Archive(bg, b.ws, flow, nil)
			return err
		}, 0, NotLive},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 0)
			for _, triggerFirst := range []bool{true, false} {
				event := fmt.Sprint("go ", triggerFirst)
				flow := b.live(untilTomorrow("per_event", event))
				f, seen := b.traced()
				var r Result
				if triggerFirst {
					tx, first := b.holdTrigger(Event{ProfileKey: "c1", Name: event})
					verb := start(func() error { return c.do(b, f, flow, event) })
					b.until(0, verb.done)
					b.must(tx.Commit(bg))
					<-verb.done
					b.must(verb.err)
					if e := b.enrollment(flow, "c1"); first[0].Results[0].Outcome != Enrolled || e.Version != 1 || e.Status == Exited {
						t.Errorf("%+v", e)
					}
				} else {
					reached, leave := make(chan struct{}), make(chan struct{})
					seen.stop = func(sql string) {
						if strings.Contains(sql, "update flows set version = ") {
							close(reached)
							<-leave
						}
					}
					verb := start(func() error { return c.do(b, f, flow, event) })
					<-reached
					trigger := start(func() error {
						got, err := b.Record(bg, b.ws, Event{ProfileKey: "c1", Name: event})
						if len(got.Results) > 0 {
							r = got.Results[0]
						}
						return err
					})
					b.until(0, trigger.done)
					close(leave)
					<-verb.done
					<-trigger.done
					b.must(errors.Join(verb.err, trigger.err))
					if r.Reason != c.reason || (c.version > 0) != (r.Outcome == Enrolled) {
						t.Errorf("%+v", r)
					}
					if n := b.count(`select count(*) from enrollments where workspace_id = $1 and flow_id = $2 and version = $3`, flow, c.version); (n == 1) != (c.version > 0) {
						t.Errorf("%d enrolled", n)
					}
				}
				b.invariants(triggerFirst)
			}
		})
	}
}

// Triggers that come one after the other without a gap do not keep a verb
// waiting for ever: who comes after it waits for it.
func TestAVerbDoesNotStarve(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(untilTomorrow("per_event", "go"))
	tx, _ := b.holdTrigger(Event{ProfileKey: "c1", Name: "go"})
	pause := start(func() error { _, err := b.Pause(bg, b.ws, flow, nil); return err })
	b.until(0, pause.done)
	var r Recorded
	before := b.waits()
	late := start(func() (err error) {
		r, err = b.another().Record(bg, b.ws, Event{ProfileKey: "c2", Name: "go"})
		return err
	})
	b.until(before, late.done)
	b.must(tx.Commit(bg))
	<-pause.done
	<-late.done
	b.must(errors.Join(pause.err, late.err))
	if got := r.Results[0]; got.Reason != IsPaused {
		t.Errorf("a trigger overtook the pause that waited before it: %+v", got)
	}
}
