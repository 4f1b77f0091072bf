package flows

import (
	"testing"

	"lemma"
)

// A draft can be taken away, by whoever saw it as it is. What was published
// stays, and no number is given twice.
func TestADraftIsDeleted(t *testing.T) {
	b := setup(t, 0)
	flow := b.live(minimal)
	draft, err := b.CreateVersion(bg, b.ws, flow, b.definition(minimal))
	b.must(err)
	_, err = b.UpdateVersion(bg, b.ws, flow, draft.Version, nil, b.definition(minimal))
	b.must(err)
	before := b.flow(flow).Version

	b.wants(lemma.Stale, b.DeleteVersion(bg, b.ws, flow, draft.Version, ptr(1)))
	if e := b.wants(lemma.WrongState, b.DeleteVersion(bg, b.ws, flow, 1, nil)); e.Status != "live" {
		t.Error(e)
	}
	b.wants(lemma.NotFound, b.DeleteVersion(bg, b.ws, flow, 9, nil))
	b.wants(lemma.NotFound, b.DeleteVersion(bg, b.ws, lemma.NewID(), 1, nil))
	b.wants(lemma.NotFound, b.DeleteVersion(bg, lemma.NewID(), flow, draft.Version, nil))
	if now := b.flow(flow).Version; now != before {
		t.Errorf("refusals made the flow's version %d out of %d", now, before)
	}

	b.must(b.DeleteVersion(bg, b.ws, flow, draft.Version, ptr(2)))
	_, err = b.GetVersion(bg, b.ws, flow, draft.Version)
	b.wants(lemma.NotFound, err)
	if now := b.flow(flow).Version; now != before+1 {
		t.Errorf("the flow's version is %d, it was %d", now, before)
	}
	next, err := b.CreateVersion(bg, b.ws, flow, b.definition(minimal))
	b.must(err)
	if next.Version != draft.Version+1 {
		t.Errorf("version %d came after version %d was deleted", next.Version, draft.Version)
	}
}

// The publish is stopped before or after it takes the flow; whoever comes first
// has his way, and the other is told.
func TestADraftIsDeletedWhileItIsPublished(t *testing.T) {
	b := setup(t, 0)
	for name, first := range map[string]string{"publish: checked": "deleted", "publish: locked": "published"} {
		flow := b.draft(minimal).ID
		f := b.another()
		reached, leave := make(chan struct{}), make(chan struct{})
		f.hook = func(stage string) {
			if stage == name {
				close(reached)
				<-leave
			}
		}
		publishing := start(func() error { _, err := f.Publish(bg, b.ws, flow, 1, nil, InFlight{}, nil); return err })
		<-reached
		before := b.waits()
		deleting := start(func() error { return b.DeleteVersion(bg, b.ws, flow, 1, nil) })
		b.until(before, deleting.done)
		if first == "deleted" { // and another draft is made before the publish goes on
			b.must(deleting.err)
			_, err := b.CreateVersion(bg, b.ws, flow, b.definition(welcome))
			b.must(err)
		}
		close(leave)
		<-publishing.done
		<-deleting.done
		if first == "published" {
			b.must(publishing.err)
			b.wants(lemma.WrongState, deleting.err)
			continue
		}
		b.wants(lemma.Stale, publishing.err)
		if now := b.flow(flow); now.Status != Draft || now.LiveVersion != nil {
			t.Errorf("a deleted draft was published: %+v", now)
		}
	}
}
