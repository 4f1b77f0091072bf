package flows_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"lemma"
	"lemma/flows"
	"lemma/flows/flowstest"
)

func publishDraft(b *bundle, flow uuid.UUID) error {
	_, err := b.Publish(bg, b.Workspace, flow, 1, nil, flows.InFlight{Mode: "stay"}, nil)
	return err
}

// 100 flows of a workspace may listen to one event, also when two are published at once.
// Flows that listened before count, so that they can be rolled back.
func TestFlowsThatListenToAnEventAreBounded(t *testing.T) {
	b := setup(t, 0)
	other := strings.Replace(flowstest.Minimal, `"hi"`, `"other"`, 1)
	first := b.Live(flowstest.Minimal)
	b.PublishNext(first, other, flows.InFlight{Mode: "stay"})
	for range 98 {
		b.Live(flowstest.Minimal)
	}
	last, late := b.NewDraft(flowstest.Minimal).ID, b.NewDraft(flowstest.Minimal).ID
	var behind *flowstest.Task
	var once sync.Once
	b.Hook.Do = func(stage string) {
		if stage == "publish: counted" {
			once.Do(func() {
				waiting := b.Waits()
				behind = flowstest.Start(func() error { return publishDraft(b, late) })
				b.Until(waiting, behind.Done)
			})
		}
	}
	b.Must(publishDraft(b, last))
	<-behind.Done
	if e := b.Wants(lemma.Conflict, behind.Err); e.Code != "too_many_listeners" {
		t.Error(e)
	}
	b.WantCount(100, `select count(distinct flow_id) from flow_listeners where event = 'hi'`)
	b.Live(other)
	b.Must(flowstest.Second(b.Rollback(bg, b.Workspace, first, nil, nil, flows.InFlight{Mode: "stay"}, nil)))
	b.PublishNext(first, flowstest.Minimal, flows.InFlight{Mode: "stay"})
}

// The definitions of the flows that listen to one event are bounded together.
func TestDefinitionsThatListenToAnEventAreBounded(t *testing.T) {
	b := setup(t, 0)
	large := strings.Replace(flowstest.Minimal, `{`, `{"layout":{"x":"`+strings.Repeat("x", 255<<10)+`"},`, 1)
	for range 8 {
		b.Live(large)
	}
	flow := b.NewDraft(large).ID
	if e := b.Wants(lemma.Conflict, publishDraft(b, flow)); e.Code != "too_many_listeners" {
		t.Error(e)
	}
	b.WantCount(0, `select count(*) from flow_versions where flow_id = $1 and status <> 'draft'`, flow)
	b.Live(flowstest.Minimal)
}
