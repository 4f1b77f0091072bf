package flows_test

import (
	"context"
	"errors"
	"testing"

	"lemma"
	"lemma/flows"
	"lemma/flows/flowstest"
)

// A resource that a published version names cannot be deleted; one that only an archived
// flow named can.
func TestWhatAVersionNamesStays(t *testing.T) {
	b := setup(t, 1)
	flow := b.Live(flowstest.Welcome)
	ctx := context.Background()
	used := func(err error) {
		t.Helper()
		var e *lemma.Error
		if !errors.As(err, &e) || e.Code != "in_use" {
			t.Fatalf("deleted: %v", err)
		}
	}
	used(b.Deps.Audiences.Delete(ctx, b.Workspace, b.Audience))
	used(b.Deps.Templates.Delete(ctx, b.Workspace, b.Template))
	used(b.Deps.Providers.Delete(ctx, b.Workspace, b.Provider))
	_, err := b.Archive(ctx, b.Workspace, flow, nil)
	b.Must(err)
	b.Must(b.Deps.Templates.Delete(ctx, b.Workspace, b.Template))
	b.Must(b.Deps.Audiences.Delete(ctx, b.Workspace, b.Audience))
}

// A resource may be deleted between the check and the publish.
func TestPublishingWhatNamesSomethingGone(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	f, err := b.Create(ctx, b.Workspace, flows.NewFlow{ID: lemma.NewID(), Name: "f", Definition: b.Definition(flowstest.Welcome)})
	b.Must(err)
	b.Hook.Do = func(stage string) {
		if stage == "publish: checked" {
			b.Must(b.Deps.Templates.Delete(ctx, b.Workspace, b.Template))
		}
	}
	_, err = b.Publish(ctx, b.Workspace, f.ID, 1, nil, flows.InFlight{}, nil)
	if lemma.KindOf(err) != lemma.Conflict {
		t.Fatal(err)
	}
	if now, err := b.Get(ctx, b.Workspace, f.ID); err != nil || now.Status != flows.Draft {
		t.Fatalf("%+v, %v", now, err)
	}
}
