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

// publishTwo publishes drafts at once, and returns the error of the one that waits.
func (b *bundle) publishTwo(first, late uuid.UUID) error {
	b.T.Helper()
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
	b.Must(publishDraft(b, first))
	<-behind.Done
	return behind.Err
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
	if e := b.Wants(lemma.Conflict, b.publishTwo(last, late)); e.Code != "too_many_listeners" {
		t.Error(e)
	}
	b.WantCount(100, `select count(distinct flow_id) from flow_listeners where event = 'hi'`)
	b.Live(other)
	b.Must(flowstest.Second(b.Rollback(bg, b.Workspace, first, nil, nil, flows.InFlight{Mode: "stay"}, nil)))
	b.PublishNext(first, flowstest.Minimal, flows.InFlight{Mode: "stay"})
}

// 1,000 flows of a workspace may be live, also when two are published at once. Drafts,
// archived flows and those of other workspaces do not count.
func TestLiveFlowsAreBounded(t *testing.T) {
	b := setup(t, 0)
	live := b.Live(flowstest.Minimal)
	b.Exec(`
		with clones as (
			insert into flows (workspace_id, id, name, status, versions, live_version)
			select $1, gen_random_uuid(), 'clone ' || i, case when i > 998 then 'archived' when i % 3 = 0 then 'paused' else 'live' end, 1, 1
			from generate_series(1, 1500) i returning id)
		insert into flow_versions select v.* from clones c join flow_versions o on o.flow_id = $2
			cross join lateral (select (jsonb_populate_record(o, jsonb_build_object('flow_id', c.id))).*) v`, b.Workspace, live)
	late := b.publishTwo(b.NewDraft(flowstest.Minimal).ID, b.NewDraft(flowstest.Minimal).ID)
	if e := b.Wants(lemma.Conflict, late); e.Code != "too_many_flows" {
		t.Error(e)
	}
	b.WantCount(1000, `select count(*) from flows where workspace_id = $1 and status in ('live', 'paused')`, b.Workspace)
	b.PublishNext(live, strings.Replace(flowstest.Minimal, `"hi"`, `"other"`, 1), flows.InFlight{Mode: "stay"})
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
