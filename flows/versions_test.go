package flows_test

import (
	"testing"

	"lemma"
	"lemma/flows"
	"lemma/flows/flowstest"
)

// A draft can be deleted by a caller with its current revision. A published version stays,
// and no number is used twice.
func TestADraftIsDeleted(t *testing.T) {
	b := setup(t, 0)
	flow := b.Live(flowstest.Minimal)
	draft, err := b.CreateVersion(bg, b.Workspace, flow, b.Definition(flowstest.Minimal))
	b.Must(err)
	_, err = b.UpdateVersion(bg, b.Workspace, flow, draft.Version, nil, b.Definition(flowstest.Minimal))
	b.Must(err)
	before := b.Flow(flow).Version

	b.Wants(lemma.Stale, b.DeleteVersion(bg, b.Workspace, flow, draft.Version, new(1)))
	if e := b.Wants(lemma.WrongStatus, b.DeleteVersion(bg, b.Workspace, flow, 1, nil)); e.Status != "live" {
		t.Error(e)
	}
	b.Wants(lemma.NotFound, b.DeleteVersion(bg, b.Workspace, flow, 9, nil))
	b.Wants(lemma.NotFound, b.DeleteVersion(bg, b.Workspace, lemma.NewID(), 1, nil))
	b.Wants(lemma.NotFound, b.DeleteVersion(bg, lemma.NewID(), flow, draft.Version, nil))
	if now := b.Flow(flow).Version; now != before {
		t.Errorf("refusals made the flow's version %d out of %d", now, before)
	}

	b.Must(b.DeleteVersion(bg, b.Workspace, flow, draft.Version, new(2)))
	_, err = b.GetVersion(bg, b.Workspace, flow, draft.Version)
	b.Wants(lemma.NotFound, err)
	if now := b.Flow(flow).Version; now != before+1 {
		t.Errorf("the flow's version is %d, it was %d", now, before)
	}
	next, err := b.CreateVersion(bg, b.Workspace, flow, b.Definition(flowstest.Minimal))
	b.Must(err)
	if next.Version != draft.Version+1 {
		t.Errorf("version %d came after version %d was deleted", next.Version, draft.Version)
	}
}

// A flow has at most MaxVersions; a deleted draft makes space for another one, and a repeated
// request is answered also at the limit.
func TestVersionsOfAFlowAreLimited(t *testing.T) {
	b := setup(t, 0)
	flow, request := b.NewDraft(flowstest.Minimal).ID, lemma.NewID()
	b.Exec(`insert into flow_versions (workspace_id, flow_id, version, definition, request)
		select $1, $2, n, '{}', gen_random_uuid() from generate_series(2, $3) n`, b.Workspace, flow, flows.MaxVersions-1)
	b.Exec(`update flows set versions = $2 where id = $1`, flow, flows.MaxVersions-1)
	last, err := b.Flows.CreateVersion(bg, b.Workspace, flow, b.Definition(flowstest.Minimal), request)
	b.Must(err)
	_, err = b.CreateVersion(bg, b.Workspace, flow, b.Definition(flowstest.Minimal))
	if refused := b.Wants(lemma.Conflict, err); refused.Code != "too_many_versions" {
		t.Error(refused)
	}
	again, err := b.Flows.CreateVersion(bg, b.Workspace, flow, b.Definition(flowstest.Minimal), request)
	b.Must(err)
	if again.Version != last.Version {
		t.Errorf("the repeated request made version %d", again.Version)
	}
	b.Must(b.DeleteVersion(bg, b.Workspace, flow, 2, nil))
	next, err := b.CreateVersion(bg, b.Workspace, flow, b.Definition(flowstest.Minimal))
	b.Must(err)
	if next.Version != flows.MaxVersions+1 {
		t.Errorf("version %d was made", next.Version)
	}
}

// The publish is stopped before or after it locks the flow: the first transaction wins,
// and the other gets an error.
func TestADraftIsDeletedWhileItIsPublished(t *testing.T) {
	b := setup(t, 0)
	for name, first := range map[string]string{"publish: checked": "deleted", "publish: locked": "published"} {
		flow := b.NewDraft(flowstest.Minimal).ID
		f := b.Another()
		reached, leave := make(chan struct{}), make(chan struct{})
		f.Hook.Do = func(stage string) {
			if stage == name {
				close(reached)
				<-leave
			}
		}
		publishing := flowstest.Start(func() error {
			_,
				err := f.Publish(bg, b.Workspace, flow, 1, nil, flows.InFlight{}, nil)
			return err
		})
		<-reached
		before := b.Waits()
		deleting := flowstest.Start(func() error { return b.DeleteVersion(bg, b.Workspace, flow, 1, nil) })
		b.Until(before, deleting.Done)
		if first == "deleted" { // and another draft is made before the publish goes on
			b.Must(deleting.Err)
			_, err := b.CreateVersion(bg, b.Workspace, flow, b.Definition(flowstest.Welcome))
			b.Must(err)
		}
		close(leave)
		<-publishing.Done
		<-deleting.Done
		if first == "published" {
			b.Must(publishing.Err)
			b.Wants(lemma.WrongStatus, deleting.Err)
			continue
		}
		b.Wants(lemma.Stale, publishing.Err)
		if now := b.Flow(flow); now.Status != flows.Draft || now.LiveVersion != nil {
			t.Errorf("a deleted draft was published: %+v", now)
		}
	}
}
