package flows

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// heldUp is a flow in whose pause 80 people fell due a day ago.
func (b *bundle) heldUp(text string) uuid.UUID {
	b.t.Helper()
	flow := b.live(text)
	var all []Event
	for i := range 80 {
		all = append(all, Event{ProfileKey: fmt.Sprint(i), Name: "go"})
	}
	b.must(second(b.RecordAll(bg, b.ws, all)))
	b.settleDown()
	b.must(second(b.Pause(bg, b.ws, flow, nil)))
	b.run(b.pool, `update enrollments set resume_at = now() - interval '1 day' where workspace_id = $1`, b.ws)
	return flow
}

func (b *bundle) completed() int {
	return b.count(`select count(*) from enrollments where workspace_id = $1 and status = 'completed'`)
}

// A second pause, by mistake or by a provider that fails, does not turn a long
// release into a flood: what is released after it takes as long as was left.
func TestAPauseDoesNotShortenARelease(t *testing.T) {
	b := setup(t, 0)
	flow := b.heldUp(hourAfter("go"))
	b.must(second(b.Resume(bg, b.ws, flow, ptr(24*time.Hour), nil)))
	b.settleDown()
	for _, verb := range []string{"resume", "drain"} {
		b.must(second(b.Pause(bg, b.ws, flow, nil)))
		resume := func() (Flow, error) { return b.Resume(bg, b.ws, flow, nil, nil) }
		if verb == "drain" {
			resume = func() (Flow, error) { return b.Drain(bg, b.ws, flow, nil) }
		}
		f, err := resume()
		b.must(err)
		if left := f.SpreadUntil.Sub(*f.HeldUntil); left < 23*time.Hour || left > 24*time.Hour {
			t.Fatalf("after %s the rest is released over %s", verb, left)
		}
		b.settleDown()
	}
	if n := b.completed(); n > 3*Turns {
		t.Errorf("%d are let go at once", n)
	}
	// Whoever asks for another spread gets it.
	b.must(second(b.Pause(bg, b.ws, flow, nil)))
	b.must(second(b.Resume(bg, b.ws, flow, ptr(time.Duration(0)), nil)))
	b.settleDown()
	if n := b.completed(); n != 80 {
		t.Errorf("%d have arrived", n)
	}
}

// Who is put on another node while a pause is being released keeps his place in
// the release.
func TestAMoveDoesNotShortenARelease(t *testing.T) {
	b := setup(t, 0)
	text := hourAfter("go")
	flow := b.heldUp(text)
	b.must(second(b.Resume(bg, b.ws, flow, ptr(24*time.Hour), nil)))
	b.settleDown()
	b.publish(flow, strings.ReplaceAll(text, `"wait"`, `"pause"`), InFlight{Mode: "move", Map: map[string]*string{"wait": ptr("end")}})
	b.must(b.moveAround(bg))
	if n := b.count(`select count(*) from enrollments where workspace_id = $1 and status = 'active' and version = 2`); n < 70 {
		t.Fatalf("%d were moved", n)
	}
	b.settleDown()
	if n := b.completed(); n > 2*Turns {
		t.Errorf("%d are let go at once", n)
	}
	b.run(b.pool, `update flows set spread_until = now() where id = $1`, flow)
	b.settleDown()
	if n := b.completed(); n != 80 {
		t.Errorf("%d have arrived", n)
	}
}

// Whoever came into an audience in a pause is found all at once, and begins at
// any time until the release is over.
func TestAPollAfterAPauseIsSpread(t *testing.T) {
	b := setup(t, 50)
	flow := b.live(`{"audience_id":"$audience","triggers":[{"type":"audience","every":"PT1M"}],"recurrence":{"policy":"once"},
		"start":"hello","nodes":{"hello":{$send,"next":"end"},"end":{"type":"exit"}}}`)
	b.must(second(b.Pause(bg, b.ws, flow, nil)))
	f, err := b.Resume(bg, b.ws, flow, ptr(24*time.Hour), nil)
	b.must(err)
	b.look()
	if n := b.count(`select count(*) from enrollments where workspace_id = $1 and status = 'active' and resume_at between now() and $2`, f.SpreadUntil); n < 48 {
		t.Fatalf("%d are due some time in the release", n)
	}
	if n := b.count(`select count(*) from enrollments where workspace_id = $1 and resume_at < now() + interval '12 hours'`); n < 10 || n > 40 {
		t.Errorf("%d of 50 are due in the first half", n)
	}
	b.settleDown()
	if n := b.notifications(); n > 2 {
		t.Errorf("%d letters at once", n)
	}
}
