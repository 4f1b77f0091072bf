package flows_test

import (
	"testing"

	"lemma/flows"
	"lemma/flows/flowstest"
)

// The lines of a flow's log are in the order of its changes, also if some were written while the
// clock was ahead: the version before, and the status before a pause, are those of the last ones.
func TestALogInTheOrderOfItsChanges(t *testing.T) {
	b := setup(t, 1)
	ahead := func() { b.Exec(`update flow_log set at = at + interval '1 hour'`) }
	flow := b.Live(flowstest.HourAfter("go"))
	b.PublishNext(flow, flowstest.HourAfter("go"), flows.InFlight{})
	ahead()
	b.PublishNext(flow, flowstest.HourAfter("go"), flows.InFlight{})
	f, err := b.Rollback(bg, b.Workspace, flow, nil, nil, flows.InFlight{}, nil)
	if b.Must(err); *f.LiveVersion != 2 {
		t.Errorf("rolled back from version 3 to %d", *f.LiveVersion)
	}

	other := b.Live(flowstest.HourAfter("other"))
	does := func(f flows.Flow, err error) flows.Status {
		t.Helper()
		b.Must(err)
		return f.Status
	}
	does(b.Drain(bg, b.Workspace, other, nil))
	does(b.Pause(bg, b.Workspace, other, nil))
	ahead()
	if status := does(b.Resume(bg, b.Workspace, other, nil, nil)); status != flows.Draining {
		t.Errorf("a draining flow is %s after a pause", status)
	}
	does(b.Resume(bg, b.Workspace, other, nil, nil))
	does(b.Pause(bg, b.Workspace, other, nil))
	if status := does(b.Resume(bg, b.Workspace, other, nil, nil)); status != flows.Live {
		t.Errorf("a live flow is %s after a pause", status)
	}
}
