package sender

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"

	"lemma/lifecycle"
	"lemma/unsubscribe"
)

// A batch that cannot be prepared shows why while it waits.
func TestExplainShowsWhyABatchIsNotPrepared(t *testing.T) {
	b := setup(t)
	ref := b.insert(1, 1, 2)[0]
	s := b.sender()
	c, err := s.Claim(t.Context(), ref)
	b.Must(err)
	s.pause = func(context.Context, uuid.UUID, uuid.UUID, uuid.UUID, lifecycle.Cause) error { return nil }
	_, err = s.unprepared(t.Context(), c, unsubscribe.ErrNoPublicURL)
	b.Must(err)
	e, err := b.ledger.Explain(t.Context(), b.Workspace, b.origin, keyOf(0))
	b.Must(err)
	if e.Waiting == nil || e.Waiting.For != "due" || !strings.Contains(e.Waiting.Detail, "set LEMMA_PUBLIC_URL") {
		t.Errorf("it waits for %+v", e.Waiting)
	}
}
