package campaigns

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"lemma"
	"lemma/lifecycle"
	"lemma/pgtest"
)

// waitsOnce checks that an event reports once that an experiment waits for a person, and why.
func (b *bundle) waitsOnce(c Campaign) {
	b.T.Helper()
	it := b.iteration(c)
	want := []string{lemma.FormatID(lemma.PrefixIteration, it.ID) + " " + it.StatusReason + " " + it.StatusDetail}
	got := pgtest.Column[string](b.T, b.Pool, `select concat_ws(' ', data->>'iteration_id', data->>'reason', data->>'detail')
		from events_out where type = 'iteration.inconclusive' and origin_id = $1`, c.ID)
	if diff := cmp.Diff(want, got); diff != "" {
		b.T.Error(diff)
	}
}

// Each change of a campaign's status is one event. A verb that is repeated or refused is
// none.
func TestChangesAreEvents(t *testing.T) {
	b := setup(t, 10)
	c := b.draft()
	request := uuid.New()
	for range 2 {
		_, err := b.Send(t.Context(), b.Workspace, c.ID, request)
		b.Must(err)
	}
	for _, first := range []bool{true, false} {
		paused, err := b.PauseFor(t.Context(), b.Workspace, c.ID, lifecycle.Cause{Reason: "provider_failing", Detail: "535"})
		b.Must(err)
		if paused != first {
			t.Errorf("paused %v, want %v", paused, first)
		}
	}
	got := pgtest.Column[string](t, b.Pool, `select type || ' ' || data::text from events_out where origin_id = $1 order by id`, c.ID)
	want := []string{"campaign.started {}", `campaign.paused {"detail": "535", "reason": "provider_failing"}`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
