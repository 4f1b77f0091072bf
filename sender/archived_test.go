package sender

import (
	"context"
	"testing"

	"github.com/google/uuid"
	dto "github.com/prometheus/client_model/go"

	"lemma"
	"lemma/lifecycle"
	"lemma/notifications"
	"lemma/providers"
)

// The provider refuses for good, and what the batch belongs to cannot be paused: it
// cancels the batch, as an archived flow does. The batch that the worker holds ends with
// its claim, and the provider is called no more.
func TestABatchThatIsCancelledForItsProviderEnds(t *testing.T) {
	b := setup(t)
	b.insert(4, 2, 2)
	b.carrier.fail(noPassword)
	asked := 0
	for range 5 {
		s := b.sender(hasty)
		s.pause = func(context.Context, uuid.UUID, uuid.UUID, uuid.UUID, lifecycle.Cause) (bool, error) {
			asked++
			b.cancel()
			return false, nil
		}
		b.makeDue()
		b.makeProbable()
		b.work(s)
		var pauses dto.Metric
		b.Must(s.metrics.pauses.WithLabelValues("provider_refused").Write(&pauses))
		if n := pauses.GetCounter().GetValue(); n > 0 {
			t.Errorf("%v pauses are counted", n)
		}
	}
	b.wantCounts(notifications.Counts{Cancelled: 4})
	if asked != 1 {
		t.Errorf("asked to pause %d times", asked)
	}
	if err := providers.New(b.Pool, nil, nil).Delete(bg, b.Workspace, b.provider); err != nil {
		t.Errorf("%v is %v", err, lemma.KindOf(err))
	}
}
