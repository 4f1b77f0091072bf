package flows

import (
	"context"
	"errors"
	"testing"

	"lemma"
)

// What a published version names cannot be deleted from under its people; what
// an archived flow named can.
func TestWhatAVersionNamesStays(t *testing.T) {
	b := setup(t, 1)
	flow := b.live(welcome)
	ctx := context.Background()
	used := func(err error) {
		t.Helper()
		var e *lemma.Error
		if !errors.As(err, &e) || e.Code != "in_use" {
			t.Fatalf("deleted: %v", err)
		}
	}
	used(b.rooms.Audiences.Delete(ctx, b.ws, b.audience))
	used(b.rooms.Templates.Delete(ctx, b.ws, b.template))
	used(b.rooms.Providers.Delete(ctx, b.ws, b.provider))
	_, err := b.Archive(ctx, b.ws, flow, nil)
	b.must(err)
	b.must(b.rooms.Templates.Delete(ctx, b.ws, b.template))
	b.must(b.rooms.Audiences.Delete(ctx, b.ws, b.audience))
}

// Between the check and the publish something may be deleted.
func TestPublishingWhatNamesSomethingGone(t *testing.T) {
	b := setup(t, 1)
	ctx := context.Background()
	f, err := b.Create(ctx, b.ws, NewFlow{ID: lemma.NewID(), Name: "f", Definition: b.definition(welcome)})
	b.must(err)
	b.hook = func(stage string) {
		if stage == "publish: checked" {
			b.must(b.rooms.Templates.Delete(ctx, b.ws, b.template))
		}
	}
	_, err = b.Publish(ctx, b.ws, f.ID, 1, nil, InFlight{}, nil)
	if lemma.KindOf(err) != lemma.Conflict {
		t.Fatal(err)
	}
	if now, err := b.Get(ctx, b.ws, f.ID); err != nil || now.Status != Draft {
		t.Fatalf("%+v, %v", now, err)
	}
}
