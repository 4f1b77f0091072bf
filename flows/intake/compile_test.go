package intake_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"lemma/flows"
	"lemma/flows/enrollment"
	"lemma/flows/flowstest"
	"lemma/flows/intake"
)

const ended = `{"triggers":[{"type":"event","event":"signed_up"}],"exit_on":[{"event":"bought","goal":true}],
	"recurrence":{"policy":"per_event"},"start":"w","nodes":{"w":{"type":"delay","for":"P1D","next":"end"},"end":{"type":"exit"}}}`

// While a version is compiled no transaction is open, whatever needs the version.
func TestNoTransactionIsOpenWhileAVersionIsCompiled(t *testing.T) {
	event := func(name string) func(*flowstest.Process, uuid.UUID, *bundle) error {
		return func(n *flowstest.Process, _ uuid.UUID, b *bundle) error {
			return flowstest.Second(n.Record(bg, b.Workspace, intake.Event{ProfileKey: "c1", Name: name}))
		}
	}
	for name, do := range map[string]func(*flowstest.Process, uuid.UUID, *bundle) error{
		"a trigger": event("signed_up"),
		"an exit":   event("bought"),
		"a direct request": func(n *flowstest.Process, flow uuid.UUID, b *bundle) error {
			return flowstest.Second(n.Enroll(bg, b.Workspace, flow, intake.Enrolling{ProfileKey: "c2"}, false))
		},
		"a poll": func(n *flowstest.Process, _ uuid.UUID, b *bundle) error {
			b.Live(`{"audience_id":"$audience","triggers":[{"type":"audience","every":"PT1H"}],"recurrence":{"policy":"once"},"start":"end",
				"nodes":{"end":{"type":"exit"}}}`)
			return flowstest.Second(n.PollOnce(bg))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 1)
			flow := b.Live(ended)
			b.RecordEvent("c1", "signed_up")
			b.Settle()
			b.PublishNext(flow, ended, flows.InFlight{Mode: "stay"})
			n := b.Another()
			compiled := b.CompilesAlone(n)
			b.Must(do(n, flow, b))
			if compiled() == 0 {
				t.Error("no version was compiled")
			}
			b.Invariants()
		})
	}
}

// A flow is paused while its version is compiled for a trigger: the trigger is refused.
func TestAFlowIsPausedWhileItsVersionIsCompiled(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(ended)
	n := b.Another()
	ctx, cancel := context.WithTimeout(bg, 20*time.Second)
	defer cancel()
	n.Hook.Do = func(stage string) {
		if stage == "compile" {
			if err := flowstest.Second(b.Pause(ctx, b.Workspace, flow, nil)); err != nil {
				t.Error(err)
			}
		}
	}
	r, err := n.Record(bg, b.Workspace, intake.Event{ProfileKey: "c1", Name: "signed_up"})
	b.Must(err)
	if one := r.Results[0]; one.Reason != enrollment.IsPaused {
		t.Errorf("%+v", one)
	}
	b.WantCount(1, `select count(*) from trigger_events`)
}

// The cache has space for one version, and an event triggers five flows: each is compiled
// once for it.
func TestAnEventOfMoreVersionsThanAreCached(t *testing.T) {
	b := setup(t, 0)
	var all []uuid.UUID
	for range 5 {
		all = append(all, b.Live(ended))
	}
	n := b.Another()
	compiled := 0
	n.Hook.Do = func(stage string) {
		if stage == "compile" {
			compiled++
			for _, flow := range all {
				n.Execution.Versions.Drop(flow, 1)
			}
		}
	}
	r, err := n.Record(bg, b.Workspace, intake.Event{ProfileKey: "c1", Name: "signed_up"})
	b.Must(err)
	for _, one := range r.Results {
		if one.Outcome != enrollment.Enrolled {
			t.Errorf("%+v", one)
		}
	}
	if len(r.Results) != 5 || compiled != 5 {
		t.Errorf("%d versions were compiled: %+v", compiled, r)
	}
}
